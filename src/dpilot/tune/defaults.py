"""The autopilot's options and data-free defaults; every default is stated and defended in docs/autopilot.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from dpilot import _validate
from dpilot.metrics.objective import check_objective
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu
from dpilot.tune.candidate import Candidate, SearchBox
from dpilot.tune.probe_task import THRESHOLD, ProbeTask
from dpilot.tune.scaling_plan import SHARES

__all__ = [
    "MOMENTUM",
    "SCORE_SHARE",
    "TUNING_SHARE",
    "WALK",
    "AutopilotOptions",
    "StepDefaults",
    "default_held_out",
    "head_defaults",
    "head_options",
    "head_walk",
    "module_defaults",
    "module_lr",
]

TUNING_SHARE: Final = sum(SHARES)
SCORE_SHARE: Final = 0.5
_LEAST_HELD_OUT: Final = 0.05
_MOST_HELD_OUT: Final = 0.1
_FIGURE_NOISE: Final = 0.001
MOMENTUM: Final = 0.9
WALK: Final = 0.2
_LOGIT: Final = 0.625
_BAND: Final = 4.0
_FEW: Final = 100
_MOST: Final = 400
_LARGEST: Final = 25.0
_REACH: Final = 1e4  # how far below the data-free walk a box goes: trials have far less budget than the final run


@dataclass(frozen=True, slots=True)
class AutopilotOptions:
    """Objective, shares, trials of a stage, and compute (``epochs``: the most passes over the records of one run).

    ``held_out``: share of the records, by secret coins, for scores and figures; None: ``default_held_out``.
    ``tuning``: share of mu^2 that trials take. Scores take half of what the held-out records may cost, final figures
    the other half. ``threshold``: of linear heads, whose step sizes follow from it.

    Example:
        >>> AutopilotOptions().shares == SHARES, AutopilotOptions(tuning=0.0).trials
        (True, 3)
    """

    objective: str = "accuracy"
    held_out: float | None = None
    tuning: float = TUNING_SHARE
    trials: int = 3
    epochs: float | None = None
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        check_objective(self.objective)
        checked: dict[str, Any] = {
            "tuning": _validate.share("It is the part of mu^2 for trials.", tuning_share=self.tuning),
            "trials": _validate.count(trials=self.trials, least=2),
        }
        if self.held_out is not None:
            kept = _validate.open_unit("It is the share kept apart for scores.", held_out_share=self.held_out)
            checked["held_out"] = kept
        if self.epochs is not None:
            checked["epochs"] = _validate.positive(epochs=self.epochs)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def shares(self) -> tuple[float, ...]:
        """Of mu^2, for each stage of trials; the later one has more."""
        return tuple(self.tuning * share / TUNING_SHARE for share in SHARES)

    def share_held_out(self, budget: Budget, size: float) -> float:
        """The share of the records that is held out."""
        return default_held_out(budget, size) if self.held_out is None else self.held_out


def default_held_out(budget: Budget, size: float) -> float:
    """As many records as let noise move an accuracy by a tenth of a point, but 5 % to 10 % of all.

    ::

        figures have half of mu^2, so noise moves a rate in h n records by 1 / (mu h n)
        set to 0.001:    h = 1000 / (mu n), at least 0.05, at most 0.1

    A record that is held out is not trained on: 10 % lose 10 % of mu n.

    Example:
        >>> default_held_out(Budget(1.0, 1e-5), 5_000), default_held_out(Budget(1.0, 1e-5), 200_000)
        (0.1, 0.05)

    Reference:
        On data of their own (benchmarks/tune, "defaults") 2 % and 5 % lost the same, 10 % a little more, 20 % much.
    """
    return min(max(1 / (_FIGURE_NOISE * gdp_mu(budget) * size), _LEAST_HELD_OUT), _MOST_HELD_OUT)


@dataclass(frozen=True, slots=True)
class StepDefaults:
    """The step sizes and steps that are allowed, and the data-free walk r = lr * steps among them."""

    box: SearchBox
    walk: float

    def options(self) -> dict[str, Any]:
        """The options of ``plan_scaling``: trials within a factor of 4 of the walk, and r in proportion to mu.

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


def head_defaults(
    mu: float,
    size: float,
    classes: int,
    epochs: float | None = None,
    *,
    momentum: float = MOMENTUM,
    threshold: float = THRESHOLD,
) -> StepDefaults:
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
    box = SearchBox((walk / most / _REACH, largest), (few, most), Candidate(largest, few))
    return StepDefaults(box, box.inside(walk))


def head_options(task: ProbeTask, budget: Budget, epochs: float | None = None) -> dict[str, Any]:
    """The autopilot's options of ``linear_scaling`` for linear heads on unit rows: box, data-free walk, band, law.

    Example:
        ``linear_scaling(task, budget, **head_options(task, budget))``
    """
    defaults = head_defaults(
        gdp_mu(budget), task.size, task.train_features.classes, epochs, momentum=task.momentum, threshold=task.threshold
    )
    return defaults.options()


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


def module_defaults(*, noise_multiplier: float, batch_size: float, steps: int) -> StepDefaults:
    """About ``module_lr``, at the number of steps that the batch rule fixed."""
    lr = module_lr(noise_multiplier=noise_multiplier, batch_size=batch_size, steps=steps)
    box = SearchBox((lr / _REACH, lr * _REACH), (steps, steps))
    return StepDefaults(box, lr * steps)
