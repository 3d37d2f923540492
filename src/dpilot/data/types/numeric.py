"""Numbers between bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.random import Generator

from dpilot.data import values
from dpilot.data.cells import Cells
from dpilot.data.reading import numbers
from dpilot.data.types.base import NULL, Block, CellState, Reading

if TYPE_CHECKING:
    from dpilot.data.column import Column

__all__ = ["Numeric"]


class Numeric:
    """One encoded column, 2 (x - lower) / (upper - lower) - 1, and 0 where missing."""

    domain: Final = "bounds"
    example: Final = "[0, 100]"
    keys: Final = ("bounds",)
    has_groups: Final = False
    is_target: Final = True
    is_unit: Final = False

    def settle(self, column: Column) -> dict[str, Any]:
        return {}

    def flaws(self, column: Column) -> tuple[CellState, ...]:
        outside = (CellState.OUTSIDE,) if isinstance(column.bounds, tuple) else ()
        return (CellState.MISSING, *outside, CellState.UNREADABLE)

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        read = numbers(cells, missing)
        states = np.zeros(read.shape, dtype=np.int8)
        states[np.isnan(read)] = CellState.MISSING
        states[np.isinf(read)] = CellState.UNREADABLE
        if isinstance(column.bounds, tuple):
            lower, upper = column.bounds
            states[((read < lower) | (read > upper)) & np.isfinite(read)] = CellState.OUTSIDE
            read = np.clip((np.clip(read, lower, upper) - lower) / (upper - lower) * 2 - 1, -1.0, 1.0)
        return Reading(np.where(states == CellState.UNREADABLE, np.nan, read), states)

    def names(self, column: Column) -> list[str]:
        return [column.name]

    def lowest(self, column: Column) -> list[float]:
        return [-1.0]

    def fill(self, block: Block, values: Cells, column: Column) -> None:
        block[:, 0] = np.nan_to_num(values)

    def describe(self, column: Column) -> str:
        if not isinstance(column.bounds, tuple):
            return "numbers, whose bounds are bought: private quantiles, paid from the budget"
        lower, upper = column.bounds
        return f"numbers from {lower:.12g} to {upper:.12g}"

    def describe_outside(self, column: Column) -> str:
        if column.outside == "clamp":
            return f"Beyond them: put on the nearest bound; no number: {NULL}"
        return f"Beyond them, or no number: {NULL}"

    def invent(self, column: Column) -> dict[str, str]:
        if not isinstance(column.bounds, tuple):
            return {"a number": "0", "no number": "a text"}
        lower, upper = column.bounds
        tenth = (upper - lower) / 10
        below, above = min(lower - tenth, np.nextafter(lower, -np.inf)), max(upper + tenth, np.nextafter(upper, np.inf))
        cells = {"the lower bound": lower, "the upper bound": upper, "below": below, "above": above}
        return {**{what: values.text(cell) or "" for what, cell in cells.items()}, "no number": "a text"}

    def draw(self, column: Column, rows: int, rng: Generator) -> Any:
        return rng.uniform(*(column.interval if isinstance(column.bounds, tuple) else (-1.0, 1.0)), size=rows)
