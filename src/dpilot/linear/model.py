"""A fitted linear model in the units of the data: released values, and predictions from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.standardise import Scaling
from dpilot.numerics.products import products

__all__ = ["LinearModel", "inside"]


def inside(values: Floats, center: Floats, lower: Floats, upper: Floats) -> Floats:
    """Features pulled into the released intervals; nan becomes the centre.

    >>> inside(np.array([[np.nan, 9.0]]), np.array([1.0, 2.0]), np.zeros(2), np.full(2, 4.0)).tolist()
    [[1.0, 4.0]]
    """
    return np.asarray(np.clip(np.where(np.isnan(values), center, values), lower, upper))


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Released: coefficients, and the intervals that features and predictions are pulled into."""

    coef: Floats
    intercept: float
    center: Floats
    scale: Floats
    lower: Floats
    upper: Floats
    target_center: float
    target_width: float
    target_range: tuple[float, float]

    @classmethod
    def of(cls, theta: Floats, scaling: Scaling, *, intercept: bool) -> LinearModel:
        """Standardised coefficients in the units of the data."""
        center, scale = scaling.center[:-1], scaling.scale[:-1]
        middle, width = float(scaling.center[-1]), float(scaling.scale[-1])
        coef = theta[: center.size] * width / scale
        offset = float(theta[-1] * width + middle - float(coef @ center)) if intercept else 0.0
        ends = scaling.lower[:-1], scaling.upper[:-1]
        return cls(coef, offset, center, scale, *ends, middle, width, scaling.target_range)

    def predict(self, values: Floats) -> Floats:
        """A prediction for each row, inside the range of the target."""
        features = inside(values, self.center, self.lower, self.upper)
        return np.asarray(np.clip(products(features, self.coef) + self.intercept, *self.target_range))

    def state(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Plain data and arrays that make it up."""
        fields = asdict(self)
        arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
        return {name: value for name, value in fields.items() if name not in arrays}, arrays

    @classmethod
    def of_state(cls, plain: Mapping[str, Any], arrays: Mapping[str, Floats]) -> LinearModel:
        """What ``state`` was given of."""
        low, high = plain["target_range"]
        return cls(**{**plain, "target_range": (low, high), **arrays})
