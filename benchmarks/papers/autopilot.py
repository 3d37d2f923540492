"""The autopilot on every task of linear heads that is measured here, beside the oracle and the data-free default."""

from __future__ import annotations

import math

from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Lines
from benchmarks.papers.panda import SEEDS, oracle
from benchmarks.papers.table import Entry, Table, interval

TASKS = (
    ("adult", (1.0, 0.1, 0.5, 3.0)),
    ("dutch", (1.0, 0.1, 0.5, 3.0)),
    ("cifar-10/resnet-20", (1.0, 0.5, 3.0, 8.0)),
)
ORACLE, OURS = "oracle", "autopilot, paid"


def tables() -> list[Table]:
    return [gaps()]


def gaps() -> Table:
    entries = []
    for data, epsilons in TASKS:
        for epsilon in epsilons:
            row = f"{data}, {epsilon:g}"
            ours = Cell(data, "head", "autopilot", epsilon, {"tuning_share": 0.05})
            free = Cell(data, "head", "data-free", epsilon)
            entries.append(Entry(row, ORACLE, oracle(data, epsilon), seeds=SEEDS))
            entries.append(Entry(row, OURS, (ours,), ("accuracy", "tuning"), seeds=SEEDS, paid=True))
            entries.append(Entry(row, "data-free default, paid", (free,), seeds=SEEDS, paid=True))
    return Table("gaps", tuple(entries), _within)


def _within(table: Table, lines: Lines) -> str:
    uppers = {row: gap(table, row, lines) for row in table.decided_rows(lines)}
    if not uppers:
        return "No row is decided yet."
    good = sum(upper <= 1 for _, upper in uppers.values())
    said = "; ".join(f"{row} {mean:+.2f} ({upper:.2f})" for row, (mean, upper) in uppers.items())
    return (
        f"The upper limit of the gap is at most one point on {good} of {len(uppers)} tasks. Gap (upper limit): {said}."
    )


def gap(table: Table, row: str, lines: Lines) -> tuple[float, float]:
    """Points below the oracle, and the upper 95 % limit of that."""
    entries = [table.entry(row, column) for column in (ORACLE, OURS)]
    theirs, ours = (entry.values(lines) if entry else [] for entry in entries)
    mean = sum(theirs) / len(theirs) - sum(ours) / len(ours)
    return 100 * mean, 100 * (mean + math.hypot(interval(ours), interval(theirs)))
