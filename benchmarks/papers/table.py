"""A table: entries in rows and columns, each with a grid to choose from, and fresh seeds.

An entry of several candidates is measured as the papers do it: the grid once, with a seed of its own, then the best of
it (by test figures: an oracle, which is not paid) with fresh seeds. An entry of one candidate has nothing to choose.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scipy.stats import t as student

from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Figures, Lines, measured

SELECTION = 0
SEEDS = (1, 2, 3)
ENOUGH = 3
"""Seeds that a cell needs in which a claim is decided."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One place of a table. ``figures`` are shown; the first of them decides what is chosen.

    ``largest``: whether a larger figure is better. ``decides``: whether the table's claim rests on it. ``paid``:
    whether everything that touched the records is inside epsilon, tuning included.
    """

    row: str
    column: str
    grid: tuple[Cell, ...]
    figures: tuple[str, ...] = ("accuracy",)
    seeds: tuple[int, ...] = SEEDS
    largest: bool = True
    decides: bool = True
    paid: bool = False

    def chosen(self, lines: Lines) -> Cell | None:
        """The candidate of the best figure on the seed of selection; None as long as one of them is missing."""
        if len(self.grid) == 1:
            return self.grid[0]
        tried = [cell.at(SELECTION) for cell in self.grid]
        if not all(cell.key in lines for cell in tried):
            return None
        pick = max if self.largest else min
        return pick(tried, key=lambda cell: self._value(lines[cell.key], self.figures[0]))

    def cells(self, lines: Lines) -> list[Cell]:
        """What can be measured now: the grid, and what follows from it."""
        chosen = self.chosen(lines)
        grid = [cell.at(SELECTION) for cell in self.grid] if len(self.grid) > 1 else []
        return grid + ([chosen.at(seed) for seed in self.seeds] if chosen else [])

    def found(self, lines: Lines) -> list[Figures]:
        """The figures of the fresh seeds."""
        chosen = self.chosen(lines)
        return measured([chosen.at(seed) for seed in self.seeds], lines) if chosen else []

    def values(self, lines: Lines, figure: str | None = None) -> list[float]:
        return [self._value(each, figure or self.figures[0]) for each in self.found(lines)]

    def mean(self, lines: Lines, figure: str | None = None) -> float:
        """nan where nothing is measured."""
        found = self.values(lines, figure)
        return statistics.fmean(found) if found else math.nan

    def smallest(self) -> Cell:
        """The least that shows that the entry can be measured; never a figure of a table."""
        return self.grid[0].of(quick=True)

    def _value(self, figures: Figures, name: str) -> float:
        """A figure; the worst there is where a run came to no number."""
        value = figures.get(name)
        return float(value) if value is not None and math.isfinite(value) else (-math.inf if self.largest else math.inf)


@dataclass(frozen=True, slots=True)
class Table:
    """The entries of a table, and how it is read; what is said of it is in tables.toml, what is printed in printed.csv.

    ``verdict`` says what the lines decide, once there are enough of them; ``digits`` and ``scale`` are how figures are
    written.
    """

    name: str
    entries: tuple[Entry, ...]
    verdict: Callable[[Table, Lines], str]
    scale: float = 100.0
    digits: int = 2

    def cells(self, lines: Lines) -> list[Cell]:
        return [cell for entry in self.entries for cell in entry.cells(lines)]

    def only(self, rows: Sequence[str]) -> Table:
        """The table of the rows whose names begin so; all of them where none is named."""
        kept = [entry for entry in self.entries if not rows or any(entry.row.startswith(each) for each in rows)]
        return replace(self, entries=tuple(kept))

    def quick(self) -> list[Cell]:
        """Its smallest honest form: one cell of each method of the first row."""
        first = {entry.grid[0].method: entry.smallest() for entry in self.entries if entry.row == self.entries[0].row}
        return list(first.values())

    def rows(self) -> list[str]:
        return list(dict.fromkeys(entry.row for entry in self.entries))

    def columns(self) -> list[str]:
        return list(dict.fromkeys(entry.column for entry in self.entries))

    def entry(self, row: str, column: str) -> Entry | None:
        return next((each for each in self.entries if (each.row, each.column) == (row, column)), None)

    def mean(self, row: str, column: str, lines: Lines, figure: str | None = None) -> float:
        """nan where there is no such entry, or nothing measured."""
        entry = self.entry(row, column)
        return math.nan if entry is None else entry.mean(lines, figure)

    def means(self, row: str, lines: Lines, *, deciding: bool = True) -> dict[str, float]:
        """The means of a row's entries, or of those that decide, by column."""
        chosen = [entry for entry in self.entries if entry.row == row and (entry.decides or not deciding)]
        return {entry.column: entry.mean(lines) for entry in chosen}

    def decided(self, row: str, lines: Lines) -> bool:
        """Whether every entry of the row that decides the claim has enough seeds."""
        deciding = [entry for entry in self.entries if entry.row == row and entry.decides]
        return bool(deciding) and all(len(entry.found(lines)) >= ENOUGH for entry in deciding)

    def decided_rows(self, lines: Lines) -> list[str]:
        return [row for row in self.rows() if self.decided(row, lines)]


def interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean (Student's t); nan of one value.

    >>> round(interval([1.0, 2.0, 3.0]), 2)
    2.48
    """
    if len(values) < 2:
        return math.nan
    return float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
