"""Step sizes from declared numbers alone: what a run uses without trials, and what trials are spread about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu
from dpilot.tune.candidate import Box, Candidate
from dpilot.tune.probe_task import THRESHOLD, ProbeTask

__all__ = ["MOMENTUM", "WALK", "Course", "head_course", "head_options", "head_walk", "module_course", "module_lr"]

MOMENTUM: Final = 0.9
WALK: Final = 0.2
_LOGIT: Final = 0.625
_BAND: Final = 4.0
_FEW: Final = 100
_MOST: Final = 400
_LARGEST: Final = 25.0
_REACH: Final = 1e4  # how far below the data-free walk a box goes: trials have far less budget than the final run


@dataclass(frozen=True, slots=True)
class Course:
    """The step sizes and steps that are allowed, and the data-free walk r = lr * steps among them."""

    box: Box
    walk: float

    def options(self) -> dict[str, Any]:
        """What ``plan_scaling`` is told: trials within a factor of 4 of the walk, and r in proportion to mu.

        Reference:
            On data of their own (benchmarks/tune, "defaults") a band of 4 lost less than 2, 8 and 16.
        """
        return {"box": self.box, "fallback": self.walk, "band": _BAND, "degree": 0, "variable": "mu"}


def head_walk(mu: float, size: float, *, momentum: float = MOMENTUM, threshold: float = THRESHOLD) -> float:
    """r = lr T of a linear head on unit rows, full batch, clipped at C: the noise alone moves a logit by 5/8.

    ::

        noise of the T steps together    sqrt(T) * (C sqrt(T) / mu) / size = C T / (mu size)     in every weight
        each moves the weights by lr / (1 - momentum), so a logit of a unit row by C r / ((1 - momentum) mu size)
        set to 5/8:                      r = 5/8 (1 - momentum) mu size / C,   mu size / (16 C) at momentum 0.9

    A logit that noise alone moves by more than about 1 changes odds by more than e; one that it moves by less was
    walked a shorter way than the budget paid for. So r is linear in mu, which is what the law of linear scaling finds.

    Example:
        >>> round(head_walk(0.2, 50_000)), round(head_walk(0.2, 50_000, threshold=1.0))
        (1250, 625)

    Reference:
        1/16 lost least of 13 values on six data sets, whole and an eighth of each, at epsilon 0.1 to 3: 0.7 points on
        average against the best r (benchmarks/tune, "defaults"; docs/autopilot.md). r = lr T: Panda et al., ICML 2024.
    """
    return _LOGIT * (1 - momentum) * mu * size / threshold


def head_course(
    mu: float,
    size: float,
    classes: int,
    epochs: float | None = None,
    *,
    momentum: float = MOMENTUM,
    threshold: float = THRESHOLD,
) -> Course:
    """About ``head_walk``: 100 steps, and more where the step size would pass what descent is stable at.

    ::

        C lr <= 2 (1 + momentum) classes, at most 25      at probabilities 1/classes the loss curves by 1/classes

    Edge cases:
        ``epochs``    at most so many steps, as a full-batch step reads every record once; 400 by default
    """
    most = _MOST if epochs is None else max(1, int(epochs))
    few = min(_FEW, most)
    largest = min(2 * (1 + momentum) * classes, _LARGEST) / threshold
    walk = min(head_walk(mu, size, momentum=momentum, threshold=threshold), largest * most)
    box = Box((walk / most / _REACH, largest), (few, most), Candidate(largest, few))
    return Course(box, box.inside(walk))


def head_options(task: ProbeTask, budget: Budget, epochs: float | None = None) -> dict[str, Any]:
    """What the autopilot would tell ``linear_scaling`` of linear heads on unit rows: box, data-free walk, band, law.

    Example:
        ``linear_scaling(task, budget, **head_options(task, budget))``
    """
    course = head_course(
        gdp_mu(budget),
        task.size,
        task.train_features.classes,
        epochs,
        momentum=task.momentum,
        threshold=task.threshold,
    )
    return course.options()


def module_lr(*, noise_multiplier: float, batch_size: float, steps: int, momentum: float = MOMENTUM) -> float:
    """The step size at which noise alone would move each weight by 0.2 in a run of constant steps.

    ::

        lr = 0.2 (1 - momentum) B / (sigma sqrt(T))         gradients in units of the clipping threshold

    Example:
        >>> module_lr(noise_multiplier=1.0, batch_size=1000, steps=400)
        1.0

    Reference:
        0.2 was the best of 0.0125, 0.05, 0.2, 0.8 in five settings of two networks (docs/autopilot.md).
    """
    return round(WALK * (1 - momentum) * batch_size / (noise_multiplier * math.sqrt(steps)), 15)


def module_course(*, noise_multiplier: float, batch_size: float, steps: int) -> Course:
    """About ``module_lr``, at the number of steps that the batch rule fixed."""
    lr = module_lr(noise_multiplier=noise_multiplier, batch_size=batch_size, steps=steps)
    box = Box((lr / _REACH, lr * _REACH), (steps, steps))
    return Course(box, lr * steps)
