"""What is compared: linear scaling and one run without tuning, both with the library's defaults for linear heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpilot import Budget
from dpilot.data.splits import Split
from dpilot.privacy import gdp_mu
from dpilot.privacy.events import Gaussian
from dpilot.privacy.gaussian import gdp_epsilon
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features, centred, private_center
from dpilot.tune import Candidate, LogUniform, ProbeTask, SearchBox, Space, Tuned, head_options, linear_scaling
from dpilot.tune.defaults import default_held_out
from dpilot.tune.rivals.data_free import train_without_tuning

CENTER = 0.02
"""Of mu^2, for the mean of the features where one is bought."""
BAND = 4.0


def scaled(task: ProbeTask, budget: Budget, **options: Any) -> Tuned:
    """Linear scaling with the defaults."""
    return linear_scaling(task, budget, **head_options(task, budget), **options)


def data_free(features: Features, budget: Budget, **options: Any) -> Tuned:
    """One run with the whole budget on all records, where the defaults alone say."""
    task = whole_task(features, **options)
    told = head_options(task, budget)
    return train_without_tuning(task, told["box"].candidate(told["fallback"]), budget, method="data-free")


def whole_task(features: Features, **options: Any) -> ProbeTask:
    """The task that holds nothing out."""
    return ProbeTask(features, features.take([]), len(features), 1.0, **options)


def split_task(features: Features, budget: Budget, **options: Any) -> ProbeTask:
    """The task on a fresh split, of the autopilot's share."""
    held_out = default_held_out(budget, len(features))
    split = Split.draw({"train": 1 - held_out, "held-out": held_out})
    return ProbeTask.of(features, split, size=len(features), **options)


def walked(r: float, box: SearchBox) -> Candidate:
    """``r``, as far as one likes, split as the defaults split: more steps where the step size would pass the box's."""
    steps = min(max(round(r / box.lr[1]), box.steps[0]), box.steps[1])
    return Candidate(r / steps, steps)


def space_of(task: ProbeTask, budget: Budget) -> Space:
    """Three decades of step sizes, as Panda et al. search, up to the largest that linear scaling may try; its steps."""
    told = head_options(task, budget)
    most, box = BAND * told["fallback"], told["box"]
    largest = min(most / box.steps[0], box.lr[1])
    steps = min(math.ceil(most / largest), box.steps[1])
    return Space(LogUniform(largest / 1000, largest), LogUniform(box.steps[0], steps))


def center_bought(
    train: Features, others: Sequence[Features], budget: Budget, share: float = CENTER
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
