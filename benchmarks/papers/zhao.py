"""Zhao et al. 2026, bounded adaptive clipping: Tables A5 and A6, and whether the unbounded rule collapses."""

from __future__ import annotations

from typing import Any

from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Lines
from benchmarks.papers.table import Entry, Table

Settings = dict[str, Any]

TAU = {"tau": 2.5}
BOUNDED, CONSTANT, UNBOUNDED, PLAIN = "Bounded Adaptive", "Constant", "Unbounded Adaptive", "non-private"
PAID = "data-free default, paid"
UNITS: Settings = {"momentum": 0.0, "normalized": True}
"""Plain SGD in units of the threshold, as their code has it."""
BY_CLASS = ("macro", "worst")
BY_GROUP = ("accuracy", "female", "male", "parity")
PEOPLE = (1, 2, 3, 4, 5)


def tables() -> list[Table]:
    return [pictures(), people(), collapse(), landscape(), groups()]


def rules(bounds: tuple[float, ...]) -> dict[str, tuple[str, list[Settings]]]:
    """Each algorithm's rule, and the clipping settings to choose from."""
    return {
        BOUNDED: ("bounded", [{**TAU, "floor": bound} for bound in bounds]),
        "Fix-Bounded (0.1)": ("bounded", [{**TAU, "floor": 0.1}]),
        CONSTANT: ("constant", [{"threshold": bound} for bound in bounds]),
        UNBOUNDED: ("quantile", [TAU]),
        "AUTO": ("auto-s", [{}]),
    }


def pictures() -> Table:
    """Table A5."""
    entries = []
    for data, batch in (("skewed-mnist", 12_000), ("fashion-mnist", 6_000)):
        for epsilon in (4, 1, 2):
            row, length = f"{data}, {epsilon}", {"batch": batch, "epochs": 50}
            for label, (rule, ways) in rules((0.0952, 0.2973, 0.9285)).items():
                grid = tuple(
                    Cell(
                        f"{data}, standardised",
                        "two-layer-cnn",
                        rule,
                        epsilon,
                        {**length, **UNITS, "lr": lr, "clipping": how},
                    )
                    for how in ways
                    for lr in (1.0, 2.1544, 4.6416)
                )
                entries.append(Entry(row, label, grid, BY_CLASS))
            own = Cell(data, "two-layer-cnn", "default", epsilon, length)
            entries.append(Entry(row, PAID, (own,), BY_CLASS, decides=False, paid=True))
    return Table("A5", tuple(entries), _classes)


def people() -> Table:
    """Table A6."""
    entries = []
    for data, batch in (("adult, standardised", 32_561), ("dutch", 10_000)):
        name, length = data.partition(",")[0], {"batch": batch, "epochs": 40}
        for epsilon in (0.1, 0.05, 0.2):
            row = f"{name}, {epsilon:g}"
            for label, (rule, ways) in rules((0.0539, 0.2973, 1.6409)).items():
                rates = (1.0, 10.0, 24.0225) if label == "AUTO" else (1.0, 3.5938, 10.0)
                grid = tuple(
                    Cell(data, "logistic", rule, epsilon, {**length, **UNITS, "lr": lr, "clipping": how})
                    for how in ways
                    for lr in rates
                )
                entries.append(Entry(row, label, grid, BY_GROUP, PEOPLE))
            own = Cell(name, "logistic", "default", epsilon, length)
            entries.append(Entry(row, PAID, (own,), BY_GROUP, PEOPLE, decides=False, paid=True))
            tuned = Cell(name, "head", "autopilot", epsilon, {"groups": True})
            entries.append(
                Entry(row, "autopilot (linear head), paid", (tuned,), BY_GROUP, PEOPLE, decides=False, paid=True)
            )
            plain = Cell(data, "logistic", "non-private", 0.1, {"epochs": 30})
            entries.append(Entry(row, PLAIN, (plain,), BY_GROUP, decides=False))
    return Table("A6", tuple(entries), _groups)


def collapse() -> Table:
    """Figure A21: where the threshold of the unbounded rule ends, and whether a floor helps."""
    entries = []
    for floor in (0.0, 0.1, 0.9285):
        how = {**TAU, "floor": floor} if floor else TAU
        settings = {"batch": 12_000, "epochs": 50, **UNITS, "lr": 4.6416, "clipping": how}
        rule = "bounded" if floor else "quantile"
        cell = Cell("skewed-mnist, standardised", "two-layer-cnn", rule, 4, settings)
        entries.append(Entry(f"floor {floor:g}", "step size 4.64", (cell,), (*BY_CLASS, "last_threshold")))
    return Table("A21", tuple(entries), _last)


ADULT: Settings = {"batch": 32_561, "epochs": 40, **UNITS, "lr": 3.5938}


def landscape() -> Table:
    """Figure A1: tau, gamma and eta_C of the bounded rule on Adult, one at a time."""
    entries = []
    changes: list[tuple[str, Settings]] = [
        ("tau 2.5, gamma 0.5, eta_C 0.2, as they fix them", {}),
        *((f"tau {tau:g}", {"tau": tau}) for tau in (1.0, 5.0)),
        *((f"gamma {target:g}", {"target": target}) for target in (0.25, 0.75)),
        *((f"eta_C {rate:g}", {"rate": rate}) for rate in (0.05, 0.8)),
    ]
    for row, change in changes:
        how = {**TAU, "floor": 0.1, **change}
        cell = Cell("adult, standardised", "logistic", "bounded", 0.1, {**ADULT, "clipping": how})
        entries.append(Entry(row, "Adult at epsilon 0.1", (cell,), (*BY_GROUP, "last_threshold")))
    return Table("A1", tuple(entries), _flat)


def _flat(table: Table, lines: Lines) -> str:
    if len(table.decided_rows(lines)) < len(table.rows()):
        return "Not decided yet."
    means = [entry.mean(lines) for entry in table.entries]
    return f"Accuracy differs by {100 * (max(means) - min(means)):.2f} points between the best and the worst setting."


def groups() -> Table:
    """Figures A12 and A13: thresholds by group, in place of FairDP."""
    ways: dict[str, Settings] = {
        "one threshold for both, 0.3": {"thresholds": [0.3, 0.3]},
        "women 1, men 0.3": {"thresholds": [0.3, 1.0]},
        "women 0.3, men 1": {"thresholds": [1.0, 0.3]},
        "each adapted to its own median": {"thresholds": [0.3, 0.3], "rate": 0.2},
    }
    entries = []
    for row, how in ways.items():
        cell = Cell("adult, standardised", "logistic", "group", 0.1, {**ADULT, "clipping": how})
        entries.append(Entry(row, "Adult at epsilon 0.1", (cell,), BY_GROUP))
    return Table("A12", tuple(entries), _fairest)


def _fairest(table: Table, lines: Lines) -> str:
    if len(table.decided_rows(lines)) < len(table.rows()):
        return "Not decided yet."
    parity = {entry.row: entry.mean(lines, "parity") for entry in table.entries}
    top = max(parity, key=lambda row: parity[row])
    lost = 100 * (max(entry.mean(lines) for entry in table.entries) - table.mean(top, "Adult at epsilon 0.1", lines))
    return f"The highest ratio of positive rates: {top} ({100 * parity[top]:.1f}), {lost:.2f} points below the best."


def _classes(table: Table, lines: Lines) -> str:
    said = []
    for row in table.decided_rows(lines):
        macro = table.means(row, lines)
        worst = {label: table.mean(row, label, lines, "worst") for label in macro}
        said.append(
            f"{row}: best macro accuracy {_top(macro)}, best worst class {_top(worst)}; bounded "
            f"{100 * macro[BOUNDED]:.2f} / {100 * worst[BOUNDED]:.2f}"
        )
    return "; ".join(said) + "." if said else "No row is decided yet."


def _top(means: dict[str, float]) -> str:
    label = max(means, key=lambda each: means[each])
    return f"{label} ({100 * means[label]:.2f})"


def _groups(table: Table, lines: Lines) -> str:
    said = []
    for row in table.decided_rows(lines):
        means = table.means(row, lines)
        gap = table.mean(row, PLAIN, lines) - means[BOUNDED]
        said.append(
            f"{row}: bounded less constant {100 * (means[BOUNDED] - means[CONSTANT]):+.2f}, less unbounded "
            f"{100 * (means[BOUNDED] - means[UNBOUNDED]):+.2f} points, gap to non-private {100 * gap:.2f}"
        )
    return "; ".join(said) + "." if said else "No row is decided yet."


def _last(table: Table, lines: Lines) -> str:
    cell = table.entry("floor 0", "step size 4.64")
    if cell is None or len(table.decided_rows(lines)) < len(table.rows()):
        return "Not decided yet."
    return (
        f"Without a floor the threshold ends at {cell.mean(lines, 'last_threshold'):.2g}, "
        f"macro {100 * cell.mean(lines):.2f}, "
        f"worst class {100 * cell.mean(lines, 'worst'):.2f}; with a floor of 0.1 the worst class is "
        f"{100 * table.mean('floor 0.1', 'step size 4.64', lines, 'worst'):.2f}."
    )
