"""Zou et al. 2026, SlaClip: Table 1, Tables 5 and 7 and Figure 7, first thresholds, K and eta, and the clamp of their code."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Lines
from benchmarks.papers.table import SEEDS, Entry, Table

CLAMP = {"floor": 0.1, "ceiling": 50.0}
"""In the authors' code, not in the paper."""
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "Vanilla-Clip": ("constant", {}),
    "Adap-Clip": ("quantile", CLAMP),
    "DC-SGD-E": ("histogram-e", {}),
    "AutoClip": ("auto-s", {}),
    "SlaClip-Q": ("slack-q", CLAMP),
    "SlaClip": ("slack", CLAMP),
}
STEP_SIZES = (0.05, 0.1, 0.2, 0.5)
TASKS: dict[
    str, tuple[str, dict[str, Any], dict[float, float]]
] = {  # model, settings, epsilon -> their sigma (Table 2)
    "mnist, standardised": ("cnn-2", {"batch": 1024, "epochs": 30}, {3: 1.447, 1: 3.642, 2: 1.976}),
    "fashion-mnist, standardised": ("cnn-2", {"batch": 1024, "epochs": 30}, {3: 1.447, 1: 3.642, 2: 1.976}),
    "names": ("char-lstm", {"batch": 512, "epochs": 30, "delta": 8e-5}, {3: 1.944, 1: 5.119, 2: 2.723}),
    "imdb": ("mean-of-words", {"batch": 1024, "epochs": 90}, {6: 1.905, 2: 4.951, 4: 2.654}),
    "cifar-10, standardised": ("cnn-4", {"batch": 2048, "epochs": 90}, {8: 1.539, 6: 1.905, 4: 2.654}),
}
PRINTED: dict[tuple[str, float], tuple[str, ...]] = {
    ("cifar-10", 4): ("60.24 ± 0.19", "59.56 ± 0.48", "53.22 ± 0.33", "60.95 ± 0.62", "59.52 ± 0.25", "60.41 ± 0.64"),
    ("cifar-10", 6): ("65.48 ± 0.21", "65.31 ± 0.35", "59.76 ± 0.74", "65.55 ± 0.49", "65.47 ± 0.43", "65.67 ± 0.52"),
    ("cifar-10", 8): ("68.08 ± 0.12", "68.50 ± 0.64", "64.10 ± 0.58", "68.29 ± 0.14", "68.98 ± 0.59", "69.51 ± 0.37"),
    ("mnist", 1): ("94.23 ± 1.66", "94.11 ± 1.54", "93.78 ± 1.02", "94.02 ± 1.71", "94.05 ± 1.96", "94.64 ± 2.04"),
    ("mnist", 2): ("95.76 ± 0.18", "96.48 ± 0.46", "95.70 ± 0.17", "95.68 ± 0.12", "96.45 ± 0.50", "96.49 ± 0.35"),
    ("mnist", 3): ("96.57 ± 0.07", "97.33 ± 0.37", "96.49 ± 0.25", "96.40 ± 0.09", "97.38 ± 0.35", "97.48 ± 0.25"),
    ("fashion-mnist", 1): ("83.83 ± 1.39", "84.11 ± 0.91", "83.66 ± 1.89", "84.05 ± 8.30", "83.87 ± 0.71", "84.56 ± 3.26"),
    ("fashion-mnist", 2): ("85.77 ± 0.47", "86.39 ± 0.15", "85.81 ± 0.76", "85.60 ± 0.58", "86.40 ± 0.36", "86.63 ± 0.22"),
    ("fashion-mnist", 3): ("87.12 ± 0.49", "87.10 ± 0.08", "86.90 ± 0.48", "86.74 ± 0.46", "87.20 ± 0.47", "87.23 ± 0.09"),
    ("imdb", 2): ("60.18 ± 1.14", "62.01 ± 1.26", "51.92 ± 0.25", "60.33 ± 0.96", "61.42 ± 0.95", "61.39 ± 2.06"),
    ("imdb", 4): ("71.12 ± 1.00", "76.86 ± 0.69", "52.60 ± 0.32", "71.26 ± 0.42", "76.97 ± 0.58", "77.02 ± 0.65"),
    ("imdb", 6): ("74.08 ± 0.52", "78.96 ± 0.40", "53.96 ± 1.27", "73.51 ± 0.30", "79.04 ± 0.38", "79.49 ± 0.11"),
    ("names", 1): ("72.80 ± 0.49", "73.19 ± 1.33", "71.35 ± 1.24", "71.80 ± 0.70", "72.97 ± 0.65", "72.99 ± 1.37"),
    ("names", 2): ("75.44 ± 0.49", "75.54 ± 1.33", "75.24 ± 1.24", "74.34 ± 0.70", "76.19 ± 1.25", "76.48 ± 1.37"),
    ("names", 3): ("76.63 ± 0.95", "76.08 ± 0.72", "76.58 ± 0.58", "75.78 ± 0.93", "76.36 ± 0.37", "76.88 ± 0.79"),
}  # fmt: skip
PAID = {"default": "data-free default, paid", "autopilot": "autopilot, paid"}


def tables() -> list[Table]:
    return [fair(), clamp(), sizes(), fixed(), early()]


def _name(data: str) -> str:
    return data.partition(",")[0]


def fair() -> Table:
    """Table 1."""
    entries = []
    for data, (model, settings, sigmas) in TASKS.items():
        for epsilon, sigma in sigmas.items():
            row = f"{_name(data)}, {epsilon:g}"
            for (label, (rule, how)), printed in zip(RULES.items(), PRINTED[_name(data), epsilon], strict=True):
                whole = {**settings, "sigma": sigma, "clipping": how}
                grid = tuple(Cell(data, model, rule, epsilon, {**whole, "lr": lr}) for lr in STEP_SIZES)
                entries.append(Entry(row, label, grid, printed))
            for method, label in PAID.items():
                own = Cell(_name(data), model, method, epsilon, settings)
                entries.append(Entry(row, label, (own,), decides=False, paid=True))
    # rows that take longest come last, and the autopilot after every rule: what decides a claim is measured first
    entries.sort(key=lambda entry: entry.column == PAID["autopilot"])
    return Table(
        "1", "fairly tuned comparison, test accuracy in per cent",
        "SlaClip is the best or second best rule in 15 rows, the best in 13.", tuple(entries),
        "Rows of rules: their noise multipliers (classic RDP, Table 2), the largest batch of their pool (names: 512), first "
        "threshold 1, momentum 0.9, constant step size of 0.05, 0.1, 0.2, 0.5; the step size is chosen by test accuracy on one seed, "
        "then three fresh seeds. Their pool has three batches, five first thresholds, six step sizes and two schedules, chosen on a "
        "validation part that is not paid for. Means over seeds are theirs to print with standard deviations, ours with 95 % intervals. "
        "Paid: pixels scaled without looking, noise from PLD accounting, no choice but the declared one; the same models. "
        "Names: padded in front rather than read at the last valid step. IMDB: MiniLM's 30,522 word pieces, the first 256.",
        verdict=_wins,
    )  # fmt: skip


def _wins(table: Table, lines: Lines) -> str:
    """How often SlaClip is first, and what is paid against the best printed figure."""
    rows = [row for row in table.rows() if table.decided(row, lines)]
    if not rows:
        return "No row is decided yet."
    first = near = 0
    for row in rows:
        means = {label: _mean(table, row, label, lines) for label in RULES}
        best = max(means.values())
        first += means["SlaClip"] == best
        near += means["SlaClip"] >= sorted(means.values())[-2]
    said = f"Of {len(rows)} decided rows SlaClip is the best of the six rules in {first}, first or second in {near}."
    reached = []
    for row in table.rows():
        paid = max(
            (value for label in PAID.values() if not math.isnan(value := _mean(table, row, label, lines))),
            default=math.nan,
        )
        theirs = max(float(entry.printed.split()[0]) for entry in table.entries if entry.row == row and entry.printed)
        if not math.isnan(paid):
            reached.append(100 * paid >= theirs)
    return f"{said} With everything paid ours is at or above the best printed figure of the row in {sum(reached)} of {len(reached)} rows."


def _mean(table: Table, row: str, column: str, lines: Lines) -> float:
    entry = table.entry(row, column)
    return math.nan if entry is None else entry.mean(lines)


def clamp() -> Table:
    """Three forms of the rule: as printed, as coded, with a floor alone."""
    forms: dict[str, dict[str, Any]] = {
        "as in the paper": {}, "in [0.1, 50], as in the code": CLAMP, "floor 0.1": {"floor": 0.1},
        "scale-free (Appendix C)": {"variant": "tilde"},
    }  # fmt: skip
    entries = []
    for data in ("mnist, standardised", "names"):
        model, settings, sigmas = TASKS[data]
        for label, how in forms.items():
            whole = {**settings, "sigma": sigmas[3], "clipping": how, "lr": 0.1}
            entries.append(Entry(f"{_name(data)}, 3", label, (Cell(data, model, "slack", 3, whole),)))
    return Table(
        "clamp", "SlaClip as printed, and as in the authors' code; step size 0.1",
        "None in the paper: the code clamps C to [0.1, 50], which the paper does not say.", tuple(entries),
        "One step size for all four.",
    )  # fmt: skip


def sizes() -> Table:
    """First thresholds, slots and step sizes of the threshold, one at a time (Figure 6, Tables 6 and 9)."""
    entries = []
    changes: dict[str, dict[str, Any]] = {
        **{f"C0 = {first:g}": {**CLAMP, "threshold": first} for first in (0.1, 1.0, 5.0, 10.0, 20.0)},
        **{f"K = {slots}": {**CLAMP, "slots": slots} for slots in (5, 20, 60)},
        **{f"eta = {rate:g}": {**CLAMP, "rate": rate} for rate in (0.05, 0.5)},
    }
    for data in ("mnist, standardised", "names"):
        model, settings, sigmas = TASKS[data]
        for label, how in changes.items():
            whole = {**settings, "sigma": sigmas[3], "clipping": how, "lr": 0.1}
            entries.append(Entry(f"{_name(data)}, 3", label, (Cell(data, model, "slack", 3, whole),)))
    return Table(
        "sizes", "SlaClip at other first thresholds C0, slots K and rates eta; the others as by default (1, Eq. 14, 0.2)",
        "Accuracy hardly depends on C0, K and eta (Figures 6, Tables 6 and 9).", tuple(entries),
        "At the noise multipliers of Table 1 and epsilon 3; their sweeps are at sigma 1.", verdict=_spread,
    )  # fmt: skip


def _spread(table: Table, lines: Lines) -> str:
    said = []
    for row in table.rows():
        means = [value for entry in table.entries if entry.row == row and not math.isnan(value := entry.mean(lines))]
        if len(means) > 1:
            said.append(f"{row}: {100 * (max(means) - min(means)):.2f} points between the best and the worst setting")
    return "; ".join(said) + "." if said else ""


def fixed() -> Table:
    """Table 5 and Figure 7: one recipe for every rule, sigma 1, looked at on the way."""
    printed = {
        "mnist, standardised": ("96.29 ± 0.07", "93.36 ± 0.37", "94.76 ± 0.25", "95.97 ± 0.09", "93.07 ± 0.61", "96.84 ± 0.25"),
        "fashion-mnist, standardised": ("84.68 ± 0.49", "81.25 ± 0.08", "86.30 ± 0.48", "83.94 ± 0.46", "81.23 ± 0.06", "86.88 ± 0.09"),
        "names": ("68.23 ± 0.80", "73.33 ± 0.89", "73.30 ± 0.83", "67.00 ± 0.88", "73.50 ± 0.56", "73.88 ± 0.63"),
    }  # fmt: skip
    recipes: dict[str, dict[str, Any]] = {
        "mnist, standardised": {"batch": 512, "lr": 0.1, "decay": 5e-4, "schedule": "cosine", "steps": 3540},
        "fashion-mnist, standardised": {"batch": 512, "lr": 0.1, "decay": 5e-4, "schedule": "cosine", "steps": 3540},
        "names": {"batch": 512, "lr": 2.0, "momentum": 0.0, "delta": 8e-5, "steps": 750},
    }
    entries = []
    for data, figures in printed.items():
        for (label, (rule, how)), theirs in zip(RULES.items(), figures, strict=True):
            rated = {**how, "rate": 0.5} if label == "SlaClip" else how
            cell = Cell(
                data,
                TASKS[data][0],
                rule,
                3 if data != "names" else 5,
                {**recipes[data], "sigma": 1.0, "clipping": rated, "watch": recipes[data]["steps"] // 30},
            )
            entries.append(Entry(f"{_name(data)}, {cell.epsilon:g}", label, (cell,), theirs))
    return Table(
        "5", "one fixed recipe for all rules, sigma 1 (the largest epsilon of each data set), and the way there (Figure 7)",
        "SlaClip is the best rule of every fixed recipe at the largest epsilon.", tuple(entries),
        "Their recipe (Appendix A). 30 epochs: where their runs end is not printed.", verdict=_best,
    )  # fmt: skip


def _best(table: Table, lines: Lines) -> str:
    said = []
    for row in table.rows():
        if table.decided(row, lines):
            means = {label: _mean(table, row, label, lines) for label in RULES}
            said.append(f"{row}: {max(means, key=lambda label: means[label])} is best")
    return "; ".join(said) + "." if said else "No row is decided yet."


def early() -> Table:
    """Table 7: the first 14 steps of the fixed recipe on Fashion-MNIST."""
    printed = {"Vanilla-Clip": "52.68 ± 8.62", "DC-SGD-E": "54.80 ± 2.56", "SlaClip": "60.26 ± 2.97"}
    entries = []
    for label, theirs in printed.items():
        rule, how = RULES[label]
        rated = {**how, "rate": 0.5} if label == "SlaClip" else how
        whole = {"batch": 512, "lr": 0.1, "decay": 5e-4, "steps": 14, "sigma": 1.0, "clipping": rated, "watch": 1}
        entries.append(
            Entry(
                "14 steps, 0.9975",
                label,
                (Cell("fashion-mnist, standardised", "cnn-2", rule, 1, whole),),
                theirs,
                seeds=(1, 2, 3, 4, 5),
            )
        )
    return Table(
        "7", "the first 14 steps on Fashion-MNIST, before epsilon 1 is reached",
        "SlaClip is ahead from the fifth step on.", tuple(entries),
        "The start of a long run, so the step size is constant. The accountant's figures (0.9160, 0.9341, 0.9608, 0.9975 at 1, 2, 5 "
        "and 14 steps) are matched exactly by tests/privacy.", verdict=_best_of_early,
    )  # fmt: skip


def _best_of_early(table: Table, lines: Lines) -> str:
    row = table.rows()[0]
    means = {entry.column: entry.mean(lines) for entry in table.entries}
    return f"Best after 14 steps: {max(means, key=lambda label: means[label])}." if table.decided(row, lines) else ""


NOT_DONE = {
    "Figure 4": "heat maps of 15 settings a rule are the whole grid, of which Table 1 is measured here at one first threshold",
}
SEEDS_USED = SEEDS
