"""Days and times within a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.random import Generator

from dpilot.data import values
from dpilot.data.cells import Cells
from dpilot.data.reading import missing_keys
from dpilot.data.types.base import NULL, Block, CellState, Reading

if TYPE_CHECKING:
    from dpilot.data.column import Column

__all__ = ["Times"]

_DAY: Final = 86_400
_CYCLES: Final = ("month", "weekday", "hour")
_WAVES: Final = ("sine", "cosine")
_LENGTH: Final = np.sqrt(0.5)  # of a cycle's point: month and weekday together weigh as much as one category


@dataclass(frozen=True, slots=True)
class Times:
    """The place in the range, from -1 to 1, and where in the year, the week and (of times) the day it is, as cycles.

    ::

        place     2 (t - start) / (end - start) - 1
        a cycle   sqrt(1/2) (sin, cos) of 2 pi (month - 1) / 12, weekday / 7 (Monday is 0), hour / 24 (with its minutes)

    Edge cases:
        A date has no hours: a time of a day is that day. A time with a zone is read in UTC, one without as it is.
    """

    has_hours: bool
    domain: str = "range"
    example: str = '["2020-01-01", "2023-01-01"]'
    keys: tuple[str, ...] = ("range",)
    has_groups: bool = False
    is_target: bool = False
    is_unit: bool = False

    def settle(self, column: Column) -> dict[str, Any]:
        given: Any = column.range
        pair = list(given) if isinstance(given, list | tuple) else []
        found = [values.moment(each) for each in pair]
        known = [each for each in found if each is not None and np.isfinite(each)]
        if len(pair) != 2 or len(known) != 2 or not self._whole(known[0]) < self._whole(known[1]):
            said = "missing" if given is None else repr(given)
            column.refuse(f"range is {said}: expected its first and its last day or time, as {self.example}")
        return {"range": tuple(values.moment_text(each) for each in known)}

    def flaws(self, column: Column) -> tuple[CellState, ...]:
        return (CellState.MISSING, CellState.OUTSIDE, CellState.UNREADABLE)

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        absent = missing_keys(missing)
        read = np.fromiter((_seconds(cell, absent) for cell in cells.tolist()), np.float64, len(cells))
        states = np.zeros(read.shape, dtype=np.int8)
        states[np.isnan(read)] = CellState.MISSING
        states[np.isinf(read)] = CellState.UNREADABLE
        start, end = self._ends(column)
        read = self._whole(read)
        states[((read < start) | (read > end)) & np.isfinite(read)] = CellState.OUTSIDE
        return Reading(np.where(states == CellState.UNREADABLE, np.nan, np.clip(read, start, end)), states)

    def names(self, column: Column) -> list[str]:
        cycles = _CYCLES if self.has_hours else _CYCLES[:2]
        return [f"place of {column.name}", *(f"{wave} of {column.name}'s {each}" for each in cycles for wave in _WAVES)]

    def lowest(self, column: Column) -> list[float]:
        return [-1.0] * len(self.names(column))

    def fill(self, block: Block, values: Cells, column: Column) -> None:
        known = np.flatnonzero(~np.isnan(values))
        start, end = self._ends(column)
        seconds = values[known]
        block[known, 0] = np.clip((seconds - start) / (end - start) * 2 - 1, -1.0, 1.0)
        days = np.floor(seconds / _DAY).astype(np.int64)
        months = (days.astype("M8[D]").astype("M8[M]").astype(np.int64) % 12) / 12
        parts = [months, ((days + 3) % 7) / 7]  # 1 January 1970 was a Thursday
        parts += [(seconds - days * _DAY) / _DAY] if self.has_hours else []
        for place, part in enumerate(parts):
            block[known, 2 * place + 1] = _LENGTH * np.sin(2 * np.pi * part)
            block[known, 2 * place + 2] = _LENGTH * np.cos(2 * np.pi * part)

    def describe(self, column: Column) -> str:
        start, end = column.range or ("", "")
        what = "times" if self.has_hours else "days"
        return f"{what} from {start} to {end}: the place between them, and cycles of the year, the week" + (
            " and the day" if self.has_hours else ""
        )

    def describe_outside(self, column: Column) -> str:
        what = "time" if self.has_hours else "day"
        if column.outside == "clamp":
            return f"Beyond them: put on the nearest one; no {what}: {NULL}"
        return f"Beyond them, or no {what}: {NULL}"

    def invent(self, column: Column) -> dict[str, str]:
        start, end = self._ends(column)
        cells = {"the lower bound": start, "the upper bound": end, "below": start - _DAY, "above": end + _DAY}
        texts = {what: values.attempt(values.moment_text, each, otherwise="") for what, each in cells.items()}
        return {**texts, "no time": "a text"}  # no calendar holds what is beyond its first and last year

    def draw(self, column: Column, rows: int, rng: Generator) -> Any:
        return rng.uniform(*self._ends(column), size=rows).astype("M8[s]")

    def _ends(self, column: Column) -> tuple[float, float]:
        start, end = (values.moment(each) for each in column.range or ("", ""))
        assert start is not None
        assert end is not None
        return float(self._whole(start)), float(self._whole(end))

    def _whole(self, seconds: Any) -> Any:
        """A date is its day, from the first second on."""
        return seconds if self.has_hours else np.floor(np.asarray(seconds) / _DAY) * _DAY


def _seconds(cell: Any, absent: set[str]) -> float:
    """Seconds from 1970 on, nan where it is missing, an infinity where it is no time."""
    if values.key(cell) in absent:
        return np.nan
    found = values.moment(cell)
    return np.inf if found is None else found
