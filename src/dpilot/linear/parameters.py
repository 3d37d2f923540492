"""The parameters that all private estimators share."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from sklearn.base import BaseEstimator

from dpilot.linear.fitting import problem_of
from dpilot.linear.problem import LinearProblem

__all__ = ["PrivateEstimator"]


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """The budget of an estimator, where it is paid, and the noise of tests: fields are scikit-learn's parameters.

    Each estimator adds its own. As scikit-learn asks, nothing is checked before ``fit``.
    """

    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    size: str | int = "public"
    unit: str | None = None
    rows_per_unit: int | None = None
    missing_unit: str = "null"
    ledger: Any = None
    allow_large_delta: bool = False
    random_state: Any = None

    def _problem(self, features: int, length: int, *, intercept: bool) -> tuple[LinearProblem, tuple[str, ...]]:
        """The problem that the parameters declare, and what they leave unprotected."""
        return problem_of(
            self.epsilon,
            self.delta,
            features=features,
            intercept=intercept,
            size=self.size,
            length=length,
            allow_large_delta=self.allow_large_delta,
            ledger=self.ledger,
        )
