"""The defaults under test, and linear scaling with them; how they were chosen is the part ``defaults``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpilot import Budget
from dpilot.data.splits import Split
from dpilot.privacy import gdp_mu
from dpilot.privacy.events import Gaussian
from dpilot.privacy.gaussian import gdp_epsilon
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features, centred, private_center
from dpilot.tune import Box, Candidate, ProbeTask, Tuned, linear_scaling
from dpilot.tune.outlays import whole_outlay
from dpilot.tune.task import Task


@dataclass(frozen=True, slots=True)
class Defaults:
    """r without data is ``kappa`` mu n; trials search within a factor ``band`` of it.

    A run has ``few`` steps, or as many (at most ``many``) as keep step size times threshold at ``cap``. ``shares`` of
    mu^2 go to the stages, of ``trials`` runs each, and ``held_out`` of the records are kept for scores.
    """

    kappa: float = 1 / 16
    band: float = 4.0
    cap: float = 32.0
    few: int = 100
    many: int = 400
    trials: int = 3
    shares: tuple[float, ...] = (0.005, 0.02)
    held_out: float = 0.02
    degree: int = 0
    variable: str = "mu"
    center: float = 0.02
    too_noisy: float = 0.02
    threshold: float = 1.0

    @property
    def largest(self) -> float:
        """The step size at the cap."""
        return self.cap / self.threshold

    def r(self, mu: float, size: float) -> float:
        """How far to walk if nothing is known but declared numbers: r in units of the threshold."""
        return self.kappa * mu * size / self.threshold

    def candidate(self, r: float) -> Candidate:
        """``r`` as a step size and a number of steps."""
        steps = min(max(round(r / self.largest), self.few), self.many)
        return Candidate(r / steps, steps)

    def box(self, r: float) -> Box:
        """All r from far below ``r`` to ``band`` times it, each split (steps first) as ``candidate`` does."""
        most = r * self.band
        many = min(max(math.ceil(most / self.largest), self.few), self.many)
        return Box((r / _FAR / self.few, most / many), (self.few, many), Candidate(self.largest, self.few))

    def plan(self, budget: Budget, size: float) -> dict[str, Any]:
        """What ``linear_scaling`` and ``plan_scaling`` are told."""
        r = self.r(gdp_mu(budget), size)
        names = ("trials", "shares", "degree", "variable", "too_noisy", "band")
        options = {name: getattr(self, name) for name in names}
        return {"box": self.box(r), "fallback": r, "split": "steps-first", **options}


_FAR = 1e3  # trials have less of mu than the final run, by 30 times or so, and walk less far
DEFAULTS = Defaults()


def scaled(task: Task, budget: Budget, chosen: Defaults = DEFAULTS, **options: Any) -> Tuned:
    """Linear scaling with the defaults."""
    return linear_scaling(task, budget, **chosen.plan(budget, task.size), **options)


def data_free(features: Features, budget: Budget, size: float, chosen: Defaults = DEFAULTS, **options: Any) -> Any:
    """The weights of one run with the whole budget on all records, where the defaults alone say."""
    task = ProbeTask(features, features.take([]), size, 1.0, threshold=chosen.threshold, **options)
    outlay = whole_outlay(budget)
    candidate = chosen.candidate(chosen.r(gdp_mu(budget), size))
    return task.train([outlay.trial(candidate, Receipt(outlay.event))])[0]


def center_bought(
    train: Features, others: Sequence[Features], budget: Budget, share: float
) -> tuple[Features, list[Features], Budget]:
    """Records moved by their noisy mean, bought for ``share`` of mu^2, and the budget that is left.

    mu_rest^2 = mu^2 - mu_center^2, exactly.
    """
    mu, size = gdp_mu(budget), len(train)
    sigma = 1 / (mu * math.sqrt(share))
    bought = private_center(train, noise_multiplier=sigma, receipt=Receipt(Gaussian(sigma)), size=size)
    left = Budget(gdp_epsilon(mu * math.sqrt(1 - share), budget.delta) * (1 - 1e-9), budget.delta)
    moved = [centred(each, center=bought) for each in (train, *others)]
    return moved[0], moved[1:], left


def split_task(features: Features, chosen: Defaults, **options: Any) -> ProbeTask:
    """The task on a fresh split."""
    split = Split.draw({"train": 1 - chosen.held_out, "held-out": chosen.held_out})
    return ProbeTask.of(features, split, size=len(features), threshold=chosen.threshold, **options)
