"""Rehn et al. 2026, optimal hyperparameters: batch size and threshold of DP-Adam at a fixed number of epochs."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Lines
from benchmarks.papers.table import Entry, Table
from dpilot import Budget, privacy

FEATURES = "cifar-10/resnet-20"
SIZE, EPOCHS, DELTA = 50_000, 8, 1e-5
BATCHES = (1_024, 4_096, 16_384)
LARGEST = BATCHES[-1]
THRESHOLDS = (0.01, 0.1, 1.0, 10.0)
STEP_SIZES = (0.003, 0.01, 0.03)
EPSILONS = (0.5, 8.0)
ADAM: dict[str, Any] = {"optimizer": "adam", "normalized": True, "epochs": EPOCHS}


def tables() -> list[Table]:
    return [batches(), thresholds()]


def _grid(rule: str, epsilon: float, batch: int, how: dict[str, Any]) -> tuple[Cell, ...]:
    settings = {**ADAM, "batch": batch, "clipping": how}
    return tuple(Cell(FEATURES, "linear", rule, epsilon, {**settings, "lr": lr}) for lr in STEP_SIZES)


def batches() -> Table:
    """Figures 7 and A16."""
    entries = tuple(
        Entry(f"epsilon {epsilon:g}", f"B = {batch:,}", _grid("constant", epsilon, batch, {}))
        for epsilon in EPSILONS
        for batch in BATCHES
    )
    return Table("batch", entries, _advice)


def _advice(table: Table, lines: Lines) -> str:
    """What the library's batch rule picks, which reads no data, beside the best."""
    said = []
    for row in table.decided_rows(lines):
        budget = Budget(float(row.split()[1]), DELTA)
        picked = privacy.batch_rule(budget, size=SIZE, epochs=EPOCHS, candidates=BATCHES).batch_size
        means = table.means(row, lines)
        top = max(means, key=lambda label: means[label])
        loss = 100 * (means[top] - means[f"B = {picked:,}"])
        said.append(f"{row}: best {top}, the batch rule picks {picked:,}, {loss:.2f} points below")
    return "; ".join(said) + "." if said else "No row is decided yet."


def thresholds() -> Table:
    """Figures 2, 5 and A1 to A9."""
    entries = []
    for epsilon in EPSILONS:
        row = f"epsilon {epsilon:g}"
        for threshold in THRESHOLDS:
            entries.append(
                Entry(row, f"C = {threshold:g}", _grid("constant", epsilon, LARGEST, {"threshold": threshold}))
            )
        for rule in ("auto-s", "mse"):
            entries.append(Entry(row, rule, _grid(rule, epsilon, LARGEST, {}), decides=False))
    return Table("threshold", tuple(entries), _threshold)


def _threshold(table: Table, lines: Lines) -> str:
    said = []
    for row in table.decided_rows(lines):
        means = table.means(row, lines)
        top = max(means, key=lambda label: means[label])
        found = {rule: table.mean(row, rule, lines) for rule in ("auto-s", "mse")}
        known = {rule: mean for rule, mean in found.items() if not math.isnan(mean)}
        others = [f"{rule} {100 * (means[top] - mean):.2f} points below" for rule, mean in known.items()]
        said.append(f"{row}: best {top}, {', '.join(others)}")
    return "; ".join(said) + "." if said else "No row is decided yet."
