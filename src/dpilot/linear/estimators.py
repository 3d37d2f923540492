"""scikit-learn estimators for private least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.linear.fitting import Fitted, fit_rows
from dpilot.linear.inputs import features, features_and_target, loose, numbers, unit_ids, without_unit
from dpilot.linear.methods import METHODS
from dpilot.linear.model import LinearModel
from dpilot.linear.parameters import PrivateEstimator
from dpilot.linear.partitions import PartitionRows, Run
from dpilot.linear.rows import Rows
from dpilot.linear.solution import standard_errors
from dpilot.linear.streaming import group_parquet, parquet_rows
from dpilot.privacy.unit import RECORD, PrivacyUnit

__all__ = ["LinearRegression"]


@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegression(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Differentially private least squares that asks for no bounds.

    Columns and target are standardised by bought quantiles, inside declared ``bounds`` where there are some, or not at
    all (``bounds="standardised"``); then ``method`` fits. The total, scaling included, is (epsilon, delta).

    Guarantee:
        (epsilon, delta)-DP for adding or removing one record, everything stored on the estimator included; the number
        of records is published when ``size="public"``. ``privacy_`` lists every entry. With ``ledger`` a path, each
        fit is charged there before a record is read, or refused with BudgetExceeded.
        With ``unit="patient_id"`` the same for one such unit with all its rows, of which at most ``rows_per_unit``
        count, and ``size`` is the number of units. A unit counts as the mean of its rows in moments and steps, and by
        one row of it, drawn uniformly, in all else.

    Released beside ``coef_`` and ``intercept_``: ``coef_std_``, standard errors that count sampling and privacy noise
    (None where the method gives none), and ``choice_``, what "auto" settled for.

    Edge cases:
        ``delta`` None is min(1e-5, 1/(10 size)), or 1e-6 where the size is bought (``size="private"``); 1/size or more
        is refused unless ``allow_large_delta``. ``privacy_`` shows what was used.
        A record with a value that is no finite number is the null record: it is left out, silently.
        A row without an id is left out too; with ``missing_unit="row"`` it is a unit of its own.
        ``predict`` pulls features into the released intervals (``lower_``, ``upper_``; nan becomes the centre) and
        predictions into ``target_range_``: a linear model on winsorised features, never far outside what was seen.
        ``random_state`` other than None fixes the noise, for tests: whoever knows it can take the noise off. It warns
        (PrivacyWarning), and ``privacy_.noise`` says so.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(20_000, 3)); y = X @ [1.0, 2.0, 3.0] + rng.normal(size=20_000)
        >>> model = LinearRegression(epsilon=1.0).fit(X, y)
        >>> bool(np.abs(model.coef_ - [1, 2, 3]).max() < 0.2), model.privacy_.spent.epsilon <= 1.0
        (True, True)
    """

    method: str = "auto"
    bounds: Any = None
    fit_intercept: bool = True

    def fit(self, X: Any, y: Any, *, units: Any = None) -> Self:
        """Fit on the records (X, y), charging the ledger first.

        With ``unit``, the ids are that column of a frame X, which is no feature, or ``units``, one for each row.
        """
        unit = self._unit(units=units)
        X, ids = unit_ids(X, unit, units)
        values, target = features_and_target(self, X, y, self.bounds)
        rows, length = self._rows(np.column_stack([values, numbers(target)]), ids, unit)
        return self._fit(rows, length=length, unit=unit)

    def fit_parquet(self, where: Any, target: str, unit: str | None = None) -> Self:
        """Fit on parquet files (a path, folder, pattern or list of them), streamed in constant memory.

        One pass for each scaling grid, two for the Gram matrix and its radius, one a step; noise is added to the sums.
        Ids are read in one pass more, from the column that ``unit``, here or on the estimator, names, by way of files
        without names (``streaming.group_parquet``).
        """
        whom = self._unit(unit)
        rows, length, names = parquet_rows(where, target, None if whom.is_record else whom.name)
        self.n_features_in_, self.feature_names_in_ = len(names), np.asarray(names, dtype=object)
        if whom.is_record:
            return self._fit(rows, length=length)
        grouped, count = group_parquet(rows, length, whom, self._unit_key())
        return self._fit(grouped, length=count, unit=whom)

    def fit_partitions(
        self, partitions: Sequence[Any], target: str, *, features: Sequence[str], run: Run = map
    ) -> Self:
        """Fit on a table in partitions: parquet files, frames (of polars, also lazy ones), or functions that give one.

        ``run(task, numbers)`` carries out ``task(number)`` for each partition, on threads or a cluster, and gives the
        results in any order: ``map``, ``ThreadPoolExecutor().map``, or with Dask
        ``lambda task, numbers: client.gather(client.map(task, numbers))``. The Gram pass goes through it.

        Guarantee:
            A partition counts once, however often its task ran (``linear.partitions``).
        """
        names = tuple(features)
        if target in names or not partitions:
            raise InvalidInput(f"target is {target!r}, features {names}: expected a target apart, and partitions.")
        if not self._unit().is_record:
            raise InvalidInput(f"unit is {self.unit!r}: rows of one may lie in two partitions. Use fit_parquet.")
        rows = PartitionRows(tuple(partitions), (*names, target), run)
        self.n_features_in_, self.feature_names_in_ = len(names), np.asarray(names, dtype=object)
        return self._fit(rows, length=rows.length() if self.size == "public" else 0)

    def predict(self, X: Any) -> Floats:
        """Predictions for each row, of a frame with or without ids; post-processing of what was released."""
        check_is_fitted(self)
        return self.model_.predict(features(self, without_unit(X, self.privacy_.unit)))

    def _fit(self, rows: Rows, *, length: int, unit: PrivacyUnit = RECORD) -> Self:
        count = rows.columns - 1
        problem, unprotected = self._problem(count, length, intercept=self.fit_intercept)
        method = METHODS[_validate.one_of(METHODS, method=self.method)]
        fitted = fit_rows(
            rows,
            problem,
            parse_bounds(self.bounds, count),
            method,
            ledger=self.ledger,
            random_state=self.random_state,
            unprotected=unprotected,
            unit=unit,
        )
        self._keep(fitted)
        return self

    def _keep(self, fitted: Fitted) -> None:
        """Store what was released, in the units of the data."""
        model = self.model_ = LinearModel.of(fitted.solution.theta, fitted.scaling, intercept=self.fit_intercept)
        self.coef_, self.intercept_ = model.coef, model.intercept
        self.center_, self.scale_, self.lower_, self.upper_ = model.center, model.scale, model.lower, model.upper
        self.target_range_ = model.target_range
        errors = standard_errors(fitted.solution, fitted.size)
        units = model.target_width / model.scale
        self.coef_std_ = None if errors is None else errors[: model.coef.size] * units
        self.choice_ = fitted.solution.choice
        self.privacy_ = fitted.privacy

    def __sklearn_tags__(self) -> Any:
        tags = loose(super().__sklearn_tags__())
        tags.regressor_tags.poor_score = True
        return tags
