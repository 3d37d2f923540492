"""``AutoRegressor``: one call from a table to a regression, its cost and its noisy figures."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpilot._arrays import Floats
from dpilot.data.frames import Frame
from dpilot.errors import InvalidInput
from dpilot.fit.arrays import array_frame, column_names, join_target, number_schema, regression_schema
from dpilot.fit.estimators import AutoEstimator, PaidFigures, PrivateScore, check_schema, refuse_arguments
from dpilot.linear.inputs import features, features_and_target, loose, numbers, target_numbers, without_unit
from dpilot.linear.model import LinearModel
from dpilot.linear.problem import LinearProblem
from dpilot.linear.scoring import noisy_scores, score_event
from dpilot.privacy.budget import Budget

__all__ = ["AutoRegressor"]


class AutoRegressor(RegressorMixin, AutoEstimator):  # type: ignore[misc]
    """Private least squares from a table, with figures on records it was not fitted to, in one budget.

    Nine records in ten, by secret coins, go to ``LinearRegression(method="auto")``; the others give ``metrics_``, noisy
    R^2 and root mean squared error. A record is in one part only, so each part may cost the whole (epsilon, delta).

    ``X`` is a table of numbers, whose bounds are bought; or, with ``schema``, a frame whose columns it declares:
    numbers between their bounds (bought where it says "buy"), categories one-hot.

    Guarantee:
        (epsilon, delta)-DP for adding or removing one record (with ``unit``, one unit with all its rows, of which at
        most ``rows_per_unit`` count, 8 by default), everything stored on the estimator included; the number of records,
        or of units, is published when ``size="public"``. ``privacy_`` lists every entry. With ``ledger`` a path, each
        fit is charged there before a record is read, or refused with BudgetExceeded.

    Edge cases:
        ``delta`` None is min(1e-5, 1/(10 size)), or 1e-6 where the size is bought (``size="private"``); 1/size or more
        is refused unless ``allow_large_delta``. ``privacy_`` shows what was used.
        A record that the schema does not allow, or with a value that is no finite number, is the null record: silent.
        ``protected`` names a column of the schema that is kept from the model; if X has it, ``metrics_`` tell records,
        error and mean residual of each of its groups too. ``epochs`` and ``device`` are there for
        the likeness with AutoClassifier: there is nothing to set, and anything but None (or "cpu") is refused.
        ``score`` is exact, for records that are public; ``private_score`` buys noisy figures of private ones.
        ``stop_below``, ``checkpoint`` and ``health_`` are those of AutoClassifier.
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

    def fit(self, X: Any, y: Any, *, units: Any = None, **unknown: Any) -> Self:
        """Fit on the records (X, y), charging the ledger first; ``units`` as for AutoClassifier."""
        from dpilot.fit.learners.least_squares import LeastSquares

        refuse_arguments(unknown)
        table, schema = self._table(X, y, units)
        declared, source = self._declare(table, schema)
        result = self._fit_records(declared, source, learner=LeastSquares())  # whose coefficients it shows
        model: LinearModel = result.model.predictor.model  # type: ignore[attr-defined]
        self.model_, self.metrics_ = model, result.metrics
        self.encoder_ = result.model.reader if self.schema is not None else None
        self.coef_, self.intercept_, self.choice_ = model.coef, model.intercept, result.trained.details.choice
        return self

    def predict(self, X: Any) -> Floats:
        """Predictions for each row; post-processing of what was released."""
        check_is_fitted(self)
        model: LinearModel = self.model_
        return model.predict(self._values(X))

    @np.errstate(all="ignore")  # whatever the caller set: an underflow would reveal one record
    def private_score(
        self, X: Any, y: Any, *, epsilon: float, delta: float | None = None, ledger: Any = None, units: Any = None
    ) -> PrivateScore:
        """Noisy R^2 and root mean squared error of private records, for an (epsilon, delta) of its own.

        Without a ``delta`` it is that of the fit. It is charged to ``ledger``, or to the estimator's where none is
        given: scores on records that the model was fitted to add to what the fit cost.
        Where the model protects units, so do its figures: they are of one row of each, drawn in secret, whose ids are a
        column of X or ``units``, as for ``fit``.
        """
        check_is_fitted(self)
        values, model = self._values(X), self.model_
        scored = self._rows_to_score(X, units, values.shape[0])
        values, target = values[scored], target_numbers(y, values.shape[0])[scored]
        known = np.isfinite(values).all(axis=1) & np.isfinite(target)
        predicted = model.predict(values[known])

        def figures(budget: Budget) -> PaidFigures:
            problem = LinearProblem(values.shape[1], True, None, budget)
            reach: dict[str, Any] = {"center": model.target_center, "width": model.target_width, "problem": problem}
            release = partial(noisy_scores, target[known], predicted, **reach)
            return PaidFigures(score_event(problem), lambda receipt, noise: release(receipt=receipt, noise=noise))

        return self._score_privately(figures, epsilon, delta, ledger)

    def _table(self, X: Any, y: Any, units: Any) -> tuple[Any, Any]:
        """The records as a table, and its schema."""
        if self.schema is None:
            if self.protected is not None:
                raise InvalidInput(f"protected is {self.protected!r} without a schema: expected one that declares it.")
            X, ids = self._take_ids(X, units)
            values, target = features_and_target(self, X, y)
            schema = number_schema(column_names(self))
            return self._with_ids(array_frame(values, schema, numbers(target)), schema, ids)
        check_schema(self.schema)
        X, ids = self._take_ids(X, units)
        declared = self._without_ids(ids)
        schema = regression_schema(declared, X)
        if schema.target.type != "numeric":
            raise InvalidInput(
                f"target is {schema.target.name!r}, which is categorical: expected numbers. Use AutoClassifier."
            )
        table, schema = join_target(X, target_numbers(y, Frame.of(X).length), schema)
        self.feature_names_in_ = np.asarray([column.name for column in schema.features], dtype=object)
        self.n_features_in_ = self.feature_names_in_.size
        return self._with_ids(table, schema, ids)

    def _values(self, X: Any) -> Floats:
        if self.encoder_ is None:
            return features(self, without_unit(X, self.privacy_.unit))
        return np.asarray(self.encoder_.encode_features(X), dtype=np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = loose(super().__sklearn_tags__())
        tags.regressor_tags.poor_score = True
        return tags
