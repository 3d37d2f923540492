"""A private standard scaler, as a transformer for pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpilot._arrays import Floats
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.linear.fitting import noise_of, size_of
from dpilot.linear.inputs import features, loose, training_features, unit_ids, without_unit
from dpilot.linear.parameters import PrivateEstimator
from dpilot.linear.problem import commit_stages
from dpilot.linear.standardise import buy_scaling, plan_scaling
from dpilot.privacy.ledger import Stage

__all__ = ["PrivateStandardScaler"]


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateStandardScaler(OneToOneFeatureMixin, TransformerMixin, PrivateEstimator):  # type: ignore[misc]
    """Centre and scale columns by bought quartiles, and pull far values in: what StandardScaler does, paid for.

    The budget is the scaler's own: an estimator behind it in a pipeline spends another, and the two add up (give both
    the same ledger). The estimators of this package scale inside their own budget, and need no scaler.

    Guarantee:
        (epsilon, delta)-DP for adding or removing one record, or with ``unit`` one unit with all its rows, which counts
        by one of them, drawn uniformly; the number of records, or of units, is published when size is "public".

    Edge cases:
        ``delta`` None is min(1e-5, 1/(10 size)), as in the estimators of this package.
        Missing values stay missing. A record with any value that is no finite number is the null record when fitting.

    Example:
        >>> X = np.random.default_rng(0).normal(5.0, 100.0, size=(10_000, 2))
        >>> Z = PrivateStandardScaler(epsilon=1.0).fit_transform(X)
        >>> bool(np.abs(Z.mean(axis=0)).max() < 0.5 and np.abs(Z.std(axis=0) - 1).max() < 0.5)
        True
    """

    bounds: Any = None

    def fit(self, X: Any, y: Any = None, *, units: Any = None) -> Self:
        """Buy centre and width of every column that is not declared; ``units`` as in ``LinearRegression.fit``."""
        del y  # a scaler does not look at targets
        unit = self._unit(units=units)
        X, ids = unit_ids(X, unit, units)
        values = training_features(self, X, self.bounds)
        count = values.shape[1]
        known = parse_bounds(self.bounds, count, target=False)
        rows, length = self._rows(values, ids, unit)
        problem, unprotected = self._problem(count, length, intercept=True)
        wanted = known.missing[:-1]
        plan = plan_scaling(problem, int(wanted.sum()), whole=True)
        sized, stages = size_of(problem)
        if plan:
            stages["scale"] = plan.event
        center, scale = np.zeros(count + 1), np.ones(count + 1)
        noise = noise_of(self.random_state)
        self.privacy_ = None
        if stages:
            priced = [Stage(name, event) for name, event in stages.items()]
            charged = commit_stages(
                priced, problem.budget, ledger=self.ledger, noise=noise, unprotected=unprotected, unit=unit
            )
            with charged as (run, costs):
                size = sized(rows, run)
                if plan:
                    with run.stage("scale") as receipt:
                        asked = rows.map(lambda table: table[:, wanted], int(wanted.sum()))
                        found = buy_scaling(asked, plan, size=size, target=False, receipt=receipt, noise=run.noise)
                    center[:-1][wanted], scale[:-1][wanted] = found
            self.privacy_ = costs[0]
        scaling = known.scaling(center, scale, centred=True)
        self.center_, self.scale_ = scaling.center[:-1], scaling.scale[:-1]
        self.lower_, self.upper_ = scaling.lower[:-1], scaling.upper[:-1]
        return self

    @np.errstate(all="ignore")  # whatever the caller set: an underflow would reveal one record
    def transform(self, X: Any) -> Floats:
        """Values pulled into their interval, measured from the centre in widths; ids are left out."""
        check_is_fitted(self)
        X = without_unit(X, self._unit())
        return np.asarray((np.clip(features(self, X), self.lower_, self.upper_) - self.center_) / self.scale_)

    def inverse_transform(self, X: Any) -> Floats:
        """Back to the units of the data; what was pulled in stays there."""
        check_is_fitted(self)
        return np.asarray(np.asarray(X, dtype=np.float64) * self.scale_ + self.center_)

    def __sklearn_tags__(self) -> Any:
        return loose(super().__sklearn_tags__())
