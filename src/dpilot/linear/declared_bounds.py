"""Declared bounds of columns, and the scaling that follows from what is declared and what is bought.

Bounds say where values can lie, not where they do: noise that goes with a width declared ten times too wide would hide
the column. So they are outer limits, and centre and width are bought inside them as they are without bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.linear.standardise import FAR, WINSOR, Scaling

__all__ = ["STANDARDISED", "DeclaredBounds", "parse_bounds"]

STANDARDISED = "standardised"
_NEAR = 0.1  # (1, 1000) is about magnitudes, which lie about 0; (18, 90) and (1990, 2020) are not
_LEAST_WIDTH = 1e-250  # a width that noise alone finds is as small as 2^-60 of it, and must not underflow
_FORM = (
    'expected None (bought), "standardised", or {"X": (lower, upper), "y": (lower, upper)}, each end a number or one a '
    "column, nan where it is to be bought"
)


@dataclass(frozen=True, slots=True)
class DeclaredBounds:
    """Lower and upper ends of each column, the target's last; nan where nothing is declared.

    ``scaled`` are the columns that their bounds scale, as indicators': nothing is bought for them.
    """

    lower: Floats
    upper: Floats
    scaled: NDArray[np.bool_]
    standardised: bool = False

    @property
    def missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.lower)

    def units(self, *, centred: bool) -> tuple[Floats, Floats]:
        """Where declared columns are measured from and in what, until a scaling is bought: public; else 0 and 1.

        >>> declared = parse_bounds({"X": ([-2.0, 18.0, 1.0], [8.0, 90.0, 1000.0])}, 3)
        >>> [each[:-1].tolist() for each in declared.units(centred=True)]
        [[0.0, 54.0, 0.0], [8.0, 36.0, 1000.0]]
        """
        origin, unit = np.zeros(self.lower.size), np.ones(self.lower.size)
        known = ~self.missing
        origin[known], unit[known] = _by_bounds(self.lower[known], self.upper[known], centred, near=_NEAR)
        return origin, unit

    def pull_in(self, values: Floats) -> Floats:
        """Values inside what is declared of their columns, row by row."""
        return np.asarray(np.clip(values, *self._limits()))

    def _limits(self) -> tuple[Floats, Floats]:
        missing = self.missing
        return np.where(missing, -np.inf, self.lower), np.where(missing, np.inf, self.upper)

    def scaling(self, center: Floats, scale: Floats, *, centred: bool) -> Scaling:
        """``scaled`` columns by their bounds, the others by the ``center`` and ``scale`` that were bought, both inside
        what is declared.

        A ``scaled`` interval that holds 0 is measured from 0, so that zeros (of one-hot columns) stay zeros.
        """
        low, high = self._limits()
        reach = np.append(np.full(self.lower.size - 1, WINSOR), FAR) * scale
        lower, upper = np.clip(center - reach, low, high), np.clip(center + reach, low, high)
        center, scale, known = center.copy(), scale.copy(), self.scaled
        if centred:
            center[-1] = np.clip(center[-1], low[-1], high[-1])
        center[known], scale[known] = _by_bounds(self.lower[known], self.upper[known], centred)
        if self.standardised:
            center[known], scale[known] = 0.0, 1.0
        lower[known], upper[known] = self.lower[known], self.upper[known]
        return Scaling(center, scale, lower, upper)


def parse_bounds(bounds: Any, features: int, *, target: bool = True) -> DeclaredBounds:
    """What ``bounds`` declares of ``features`` columns and, if there is a numeric one, the target.

    Without a numeric target (classes, a scaler) bounds scale their columns.

    >>> parse_bounds({"X": (0.0, [1.0, 9.0])}, 2).upper.tolist()
    [1.0, 9.0, nan]
    """
    if isinstance(bounds, DeclaredBounds):
        return bounds
    lower, upper = np.full(features + 1, np.nan), np.full(features + 1, np.nan)
    if bounds is None:
        return DeclaredBounds(lower, upper, np.zeros(features + 1, dtype=np.bool_))
    if isinstance(bounds, str) and bounds == STANDARDISED:
        reach = np.append(np.full(features, WINSOR), FAR)
        return DeclaredBounds(-reach, reach, np.ones(features + 1, dtype=np.bool_), standardised=True)
    if not isinstance(bounds, Mapping) or set(bounds) - {"X", "y"}:
        raise InvalidInput(f"bounds is {bounds!r}: {_FORM}.")
    lower[:-1], upper[:-1] = _ends(bounds.get("X"), features)
    if target:
        lower[-1:], upper[-1:] = _ends(bounds.get("y"), 1)
    return DeclaredBounds(lower, upper, ~np.isnan(lower) & (not target))


def _ends(pair: Any, columns: int) -> tuple[Floats, Floats]:
    if pair is None:
        return np.full(columns, np.nan), np.full(columns, np.nan)
    try:
        lower, upper = (np.broadcast_to(np.asarray(end, dtype=np.float64), (columns,)) for end in pair)
    except (TypeError, ValueError):
        raise InvalidInput(f"bounds has {pair!r} for {columns} columns: {_FORM}.") from None
    missing = np.isnan(lower) & np.isnan(upper)
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.all(missing | (np.isfinite(upper - lower) & (upper - lower >= _LEAST_WIDTH))):
            raise InvalidInput(
                f"bounds has {pair!r}: expected finite lower < upper, at least {_LEAST_WIDTH:g} apart, or nan for both."
            )
    return lower, upper


def _by_bounds(lower: Floats, upper: Floats, centred: bool, near: float = 0.0) -> tuple[Floats, Floats]:
    """From 0 where an interval holds 0, or has one end ``near`` it beside the other; else from its middle."""
    about_zero = (lower <= near * upper) & (upper >= near * lower) | (not centred)
    middle = np.where(about_zero, 0.0, (lower + upper) / 2)
    return middle, np.maximum(np.abs(lower - middle), np.abs(upper - middle))
