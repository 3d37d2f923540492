"""Step sizes from declared numbers alone: what a run uses without trials, and what trials are spread about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dpilot.tune.candidate import Box, Candidate

__all__ = ["MOMENTUM", "WALK", "Course", "head_course", "head_walk", "module_course", "module_lr"]

MOMENTUM: Final = 0.9
WALK: Final = 0.2
_FEW: Final = 100
_MOST: Final = 400
_LARGEST: Final = 25.0
_REACH: Final = 1e4  # how far below the data-free walk a box goes: trials have far less budget than the final run


@dataclass(frozen=True, slots=True)
class Course:
    """The step sizes and steps that are allowed, and the data-free walk r = lr * steps among them."""

    box: Box
    walk: float


def head_walk(mu: float, size: float, momentum: float = MOMENTUM) -> float:
    """r = lr T of a linear head on unit rows, full batch, clipped at 1: the noise alone moves a logit by 1.

    ::

        noise of the T steps together    sqrt(T) * (sqrt(T) / mu) / size = T / (mu size)   in every weight
        each of them moves the weights by lr / (1 - momentum), so a logit of a unit row by r / ((1 - momentum) mu size)
        set to 1:                        r = (1 - momentum) mu size

    A logit that noise alone moves by more than 1 changes odds by more than e; one that it moves by less was walked a
    shorter way than the budget paid for. So r is linear in mu, which is what the law of linear scaling finds.

    Example:
        >>> round(head_walk(0.2, 50_000))
        1000

    Reference:
        On six tasks (docs/autopilot.md: four tables, digits, news; 2 to 20 classes) and epsilon from 0.03 to 3 the best
        walk was 0.5 to 2 times this one. r = lr T: Panda et al., ICML 2024.
    """
    return (1 - momentum) * mu * size


def head_course(mu: float, size: float, classes: int, epochs: float | None = None) -> Course:
    """About ``head_walk``: 100 steps, and more where the step size would pass what descent is stable at.

    ::

        lr <= 2 (1 + momentum) classes, at most 25       at probabilities 1/classes the loss curves by 1/classes

    Edge cases:
        ``epochs``    at most so many steps, as a full-batch step reads every record once; 400 by default
    """
    most = _MOST if epochs is None else max(1, int(epochs))
    few = min(_FEW, most)
    largest = min(2 * (1 + MOMENTUM) * classes, _LARGEST)
    walk = min(head_walk(mu, size), largest * most)
    box = Box((walk / most / _REACH, largest), (few, most), Candidate(largest, few))
    return Course(box, box.inside(walk))


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
