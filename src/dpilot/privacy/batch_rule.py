"""How large a batch: the smallest one on the plateau of cumulative noise. Needs no data, so it is free.

For a fixed number of epochs E over a declared size N, a batch size B gives T = E N / B steps, each with the noise
multiplier sigma(B) that the budget asks for. The noise that the whole run accumulates is sigma sqrt(T); it falls with B
and flattens. The rule takes the smallest B within ``tolerance`` of the flat part, as long as T >= ``min_steps``.

Reference: Rehn et al. 2026, section 6 (rule) and Table 1 (advice). Effective noise, sigma / q: Raisa et al. 2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget
from dpilot.privacy.calibrate import noise_multiplier


@dataclass(frozen=True, slots=True)
class BatchRow:
    """What one batch size would mean."""

    batch_size: int
    steps: int
    noise_multiplier: float
    cumulative_noise: float
    effective_noise: float


@dataclass(frozen=True, slots=True)
class BatchAdvice:
    """The recommended batch size, the reason in words, and the table behind it."""

    budget: Budget
    size: int
    epochs: float
    batch_size: int
    steps: int
    noise_multiplier: float
    reason: str
    findings: tuple[str, ...]
    table: tuple[BatchRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "budget": self.budget.as_dict()}


def batch_rule(
    budget: Budget,
    *,
    size: int,
    epochs: float,
    candidates: Iterable[int] | None = None,
    min_steps: int = 20,
    tolerance: float = 0.1,
) -> BatchAdvice:
    """The batch size for ``epochs`` over ``size`` records (declared, not counted) under ``budget``.

    Args:
        budget: the total of the run.
        size: the declared number of records.
        epochs: how often the run passes over them, on average.
        candidates: the batch sizes to compare.
        min_steps: the least number of steps that a candidate must leave.
        tolerance: how far above the least cumulative noise still counts as the plateau, as a share of it.

    Returns:
        The batch size with its steps and noise multiplier, the reason in words, and the table of all candidates.

    Edge cases:
        no candidate reaches min_steps   the one with the most steps is taken, and the reason says so
        delta of 1/size or more          refused, unless the budget allows it
        candidates                       powers of two from 32 up to the size, and the size itself (full batch)

    Example:
        >>> advice = batch_rule(Budget(1.0, 1e-5), size=50_000, epochs=8, candidates=[1024, 4096, 16384])
        >>> advice.batch_size, advice.steps, round(advice.noise_multiplier, 2)
        (4096, 98, 3.26)
    """
    size = _validate.count("Declare the number of records.", size=size)
    budget.check_size(size)
    epochs = _validate.positive(epochs=epochs)
    min_steps = _validate.count(min_steps=min_steps)
    tolerance = _validate.non_negative(tolerance=tolerance)
    sizes = _candidates(size) if candidates is None else _check_candidates(candidates, size)
    table = tuple(_row(budget, size, epochs, batch) for batch in sizes)
    eligible = [row for row in table if row.steps >= min_steps]
    chosen = _smallest_on_plateau(eligible, tolerance) if eligible else max(table, key=lambda row: row.steps)
    reason = _reason(chosen, eligible, min_steps, tolerance)
    findings = _findings(budget, epochs, eligible, table, min_steps)
    return BatchAdvice(
        budget, size, epochs, chosen.batch_size, chosen.steps, chosen.noise_multiplier, reason, findings, table
    )


def _candidates(size: int) -> list[int]:
    powers = [2**k for k in range(size.bit_length()) if 32 <= 2**k < size]
    return [*powers, size]


def _check_candidates(candidates: Iterable[int], size: int) -> list[int]:
    sizes = sorted({_validate.count(batch_size=value) for value in candidates})
    if not sizes:
        raise InvalidInput("candidates is empty: expected at least one batch size.")
    if sizes[-1] > size:
        _validate.refuse("batch_size", sizes[-1], f"at most the size, {size}", "Lower it, or declare the true size.")
    return sizes


def _row(budget: Budget, size: int, epochs: float, batch_size: int) -> BatchRow:
    steps = max(1, round(epochs * size / batch_size))
    rate = batch_size / size
    sigma = noise_multiplier(budget, sample_rate=rate, steps=steps)
    return BatchRow(batch_size, steps, sigma, sigma * math.sqrt(steps), sigma / rate)


def _smallest_on_plateau(rows: list[BatchRow], tolerance: float) -> BatchRow:
    flat = min(row.cumulative_noise for row in rows)
    return min((row for row in rows if row.cumulative_noise <= (1 + tolerance) * flat), key=lambda row: row.batch_size)


def _reason(chosen: BatchRow, eligible: list[BatchRow], min_steps: int, tolerance: float) -> str:
    if not eligible:
        return (
            f"batch {chosen.batch_size:,}: no candidate gives {min_steps} steps, so the one with the most steps "
            f"({chosen.steps:,}) is taken; more epochs or smaller candidates would help"
        )
    flat = min(row.cumulative_noise for row in eligible)
    over = chosen.cumulative_noise / flat - 1
    return (
        f"batch {chosen.batch_size:,}: smallest on the plateau at {chosen.steps:,} steps (cumulative noise "
        f"{chosen.cumulative_noise:.3g}, {over:.1%} above the least with {min_steps} steps or more; "
        f"tolerance {tolerance:.0%})"
    )


def _findings(
    budget: Budget, epochs: float, eligible: list[BatchRow], table: tuple[BatchRow, ...], min_steps: int
) -> tuple[str, ...]:
    """Rehn et al.'s Table 1, with the numbers of this case."""
    largest = max(table, key=lambda row: row.batch_size)
    enough = math.ceil(min_steps * epochs / largest.steps)
    viable = max((row.batch_size for row in eligible), default=0)
    return (
        f"At epsilon {budget.epsilon:g}: a tighter budget wants a larger clipping bound and a smaller batch.",
        "A strong backbone or an easy task wants a small clipping bound; a weak backbone, a hard task or full "
        "fine-tuning wants a larger one (25 to 75 has been best for full fine-tuning).",
        f"With {epochs:g} epochs, avoid batches beyond {viable:,}: fewer than {min_steps} steps would remain."
        if viable < largest.batch_size
        else "Even the largest candidate leaves enough steps: the plateau decides.",
        f"More epochs make larger batches viable: {largest.batch_size:,} needs about {enough:,} epochs.",
        "Clipping bound, batch size and step size interact: tune them together, inside the budget.",
    )
