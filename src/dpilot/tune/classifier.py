"""``AutoClassifier``: the autopilot as a scikit-learn estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpilot._arrays import Floats
from dpilot.data.encoder import Encoder
from dpilot.data.frames import Frame
from dpilot.errors import InvalidInput
from dpilot.linear.auto_regressor import RegressionScore
from dpilot.linear.classifier import codes, resolve_classes
from dpilot.linear.fitting import noise_of, resolve_size
from dpilot.linear.inputs import features, features_and_target, loose, target_cells
from dpilot.linear.model import products
from dpilot.linear.problem import Privacy, commit_stages
from dpilot.metrics.counts import Layout, Scored, counts_event, noisy_counts
from dpilot.metrics.scores import scores
from dpilot.noise import KeyedNoise
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Stage, as_ledger
from dpilot.records import FitRecord
from dpilot.transfer.scattering import scattered
from dpilot.tune.pilot.autopilot import autopilot
from dpilot.tune.pilot.autopilot_table import TableResult, autopilot_table, unit_rows
from dpilot.tune.pilot.classifier_inputs import Labels, array_frame, array_schema, is_images, join_target, schema_codes
from dpilot.tune.pilot.defaults import AutopilotOptions
from dpilot.tune.pilot.outcome import AutopilotResult, Figures

__all__ = ["AutoClassifier"]


class AutoClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A private classifier that tunes, trains and scores itself in one budget: nothing else to choose.

    ``X`` is, with ``schema``, a frame whose columns it declares; without, a table of numbers, whose bounds are bought;
    or images (n, height, width) or (n, channels, height, width), as bytes or as floats from 0 to 1, which become
    scattering features. ``classes`` are declared, or published ("public"); with a schema they are its target's.

    Guarantee:
        (epsilon, delta)-DP for adding or removing one record, everything stored on the estimator included; the number
        of records is published when ``size="public"``. Every entry is in ``privacy_``. With ``ledger``, a path or a
        Ledger, each fit is charged there before a record is read, or refused with BudgetExceeded. (Features of images
        are computed before, each from its own image: nothing of that leaves.)

    Edge cases:
        ``delta`` None is min(1e-5, 1/(10 size)), or 1e-6 where the size is bought (``size="private"``); 1/size or more
        is refused unless ``allow_large_delta``. ``privacy_`` shows what was used.
        A record outside its declared domain, or whose label is none of the classes, is the null record: silent. When
        predicting, a null record gets equal probabilities, so the first class. A missing number is no such thing.
        ``score`` is exact, for records that are public; ``private_score`` buys noisy figures of private ones.
        ``epochs`` is the most passes over the records of one run. ``random_state`` fixes the noise: for tests only.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(20_000, 2)); y = np.where(X[:, 0] > 0, "yes", "no")
        >>> model = AutoClassifier(epsilon=1.0, classes=["no", "yes"]).fit(X, y)
        >>> model.predict([[2.0, 0.0], [-2.0, 0.0]]).tolist(), model.privacy_.spent.epsilon <= 1.0
        (['yes', 'no'], True)
        >>> bool(model.metrics_["accuracy"].value > 0.9)
        True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        *,
        classes: Any = None,
        schema: Any = None,
        size: str | int = "public",
        ledger: Any = None,
        allow_large_delta: bool = False,
        protected: str | None = None,
        objective: str = "accuracy",
        epochs: float | None = None,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.schema = schema
        self.size = size
        self.ledger = ledger
        self.allow_large_delta = allow_large_delta
        self.protected = protected
        self.objective = objective
        self.epochs = epochs
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit on the records (X, y), charging the ledger first; without ``y`` the schema's target is a column of X."""
        if self.schema is not None:
            return self._fit_table(X, y)
        if self.protected is not None:
            raise InvalidInput(f"protected is {self.protected!r} without a schema: expected one that declares it.")
        return self._fit_images(X, y) if is_images(X) else self._fit_array(X, y)

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each class; post-processing of what was released."""
        check_is_fitted(self)
        logits = products(self._rows(X), self.coef_)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))[:, : self.classes_.size]
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row."""
        check_is_fitted(self)
        return np.asarray(self.classes_[np.argmax(self.predict_proba(X), axis=1)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of records whose class is predicted, exactly: for records that are public, and no others.

        Nothing is charged. scikit-learn's searches and cross-validation call this, so they are for public records too.
        """
        check_is_fitted(self)
        right = np.argmax(self.predict_proba(X), axis=1) == self._codes(y)
        return float(np.average(right, weights=sample_weight))

    def private_score(
        self, X: Any, y: Any, *, epsilon: float, delta: float | None = None, ledger: Any = None
    ) -> RegressionScore:
        """Noisy figures of private records, for an (epsilon, delta) of their own.

        Without a ``delta`` it is that of the fit. Charged to ``ledger``, or to the estimator's where none is given:
        figures of records that the model was fitted to add to what the fit cost.
        """
        check_is_fitted(self)
        probabilities, target = self.predict_proba(X), self._codes(y)
        if len(target) != len(probabilities):
            raise InvalidInput("X and y have inconsistent numbers of records: expected one label a record.")
        budget = Budget(epsilon, self.privacy_.budget.delta if delta is None else delta)
        sigma, noise = 1 / gdp_mu(budget), noise_of(self.random_state)
        stages, book = [Stage("private score", counts_event(sigma))], self.ledger if ledger is None else ledger
        charged = commit_stages(stages, budget, ledger=book, noise=noise, unprotected=("running time",))
        with charged as (run, costs), run.stage("private score") as receipt:
            layout = Layout(Labels(self.classes_, target).names)
            if probabilities.shape[1] < len(layout.classes):
                probabilities = np.column_stack([probabilities, np.zeros(len(probabilities))])
            scored = Scored(target, probabilities)
            counts = noisy_counts(scored, layout, noise_multiplier=sigma, receipt=receipt, noise=noise)
        return RegressionScore(scores(counts), costs[0])

    def report(self, path: str | Path) -> Path:
        """Write the report of the fit, one HTML page; it costs nothing."""
        check_is_fitted(self)
        record: FitRecord = self.record_
        return record.write_report(path)

    def _fit_table(self, X: Any, y: Any) -> Self:
        if self.classes is not None:
            raise InvalidInput("classes are given beside a schema: expected None, as the schema declares the target's.")
        table = join_target(X, y, self.schema)
        fitted = self._autopilot(table, self.schema, Frame.of(table).length, protected=self.protected)
        columns = fitted.encoder.schema.features
        self.feature_names_in_ = np.asarray([column.name for column in columns], dtype=object)
        self.n_features_in_ = len(columns)
        self.classes_ = np.asarray(fitted.encoder.schema.target.categories, dtype=object)
        self.encoder_: Encoder | None = fitted.encoder
        return self._keep(fitted.result)

    def _fit_array(self, X: Any, y: Any) -> Self:
        values, labels = features_and_target(self, X, y)
        known, unprotected = self._labels(labels)
        schema = array_schema(values.shape[1], len(known.names))
        table, names = array_frame(values, known.cells()), known.names
        fitted = self._autopilot(table, schema, len(values), class_names=names, unprotected=unprotected)
        self.classes_, self.encoder_ = known.classes, fitted.encoder
        return self._keep(fitted.result)

    def _fit_images(self, X: Any, y: Any) -> Self:
        known, unprotected = self._labels(target_cells(y))
        labels = np.nan_to_num(known.codes, nan=-1.0)
        options = AutopilotOptions(self.objective, epochs=self.epochs)  # refused before the features are computed
        budget, arguments = self._budget(len(X)), self._fit_arguments(len(X))
        result = autopilot(
            scattered(X, labels, len(known.names)),
            budget=budget,
            class_names=known.names,
            objective=options.objective,
            epochs=options.epochs,
            unprotected=unprotected,
            **arguments,
        )
        self.classes_, self.encoder_, self.shape_ = known.classes, None, tuple(X.shape[1:])
        return self._keep(result)

    def _labels(self, labels: NDArray[Any]) -> tuple[Labels, tuple[str, ...]]:
        classes, unprotected = resolve_classes(self.classes, labels)
        return Labels(classes, codes(labels, classes)), unprotected

    def _budget(self, length: int) -> Budget:
        """The total for so many records, if their number is public."""
        size = resolve_size(self.size, max(length, 1))
        return Budget.of_size(self.epsilon, self.delta, size, allow_large_delta=self.allow_large_delta)

    def _autopilot(self, table: Any, schema: Any, length: int, **more: Any) -> TableResult:
        return autopilot_table(
            table,
            schema,
            epsilon=self.epsilon,
            delta=self.delta,
            allow_large_delta=self.allow_large_delta,
            options=AutopilotOptions(self.objective, epochs=self.epochs),
            **self._fit_arguments(length),
            **more,
        )

    def _fit_arguments(self, length: int) -> dict[str, Any]:
        """The arguments of every kind of fit."""
        noise = noise_of(self.random_state)
        seed = int(noise.state.generator("autopilot").integers(2**31)) if isinstance(noise, KeyedNoise) else None
        return {
            "size": self.size,
            "ledger": None if self.ledger is None else as_ledger(self.ledger, self._budget(length)),
            "device": self.device,
            "test_seed": seed,
        }

    def _keep(self, result: AutopilotResult) -> Self:
        tuned = result.tuned
        self.coef_ = result.model.double().cpu().numpy()
        self.record_ = result.record
        self.metrics_ = Figures(result.metrics)
        self.privacy_ = Privacy(tuned.budget, tuned.spent, tuned.entries, tuned.unprotected, " ".join(tuned.stamps))
        return self

    def _rows(self, X: Any) -> Floats:
        if self.encoder_ is None:
            if tuple(np.shape(X)[1:]) != self.shape_:
                raise InvalidInput(f"images have the shape {np.shape(X)[1:]}: expected {self.shape_}, as fitted.")
            return np.asarray(scattered(X, np.zeros(len(X)), 2).values.double().numpy())
        return unit_rows(self.encoder_, X if self.schema is not None else array_frame(features(self, X)))

    def _codes(self, y: Any) -> Floats:
        if self.schema is not None:
            return schema_codes(y, self.schema)
        return codes(target_cells(y), self.classes_)

    def __sklearn_tags__(self) -> Any:
        tags = loose(super().__sklearn_tags__())
        tags.classifier_tags.poor_score = True
        return tags
