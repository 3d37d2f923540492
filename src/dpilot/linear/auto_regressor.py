"""One call from a table to a regression, its cost and its noisy figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.keys import fresh_key
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.linear.fitting import noise_of, plan_fit, problem_of
from dpilot.linear.inputs import features, features_and_target, loose, numbers, target_numbers
from dpilot.linear.methods import METHODS
from dpilot.linear.model import LinearModel
from dpilot.linear.problem import LinearProblem, Privacy, commit_stages
from dpilot.linear.rows import MemoryRows
from dpilot.linear.scoring import Grouped, noisy_scores, score_event
from dpilot.linear.sources import Described, Numbers, RecordSource
from dpilot.mechanism import KeyedNoise, Noise
from dpilot.metrics.metric import Metric
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Stage
from dpilot.records import FitRecord, unit

__all__ = ["AutoRegressor", "RegressionScore"]

_PARTS: Final = {"train": 0.9, "held-out": 0.1}
_METHOD: Final = METHODS["auto"]


@dataclass(frozen=True, slots=True)
class RegressionScore:
    """Noisy figures of private records, and what they cost."""

    metrics: tuple[Metric, ...]
    privacy: Privacy

    def __getitem__(self, name: str) -> Metric:
        return {each.name: each for each in self.metrics}[_validate.one_of([m.name for m in self.metrics], name=name)]


class AutoRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Private least squares from a table, with figures on records it was not fitted to, in one budget.

    Nine records in ten, by secret coins, go to ``LinearRegression(method="auto")``; the others give ``metrics_``, noisy
    R^2 and root mean squared error. A record is in one part only, so each part may cost the whole (epsilon, delta).

    ``X`` is a table of numbers, whose bounds are bought; or, with ``schema``, a frame whose columns it declares:
    numbers between their bounds (bought where it says "buy"), categories one-hot.

    Guarantee:
        (epsilon, delta)-DP for adding or removing one record, everything stored on the estimator included; the number
        of records is published when ``size="public"``. ``privacy_`` lists every entry. With ``ledger`` a path, each
        fit is charged there before a record is read, or refused with BudgetExceeded.

    Edge cases:
        ``delta`` None is min(1e-5, 1/(10 size)), or 1e-6 where the size is bought (``size="private"``); 1/size or more
        is refused unless ``allow_large_delta``. ``privacy_`` shows what was used.
        A record that the schema does not allow, or with a value that is no finite number, is the null record: silent.
        ``protected`` names a column of the schema that is kept from the model; if X has it, ``metrics_`` tell records,
        error and mean residual of each of its groups too. ``epochs`` and ``device`` are there for
        the likeness with AutoClassifier: there is nothing to set, and anything but None (or "cpu") is refused.
        ``score`` is exact, for records that are public; ``private_score`` buys noisy figures of private ones.
        No records at all: noise is fitted, at the full price, unless their number is published.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(20_000, 3)); y = X @ [1.0, 2.0, 3.0] + rng.normal(size=20_000)
        >>> model = AutoRegressor(epsilon=1.0).fit(X, y)
        >>> [metric.name for metric in model.metrics_], model.privacy_.spent.epsilon <= 1.0
        (['RMSE', 'R^2'], True)
        >>> bool(model.score(X, y) > 0.9)
        True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        *,
        schema: Any = None,
        size: str | int = "public",
        ledger: Any = None,
        allow_large_delta: bool = False,
        protected: str | None = None,
        epochs: Any = None,
        device: Any = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.size = size
        self.ledger = ledger
        self.allow_large_delta = allow_large_delta
        self.protected = protected
        self.epochs = epochs
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit on the records (X, y), charging the ledger first."""
        self._check_options()
        source = self._source(X, y)
        problem, unprotected = problem_of(
            self.epsilon,
            self.delta,
            features=source.width,
            intercept=True,
            size=self.size,
            length=source.length,
            allow_large_delta=self.allow_large_delta,
            share=_PARTS["train"],
        )
        plan = plan_fit(problem, parse_bounds(source.bounds, source.width), _METHOD, taken=source.share)
        noise = noise_of(self.random_state)
        split = _split(noise)
        places = split.indices(source.length)
        score = score_event(problem, grouped=source.groups is not None)
        parts = {"train": {**source.stages(problem), **plan.stages}, "held-out": {"score": score}}
        stages = [Stage(name, event, part, split.id) for part, each in parts.items() for name, event in each.items()]
        with commit_stages(stages, problem.budget, ledger=self.ledger, noise=noise, unprotected=unprotected) as (
            run,
            costs,
        ):
            encoder = source.read(places["train"], problem, run)
            table = source.table(encoder)
            solution, scaling, _ = plan.run(MemoryRows.of(table[places["train"]]), run)
            model = LinearModel.of(solution.theta, scaling, intercept=True)
            with run.stage("score") as receipt:
                held_out = _of(source.groups, places["held-out"])
                found = _score_records(table[places["held-out"]], model, problem, receipt, noise, held_out)
        self.encoder_, self.model_, self.metrics_, self.privacy_ = encoder, model, found, costs[0]
        self.coef_, self.intercept_, self.choice_ = model.coef, model.intercept, solution.choice
        return self

    def predict(self, X: Any) -> Floats:
        """Predictions for each row; post-processing of what was released."""
        check_is_fitted(self)
        return self.model_.predict(self._values(X))

    def private_score(
        self, X: Any, y: Any, *, epsilon: float, delta: float | None = None, ledger: Any = None
    ) -> RegressionScore:
        """Noisy R^2 and root mean squared error of private records, for an (epsilon, delta) of its own.

        Without a ``delta`` it is that of the fit. It is charged to ``ledger``, or to the estimator's where none is
        given: scores on records that the model was fitted to add to what the fit cost.
        """
        check_is_fitted(self)
        budget = Budget(epsilon, self.privacy_.budget.delta if delta is None else delta)
        values = self._values(X)
        table = np.column_stack([values, target_numbers(y, values.shape[0])])
        problem = LinearProblem(values.shape[1], True, None, budget)
        noise = noise_of(self.random_state)
        stages = [Stage("private score", score_event(problem))]
        book = self.ledger if ledger is None else ledger
        charged = commit_stages(stages, budget, ledger=book, noise=noise, unprotected=("running time",))
        with charged as (run, costs), run.stage("private score") as receipt:
            found = _score_records(table, self.model_, problem, receipt, noise)
        return RegressionScore(found, costs[0])

    def record(self) -> FitRecord:
        """The fit as the report and the command line see it: declared and released values only."""
        check_is_fitted(self)
        privacy: Privacy = self.privacy_
        return FitRecord(
            privacy={
                "epsilon": privacy.spent.epsilon,
                "delta": privacy.spent.delta,
                "unit": unit(privacy.unprotected),
            },
            data={"size": self.size, "held_out": _PARTS["held-out"], "columns": list(self._names())},
            plan={"model": "linear regression", "method": "auto", "choice": self.choice_},
            decisions=(f"auto settled for: {self.choice_}.",),
            metrics=tuple(metric.record() for metric in self.metrics_),
            thresholds=(),
            ledger=tuple(entry.as_dict() for entry in privacy.entries),
            stamps=(privacy.noise,),
            unprotected=privacy.unprotected,
        )

    def report(self, path: str | Path) -> Path:
        """Write the report of the fit, one HTML page; it costs nothing."""
        return self.record().write_report(path)

    def _source(self, X: Any, y: Any) -> RecordSource:
        if self.schema is None:
            if self.protected is not None:
                raise InvalidInput(f"protected is {self.protected!r} without a schema: expected one that declares it.")
            values, target = features_and_target(self, X, y)
            return Numbers(values, numbers(target))
        source = Described.of(self.schema, X, y, self.protected)
        self.feature_names_in_ = np.asarray([column.name for column in source.schema.features], dtype=object)
        self.n_features_in_ = self.feature_names_in_.size
        return source

    def _values(self, X: Any) -> Floats:
        if self.encoder_ is None:
            return features(self, X)
        return np.asarray(self.encoder_.encode_features(X), dtype=np.float64)

    def _names(self) -> Any:
        names: Mapping[str, Any] = vars(self)
        return self.encoder_.names if self.encoder_ else names.get("feature_names_in_", range(self.n_features_in_))

    def _check_options(self) -> None:
        if self.epochs is not None:
            _validate.refuse("epochs", self.epochs, "None", "Least squares sets its own number of steps.")
        if self.device not in (None, "cpu"):
            _validate.refuse("device", self.device, 'None or "cpu"', "Least squares runs on the CPU.")

    def __sklearn_tags__(self) -> Any:
        tags = loose(super().__sklearn_tags__())
        tags.regressor_tags.poor_score = True
        return tags


def _split(noise: Noise) -> Split:
    """Fresh coins; with fixed noise, for tests, fixed ones."""
    return Split(_PARTS, noise.state.key if isinstance(noise, KeyedNoise) else fresh_key("split"))


def _of(grouped: Grouped | None, places: Any) -> Grouped | None:
    """The groups of the records at ``places``."""
    return None if grouped is None else replace(grouped, codes=grouped.codes[places])


def _score_records(
    table: Floats,
    model: LinearModel,
    problem: LinearProblem,
    receipt: Any,
    noise: Noise,
    grouped: Grouped | None = None,
) -> tuple[Metric, ...]:
    known = np.isfinite(table).all(axis=1)
    rows, grouped = table[known], _of(grouped, known)
    with np.errstate(all="ignore"):  # no warning may tell of one record
        predicted = model.predict(rows[:, :-1])
    return noisy_scores(
        rows[:, -1],
        predicted,
        center=model.target_center,
        width=model.target_width,
        problem=problem,
        receipt=receipt,
        noise=noise,
        grouped=grouped,
    )
