"""Step sizes found on the way, from private losses before and behind: no trials, one run.

Reference: Liu and Bu, "Towards Hyperparameter-Free Optimization with Differential Privacy" (HyFreeDP), ICLR 2025.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.mechanism import Draws, Noise, release
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Composed, Gaussian, Repeated
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Ledger, Stage
from dpilot.transfer.features import NULL, Features
from dpilot.tune.candidate import Candidate
from dpilot.tune.probe_task import ProbeTask
from dpilot.tune.record import Tuned
from dpilot.tune.rounds import begin_stages, commit_stages
from dpilot.tune.task import TRAIN

__all__ = ["better_lr", "hyfree"]

_GRADIENTS: Final = "gradients"
_LOSSES: Final = "losses"
_POINTS: Final = (-1.0, 0.0, 1.0)
_SHAVE: Final = 1 - 1e-9  # so that rounding cannot carry a clipped gradient over its bound


def hyfree(
    task: ProbeTask,
    budget: Budget,
    *,
    steps: int = 100,
    every: int = 5,
    share: float = 0.05,
    lr: float = 1.0,
    loss_bound: float | None = None,
    ledger: Ledger | str | Path | None = None,
) -> Tuned:
    """One full-batch run whose step size is fitted anew ``every`` few steps, from noisy losses on ``share`` of mu^2.

    ::

        L(w - lr v t) at t = -1, 0, 1,  a record's loss clipped to [0, R] and centred by R/2: sensitivity sqrt(3) R/2
        lr <- lr * argmin over t of the parabola through them, kept within a factor of 4

    ``loss_bound`` is R, by default twice the loss of a guess, 2 ln(classes).

    Guarantee:
        Steps and looks are Gaussians at multipliers fixed beforehand: mu^2 adds, exactly. Null records enter nothing.

    Raises:
        InvalidInput: if the task protects units of many rows, which the method does not know.
    """
    if not task.unit.is_record:
        raise InvalidInput(
            f"the task protects {task.unit}: expected records, whose gradients and losses are added up row by row. "
            "Use linear_scaling or the autopilot for units."
        )
    looks, whole = math.ceil(_validate.count(steps=steps) / _validate.count(every=every)), gdp_mu(budget)
    part = _validate.open_unit(share=share)
    sigma, sigma_loss = math.sqrt(steps / (1 - part)) / whole, math.sqrt(looks / part) / whole
    bound = loss_bound or 2 * math.log(task.train_features.classes)
    stages = [
        Stage(_GRADIENTS, Repeated(Gaussian(sigma), steps), TRAIN, task.split),
        Stage(_LOSSES, Repeated(Gaussian(sigma_loss), looks), TRAIN, task.split),
    ]
    with commit_stages(task, stages, budget, ledger) as payment:
        with begin_stages(payment.committed, [_GRADIENTS, _LOSSES]) as (gradients, losses):
            run = _Run(task, sigma, sigma_loss, bound, gradients, losses, task.noise(), task.noise())
            weights, rates = run.train(steps, every, _validate.positive(lr=lr))
        shown = ", ".join(f"{rate:.3g}" for rate in rates)
        return payment.outcome(
            "hyfree",
            weights,
            Candidate(rates[-1], steps),
            accountant.epsilon(Composed([stage.event for stage in stages]), budget.delta),
            decisions=(
                f"step sizes, every {every} of {steps} steps: {shown}; {part:.1%} of the budget went to losses.",
            ),
        )


def better_lr(lr: float, losses: tuple[float, float, float], most: float = 4.0) -> float:
    """The step size where the parabola through the losses behind, here and ahead is least, within a factor of ``most``.

    Edge cases:
        no valley, or one that lies behind    as it was; noise makes both, and a guess would be one of noise

    Example:
        >>> better_lr(1.0, (9.0, 4.0, 1.0)), better_lr(1.0, (1.0, 2.0, 1.5))
        (2.0, 1.0)
    """
    behind, here, ahead = losses
    slope, curve = (ahead - behind) / 2, ahead - 2 * here + behind
    if not (curve > 0 and slope < 0):
        return lr
    return lr * min(max(-slope / curve, 1 / most), most)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    task: ProbeTask
    sigma: float
    sigma_loss: float
    bound: float
    gradients: Draws
    losses: Draws
    gradient_noise: Noise
    loss_noise: Noise

    @torch.no_grad()
    def train(self, steps: int, every: int, lr: float) -> tuple[Tensor, list[float]]:
        """The weights after all steps, and the step sizes used."""
        features = self.task.train_features
        weights = features.values.new_zeros((features.width, features.classes), dtype=torch.float64)
        velocity, rates = torch.zeros_like(weights), []
        for step in range(steps):
            noisy = release(
                self._clip_and_sum(features, weights),
                bound=self.task.threshold,
                noise_multiplier=self.sigma,
                receipt=self.gradients,
                noise=self.gradient_noise,
            )
            velocity = self.task.momentum * velocity + noisy / self.task.size
            if step % every == 0:
                lr = better_lr(lr, self._look(features, weights, lr * velocity))
                rates.append(lr)
            weights = weights - lr * velocity
        return weights.float(), rates

    def _clip_and_sum(self, features: Features, weights: Tensor) -> Tensor:
        """The sum of x (p - y)^T, each record's scaled to a length of at most the threshold."""
        total = torch.zeros_like(weights)
        for rows, labels in _chunks(features):
            residuals = torch.softmax(rows @ weights, 1)
            residuals -= torch.nn.functional.one_hot(labels.clamp_min(0), features.classes)
            lengths = rows.norm(dim=1) * residuals.norm(dim=1)
            factors = (self.task.threshold * _SHAVE / lengths).clamp_max(1.0)
            factors = torch.where((labels == NULL) | ~torch.isfinite(lengths), 0.0, factors)
            total += rows.T @ (residuals.nan_to_num(nan=0.0) * factors[:, None])
        return total

    def _look(self, features: Features, weights: Tensor, stride: Tensor) -> tuple[float, float, float]:
        """The mean clipped losses behind, here and ahead, noisy."""
        total = np.zeros(len(_POINTS))
        places = torch.stack([weights - t * stride for t in _POINTS], 1)
        for rows, labels in _chunks(features):
            scores = torch.einsum("nd,dkc->nkc", rows, places)
            known = labels.clamp_min(0).view(-1, 1, 1).expand(-1, len(_POINTS), 1)
            losses = scores.logsumexp(2) - scores.gather(2, known).squeeze(2)
            centred = losses.nan_to_num(nan=self.bound).clamp(0.0, self.bound) - self.bound / 2
            total += torch.where((labels == NULL)[:, None], 0.0, centred).sum(0).cpu().numpy()
        # A record adds three losses, each clipped to [0, R] and centred, so at most R/2 long: sqrt(3) R/2 together
        # (test_step_sizes_from_private_losses_replay_and_fit).
        noisy = release(
            total,
            bound=math.sqrt(len(_POINTS)) * self.bound / 2,
            noise_multiplier=self.sigma_loss,
            receipt=self.losses,
            noise=self.loss_noise,
        )
        behind, here, ahead = (float(value) / self.task.size for value in noisy)
        return behind, here, ahead


def _chunks(features: Features, rows: int = 8192) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(features), rows):
        yield features.values[start : start + rows].double(), features.labels[start : start + rows]
