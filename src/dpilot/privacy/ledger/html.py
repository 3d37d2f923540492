"""The ledger as a small table for notebooks. Everything that anybody typed is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger.history import Entry

COLUMNS = ("row", "purpose", "part", "event", "epsilon", "delta", "state", "bound")


def table(name: str, dataset: str, budget: Budget, spent: Cost, entries: Sequence[Entry]) -> str:
    """One self-contained fragment: a caption with the total, a line for each entry."""
    caption = f"{name}: data set {dataset}, epsilon {spent.epsilon:.4g} of {budget.epsilon:g} at delta {budget.delta:g}"
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells(entry))}</tr>" for entry in entries)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def cells(entry: Entry) -> tuple[str, ...]:
    """An entry as the columns people read."""
    place = "all" if entry.part is None else f"{entry.part} of {entry.split}"
    cost = (f"{entry.cost.epsilon:.4g}", f"{entry.cost.delta:.3g}")
    return (f"{entry.seq}", entry.purpose, place, repr(entry.event), *cost, entry.state, entry.bound_used)
