"""Step sizes that no record decides: what a run costs then is the run alone."""

from __future__ import annotations

from pathlib import Path

from dpilot import _validate
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Ledger
from dpilot.tune.candidate import Candidate
from dpilot.tune.outlays import whole_outlay
from dpilot.tune.record import Tuned
from dpilot.tune.rounds import train_alone
from dpilot.tune.task import Task

__all__ = ["one_step", "train_without_tuning", "wosm", "wosm_lr"]


def wosm_lr(
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    threshold: float = 1.0,
    alpha: float = 1e-3,
    momentum: float = 0.9,
) -> float:
    """DPAdam without second moments: the step size at which DPAdam settles, as that of SGD with ``momentum``.

    ::

        second moments settle at the variance of the noise,  sqrt(v) = sigma C / B
        w <- w - alpha m / sqrt(v),  m = the mean of gradients = (1 - momentum) * buffer
        lr = (1 - momentum) alpha B / (sigma C)

    Example:
        >>> round(wosm_lr(noise_multiplier=10.0, expected_batch_size=10_000), 3)
        0.1

    Reference:
        Mohapatra et al., "The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection", AAAI 2022.
    """
    scale = _validate.positive(noise_multiplier=noise_multiplier) * _validate.positive(threshold=threshold)
    batch = _validate.positive(expected_batch_size=expected_batch_size)
    return (1 - _validate.share(momentum=momentum)) * _validate.positive(alpha=alpha) * batch / scale


def wosm(
    task: Task, budget: Budget, *, steps: int, threshold: float | None = None, ledger: Ledger | str | Path | None = None
) -> Tuned:
    """One run at DPAdamWOSM's step size; the task's optimizer is SGD with momentum 0.9, clipped at ``threshold``.

    Edge cases:
        threshold None    that of the task where it has one (heads), or 1
    """
    threshold = getattr(task, "threshold", 1.0) if threshold is None else threshold
    outlay = whole_outlay(budget, task.sample_rate, steps)
    each = outlay.noise_multiplier * (steps**0.5 if task.sample_rate == 1 else 1.0)
    lr = wosm_lr(noise_multiplier=each, expected_batch_size=task.sample_rate * task.size, threshold=threshold)
    return train_without_tuning(task, Candidate(lr, steps), budget, method="wosm", ledger=ledger)


def one_step(task: Task, budget: Budget, *, ledger: Ledger | str | Path | None = None) -> Tuned:
    """A single full-batch step from zero: the classes it predicts do not depend on the step size.

    Reference:
        Mehta et al., "Differentially Private Image Classification from Features", TMLR 2023.
    """
    return train_without_tuning(task, Candidate(1.0, 1), budget, method="one_step", ledger=ledger)


def train_without_tuning(
    task: Task,
    candidate: Candidate,
    budget: Budget,
    *,
    method: str = "untuned",
    ledger: Ledger | str | Path | None = None,
) -> Tuned:
    """One run of a candidate that no record decided, with the whole budget."""
    outlay = whole_outlay(budget, task.sample_rate, candidate.steps)
    return train_alone(
        task,
        candidate,
        outlay,
        budget,
        method=method,
        epsilon=accountant.epsilon(outlay.event, budget.delta),
        ledger=ledger,
        decisions=(f"step size {candidate.lr:.4g}, {candidate.steps} steps: data-free, so nothing was tuned.",),
    )
