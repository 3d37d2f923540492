"""Panda et al. 2024, a new linear scaling rule: r and accuracy against epsilon, Tables 2, 3, 11 and 15."""

from __future__ import annotations

import math

from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Lines
from benchmarks.papers.table import Entry, Table

FEATURES = "cifar-10/resnet-20"
WALKS = tuple(2.0**place for place in range(-7, 1))
SEEDS = (1, 2, 3, 4, 5)
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
WAYS = {
    "linear scaling, ours": "linear_scaling",
    "autopilot": "autopilot",
    "data-free default": "data-free",
    "random search, one run": "random",
}


def tables() -> list[Table]:
    return [comparison(), line(), cost(), laws()]


def head(method: str, epsilon: float = 1.0, **settings: object) -> Cell:
    return Cell(FEATURES, "head", method, epsilon, settings)


def oracle(data: str, epsilon: float) -> tuple[Cell, ...]:
    """The candidates of the oracle: r in proportion to mu n / C, as far as the box's steps allow."""
    return tuple(Cell(data, "head", "recipe", epsilon, {"walk": walk}) for walk in WALKS)


def comparison() -> Table:
    """Tables 2 and 3: the only row whose features are there."""
    row = "CIFAR-10, ResNet-20 of CIFAR-100, epsilon 1"
    theirs = head("paper", epsilons=[0.05, 0.1])
    entries = [Entry(row, "linear scaling, their constants", (theirs,), seeds=SEEDS, paid=True)]
    entries += [Entry(row, label, (head(method),), seeds=SEEDS, paid=True) for label, method in WAYS.items()]
    entries.append(Entry(row, "oracle", oracle(FEATURES, 1.0), seeds=SEEDS))
    entries.append(Entry(row, "not private", (head("not private"),), seeds=(1,), decides=False))
    return Table("2", tuple(entries), _reduction)


def _reduction(table: Table, lines: Lines) -> str:
    row = table.rows()[0]
    if not table.decided(row, lines):
        return "Not decided yet."
    means = table.means(row, lines)
    random = means["random search, one run"]
    share = (means["autopilot"] - random) / (means["oracle"] - random)
    return (
        f"Of the way from one random run to the oracle the autopilot goes {100 * share:.0f} per cent (their Table 3: "
        f"77.6 on CIFAR-10 without public data); it is {100 * (means['oracle'] - means['autopilot']):.2f} points below."
    )


def line() -> Table:
    """Figures 2 and 3: the oracle's r and accuracy by epsilon, one paid search, and the search made anew."""
    entries, figures = [], ("accuracy", "r")
    for epsilon in EPSILONS:
        row = f"epsilon {epsilon:g}"
        once = head("train_at", epsilon, searched=0.5)
        entries.append(Entry(row, "oracle", oracle(FEATURES, epsilon), figures))
        entries.append(Entry(row, "one search at 0.5, then train_at", (once,), figures, decides=False, paid=True))
        entries.append(Entry(row, "autopilot", (head("autopilot", epsilon),), figures, decides=False, paid=True))
    return Table("figures 2, 3", tuple(entries), _slope)


def _slope(table: Table, lines: Lines) -> str:
    """The exponent of r as a power of epsilon, by least squares in logarithms."""
    found = table.decided_rows(lines)
    if len(found) < 4:
        return "Not decided yet."
    points = [(math.log(float(row.split()[1])), math.log(table.mean(row, "oracle", lines, "r"))) for row in found]
    x, y = (sum(each) / len(points) for each in zip(*points, strict=True))
    slope = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return f"The oracle's r grows as epsilon to the power {slope:.2f} over {len(points)} budgets (linear: 1)."


def cost() -> Table:
    """Table 11: what the trials cost, by their budgets."""
    entries = [
        Entry(f"trials at {low:g} and {high:g}", "their way", (head("paper", epsilons=[low, high]),), paid=True)
        for low, high in ((0.01, 0.05), (0.05, 0.1), (0.05, 0.2), (0.1, 0.2), (0.2, 0.3))
    ]
    entries.append(Entry("oracle", "their way", oracle(FEATURES, 1.0)))
    return Table("11", tuple(entries), _cost)


def _cost(table: Table, lines: Lines) -> str:
    if len(table.decided_rows(lines)) < len(table.rows()):
        return "Not decided yet."
    top = table.mean("oracle", "their way", lines)
    gaps = [f"{100 * (top - entry.mean(lines)):.2f}" for entry in table.entries[:-1]]
    return f"Points below the oracle, from the smallest trials to the largest: {', '.join(gaps)}."


def laws() -> Table:
    """Table 15."""
    rows = {
        "linear in epsilon, two stages": head("paper", epsilons=[0.1, 0.2]),
        "linear, three stages": head("paper", epsilons=[0.05, 0.1, 0.2]),
        "quadratic, three stages": head("paper", epsilons=[0.05, 0.1, 0.2], degree=2),
    }
    entries = tuple(Entry(row, "their way", (cell,), paid=True) for row, cell in rows.items())
    return Table("15", entries, _law)


def _law(table: Table, lines: Lines) -> str:
    if len(table.decided_rows(lines)) < len(table.rows()):
        return "Not decided yet."
    means = {entry.row: entry.mean(lines) for entry in table.entries}
    apart = 100 * (max(means.values()) - min(means.values()))
    return f"Best: {max(means, key=lambda row: means[row])}; {apart:.2f} points apart."
