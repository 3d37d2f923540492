"""Provan, tuning private linear regression: Tables 1 to 3, Figure 1, and the streaming form of section 7."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Lines
from benchmarks.papers.table import Entry, Table

SEEDS = tuple(range(20))
SIZES = {"1": (50, (2_000, 5_000, 10_000)), "3": (100, (5_000, 10_000, 20_000)), "d10": (10, (500, 1_000, 2_000))}
HIS: dict[str, tuple[str, dict[str, Any]]] = {
    "DP-SGD (Opt C)": ("mini-batch", {"quantile": 0.75}),
    "DP-SGD C=0.1": ("mini-batch", {"threshold": 0.1}),
    "DP-SGD C=1": ("mini-batch", {"threshold": 1.0}),
    "DP-SGD C=10": ("mini-batch", {"threshold": 10.0}),
    "SSP": ("ssp", {"bounds": "standardised"}),
    "AdaClip": ("mini-batch, searched", {"share": 0.1}),
    "BSGS": ("bsgs", {"bounds": "standardised"}),
}
PAID = ("dpgd, nothing declared", "auto, nothing declared")
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed C=1, full batches": ("fixed, 1", {"bounds": "standardised"}),
    "dpgd, bounds declared": ("dpgd", {"bounds": "standardised"}),
    "dpgd, nothing declared": ("dpgd", {}),
    "auto, nothing declared": ("auto", {}),
    "not private": ("least squares", {}),
}
STREAMS = {"one search at the start": "once", "a search in every block": "every", "followed in every step": "follow"}


def tables() -> list[Table]:
    return [*map(errors, SIZES), splits(), curve(), stream()]


def _entry(
    row: str, column: str, cell: Cell, figures: tuple[str, ...] = ("error",), decides: bool = True, paid: bool = False
) -> Entry:
    return Entry(row, column, (cell,), figures, SEEDS, largest=False, decides=decides, paid=paid)


def _cell(method: str, settings: dict[str, Any], d: int = 50, n: int = 5_000) -> Cell:
    return Cell(f"d={d}, n={n}", "least-squares", method, 1.0, settings)


def errors(name: str) -> Table:
    """Tables 1 and 3, and the setting of which he prints none."""
    d, sizes = SIZES[name]
    entries = tuple(
        _entry(f"n = {n:,}", label, _cell(*how, d, n), decides=label in HIS, paid=label in PAID)
        for n in sizes
        for label, how in (HIS | OURS).items()
    )
    return Table(name, entries, _order, scale=1.0, digits=4)


def _order(table: Table, lines: Lines) -> str:
    said = []
    for row in table.decided_rows(lines):
        his = table.means(row, lines)
        least = min(his, key=lambda label: his[label])
        ours = min(table.mean(row, label, lines) for label in PAID)
        said.append(
            f"{row}: best of his {least} ({his[least]:.4f}), AdaClip {his['AdaClip']:.4f}; ours, all paid, {ours:.4f}"
        )
    return "; ".join(said) + "." if said else "No row is decided yet."


def splits() -> Table:
    """Table 2."""
    entries = tuple(
        _entry(f"f = {share:g}", "AdaClip", _cell("mini-batch, searched", {"share": share}), ("error", "threshold"))
        for share in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
    )
    return Table("2", entries, _least, scale=1.0, digits=4)


def curve() -> Table:
    """Figure 1."""
    entries = tuple(
        replace(
            _entry(f"C = {threshold:g}", "his baseline", _cell("mini-batch", {"threshold": threshold})), seeds=SEEDS[:5]
        )
        for threshold in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
    )
    return Table("figure 1", entries, _least, scale=1.0, digits=4)


def _least(table: Table, lines: Lines) -> str:
    found = {entry.row: entry.mean(lines) for entry in table.entries if entry.found(lines)}
    if len(found) < len(table.entries):
        return "Not decided yet."
    return f"The least error is at {min(found, key=lambda row: found[row])}."


def stream() -> Table:
    """The question of section 7: one search, a search in every block, or following."""
    entries = tuple(
        _entry(
            f"epsilon {epsilon:g}",
            label,
            Cell("drift, d=20, n=20000", "least-squares", method, epsilon),
            ("error", "before", "after"),
        )
        for epsilon in (1.0, 0.3)
        for label, method in STREAMS.items()
    )
    return Table("stream", entries, _after, scale=1.0, digits=4)


def _after(table: Table, lines: Lines) -> str:
    said = []
    for row in table.decided_rows(lines):
        means = {label: table.mean(row, label, lines, "after") for label in STREAMS}
        said.append(f"{row}: four blocks after the change {min(means, key=lambda label: means[label])} is best")
    return "; ".join(said) + "." if said else "Not decided yet."
