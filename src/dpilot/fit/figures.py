"""How good a model is, from one paid release on the held-out part; or exactly, on records declared public."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpilot._arrays import Floats
from dpilot.data.encoder import Encoded
from dpilot.errors import InvalidInput
from dpilot.fit.declaration import FitTask
from dpilot.linear.problem import LinearProblem
from dpilot.linear.scoring import Grouped, noisy_scores, score_event
from dpilot.mechanism import Draws, Noise
from dpilot.metrics.counts import Scored, counts_event, exact_counts, noisy_counts
from dpilot.metrics.metric import Metric
from dpilot.metrics.regression import exact_sums, noisy_sums, regression_scores, sums_event
from dpilot.metrics.residuals import both_events, exact_residuals, noisy_residuals, residual_scores, split_noise
from dpilot.metrics.scores import scores
from dpilot.privacy.events import Event

__all__ = ["CountFigures", "HeldOutFigures", "ReachFigures", "SumFigures", "exact_figures", "softmax"]


class HeldOutFigures(Protocol):
    """What is released of held-out records and a model's outputs for them."""

    @property
    def event(self) -> Event: ...

    def release(self, records: Encoded, outputs: Floats, receipt: Draws, noise: Noise) -> tuple[Metric, ...]: ...


@dataclass(frozen=True, slots=True)
class CountFigures:
    """Every figure of a classifier, from one noisy table of counts; outputs are probabilities."""

    task: FitTask
    noise_multiplier: float

    @property
    def event(self) -> Event:
        return counts_event(self.noise_multiplier)

    def release(self, records: Encoded, outputs: Floats, receipt: Draws, noise: Noise) -> tuple[Metric, ...]:
        scored = Scored(_target(records), outputs, records.group)
        counts = noisy_counts(
            scored, self.task.layout, noise_multiplier=self.noise_multiplier, receipt=receipt, noise=noise
        )
        return scores(counts)


@dataclass(frozen=True, slots=True)
class SumFigures:
    """Error and explained variance of a number between declared bounds; residuals by group where there are groups."""

    task: FitTask
    noise_multiplier: float

    @property
    def event(self) -> Event:
        return (both_events if self.task.groups else sums_event)(self.noise_multiplier)

    def release(self, records: Encoded, outputs: Floats, receipt: Draws, noise: Noise) -> tuple[Metric, ...]:
        half_range, pair = _scaled(self.task, records, outputs)
        paid: dict[str, Any] = {"half_range": half_range, "receipt": receipt, "noise": noise}
        if self.task.groups is None or records.group is None:
            return regression_scores(noisy_sums(*pair, noise_multiplier=self.noise_multiplier, **paid))
        whole, grouped = split_noise(self.noise_multiplier)
        sums = noisy_sums(*pair, noise_multiplier=whole, **paid)
        table = noisy_residuals(*pair, records.group, self.task.groups, noise_multiplier=grouped, **paid)
        return (*regression_scores(sums), *residual_scores(table))


@dataclass(frozen=True, slots=True)
class ReachFigures:
    """The same of a number whose reach is released first: targets lie about ``center`` by some ``width``, released."""

    task: FitTask
    problem: LinearProblem
    center: float = 0.0
    width: float = 1.0

    @property
    def event(self) -> Event:
        return score_event(self.problem, grouped=self.task.groups is not None)

    def release(self, records: Encoded, outputs: Floats, receipt: Draws, noise: Noise) -> tuple[Metric, ...]:
        target, groups = _target(records), self.task.groups
        known = np.isfinite(target)
        grouped = None
        if groups is not None and records.group is not None:
            grouped = Grouped(records.group[known], groups)
        return noisy_scores(
            target[known],
            outputs[known, 0],
            center=self.center,
            width=self.width,
            problem=self.problem,
            receipt=receipt,
            noise=noise,
            grouped=grouped,
        )


def exact_figures(task: FitTask, records: Encoded, outputs: Floats) -> tuple[Metric, ...]:
    """Every figure of ``records`` itself: for records that are declared public, and no others."""
    if not task.numeric:
        return scores(exact_counts(Scored(_target(records), outputs, records.group), task.layout))
    half_range, pair = _scaled(task, records, outputs)
    whole = regression_scores(exact_sums(*pair, half_range=half_range))
    if task.groups is None or records.group is None:
        return whole
    return (*whole, *residual_scores(exact_residuals(*pair, records.group, task.groups, half_range=half_range)))


def softmax(outputs: Floats) -> Floats:
    """The probability of each class from outputs, nan in the row of a null record."""
    with np.errstate(all="ignore"):
        weights = np.exp(outputs - outputs.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _scaled(task: FitTask, records: Encoded, outputs: Floats) -> tuple[float, tuple[Floats, Floats]]:
    """Half of the declared range, or of that of public records, and targets and outputs in units of it, centred."""
    target = _target(records)
    lower, upper = task.interval or (float(np.nanmin(target)), float(np.nanmax(target)))
    half = max((upper - lower) / 2, 1e-300)
    middle = lower + half
    # the ends of the bounds are inside, whatever rounding makes of them
    return half, (np.clip((target - middle) / half, -1.0, 1.0), (outputs[:, 0] - middle) / half)


def _target(records: Encoded) -> Floats:
    if records.target is None:
        raise InvalidInput("the records have no target: expected one to score them by. Declare it in the schema.")
    return records.target
