"""Declared bounds of columns, and the scaling that follows from what is declared and what is bought."""

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
_FORM = (
    'expected None (bought), "standardised", or {"X": (lower, upper), "y": (lower, upper)}, each end a number or one a '
    "column, nan where it is to be bought"
)


@dataclass(frozen=True, slots=True)
class DeclaredBounds:
    """Lower and upper ends of each column, the target's last; nan where they are to be bought."""

    lower: Floats
    upper: Floats
    standardised: bool = False

    @property
    def missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.lower)

    def scaling(self, center: Floats, scale: Floats, *, centred: bool) -> Scaling:
        """Declared columns by their bounds, the others by the ``center`` and ``scale`` that were bought.

        A declared interval that holds 0 is measured from 0, so that zeros (of one-hot columns) stay zeros.
        """
        reach = np.full(self.lower.size, WINSOR)
        reach[-1] = FAR
        lower, upper = center - reach * scale, center + reach * scale
        known = ~self.missing
        middle, width = _by_bounds(self.lower[known], self.upper[known], centred)
        if self.standardised:
            middle, width = np.zeros(known.sum()), np.ones(known.sum())
        elif known[-1]:  # the target fills its interval by about two widths on either side
            width[-1] = (self.upper[-1] - self.lower[-1]) / 4
            middle[-1] = (self.upper[-1] + self.lower[-1]) / 2 if centred else 0.0
        center, scale = center.copy(), scale.copy()
        center[known], scale[known] = middle, width
        lower[known], upper[known] = self.lower[known], self.upper[known]
        return Scaling(center, scale, lower, upper)


def parse_bounds(bounds: Any, features: int, *, target: bool = True) -> DeclaredBounds:
    """What ``bounds`` declares of ``features`` columns and, if there is a numeric one, the target.

    >>> parse_bounds({"X": (0.0, [1.0, 9.0])}, 2).upper.tolist()
    [1.0, 9.0, nan]
    """
    lower, upper = np.full(features + 1, np.nan), np.full(features + 1, np.nan)
    if bounds is None:
        return DeclaredBounds(lower, upper)
    if isinstance(bounds, str) and bounds == STANDARDISED:
        reach = np.append(np.full(features, WINSOR), FAR)
        return DeclaredBounds(-reach, reach, standardised=True)
    if not isinstance(bounds, Mapping) or set(bounds) - {"X", "y"}:
        raise InvalidInput(f"bounds is {bounds!r}: {_FORM}.")
    lower[:-1], upper[:-1] = _ends(bounds.get("X"), features)
    if target:
        lower[-1:], upper[-1:] = _ends(bounds.get("y"), 1)
    return DeclaredBounds(lower, upper)


def _ends(pair: Any, columns: int) -> tuple[Floats, Floats]:
    if pair is None:
        return np.full(columns, np.nan), np.full(columns, np.nan)
    try:
        lower, upper = (np.broadcast_to(np.asarray(end, dtype=np.float64), (columns,)) for end in pair)
    except (TypeError, ValueError):
        raise InvalidInput(f"bounds has {pair!r} for {columns} columns: {_FORM}.") from None
    missing = np.isnan(lower) & np.isnan(upper)
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.all(missing | (np.isfinite(upper - lower) & (lower < upper))):
            raise InvalidInput(f"bounds has {pair!r}: expected finite lower < upper, or nan for both.")
    return lower, upper


def _by_bounds(lower: Floats, upper: Floats, centred: bool) -> tuple[Floats, Floats]:
    about_zero = (lower <= 0) & (upper >= 0) | (not centred)
    middle = np.where(about_zero, 0.0, (lower + upper) / 2)
    return middle, np.maximum(np.abs(lower - middle), np.abs(upper - middle))
