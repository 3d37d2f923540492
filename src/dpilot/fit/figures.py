"""How good a model is, from one paid release on the held-out part; or exactly, on records declared public."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dpilot._arrays import Floats
from dpilot.data.encoder import Encoded
from dpilot.errors import InvalidInput
from dpilot.fit.declaration import FitTask
from dpilot.linear.problem import LinearProblem
from dpilot.linear.scoring import Grouped, noisy_scores, score_event
from dpilot.mechanism import Draws, Noise
from dpilot.metrics.counts import Scored, counts_event, exact_counts, noisy_tables
from dpilot.metrics.metric import Metric
from dpilot.metrics.regression import exact_sums, noisy_sums, regression_scores, sums_event
from dpilot.metrics.residuals import both_events, exact_residuals, noisy_residuals, residual_scores, table_noise
from dpilot.metrics.scores import scores_by
from dpilot.privacy.events import Event

__all__ = ["CountFigures", "HeldOutFigures", "ReachFigures", "SumFigures", "exact_figures", "softmax"]


class HeldOutFigures(Protocol):
    """What is released of held-out records and a model's outputs for them.

    Numbers come as an array (n, 1); probabilities (n, classes), of a table that is too large for memory on disk.
    """

    @property
    def event(self) -> Event: ...

    def release(self, records: Encoded, outputs: Any, receipt: Draws, noise: Noise) -> tuple[Metric, ...]: ...


@dataclass(frozen=True, slots=True)
class CountFigures:
    """Every figure of a classifier, from one noisy table of counts."""

    task: FitTask
    noise_multiplier: float

    @property
    def event(self) -> Event:
        return counts_event(self.noise_multiplier)

    def release(self, records: Encoded, outputs: Any, receipt: Draws, noise: Noise) -> tuple[Metric, ...]:
        layouts = self.task.layouts
        scored = _score_tables(records, outputs, len(layouts))
        return scores_by(
            noisy_tables(scored, layouts, noise_multiplier=self.noise_multiplier, receipt=receipt, noise=noise)
        )


@dataclass(frozen=True, slots=True)
class SumFigures:
    """Error and explained variance of a number between declared bounds; residuals by group where there are groups."""

    task: FitTask
    noise_multiplier: float

    @property
    def event(self) -> Event:
        tables = len(self.task.groups)
        return both_events(self.noise_multiplier, tables) if tables else sums_event(self.noise_multiplier)

    def release(self, records: Encoded, outputs: Floats, receipt: Draws, noise: Noise) -> tuple[Metric, ...]:
        half_range, pair = _scale(self.task, records, outputs)
        paid: dict[str, Any] = {"half_range": half_range, "receipt": receipt, "noise": noise}
        groups = _groups(self.task, records)
        whole, each = self.noise_multiplier, 0.0
        if groups:
            whole, each = table_noise(self.noise_multiplier, len(groups))
        sums = noisy_sums(*pair, noise_multiplier=whole, **paid)
        tables = (noisy_residuals(*pair, one.codes, one.groups, noise_multiplier=each, **paid) for one in groups)
        return (*regression_scores(sums), *(figure for table in tables for figure in residual_scores(table)))


@dataclass(frozen=True, slots=True)
class ReachFigures:
    """The same of a number whose reach is released first: targets lie about ``center`` by some ``width``, released."""

    task: FitTask
    problem: LinearProblem
    center: float = 0.0
    width: float = 1.0

    @property
    def event(self) -> Event:
        return score_event(self.problem, attributes=len(self.task.groups))

    def release(self, records: Encoded, outputs: Floats, receipt: Draws, noise: Noise) -> tuple[Metric, ...]:
        target = _target(records)
        known = np.isfinite(target)
        grouped = [replace(each, codes=each.codes[known]) for each in _groups(self.task, records)]
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
        pairs = zip(_score_tables(records, outputs, len(task.layouts)), task.layouts, strict=True)
        return scores_by([exact_counts(scored, layout) for scored, layout in pairs])
    half_range, pair = _scale(task, records, outputs)
    whole = regression_scores(exact_sums(*pair, half_range=half_range))
    tables = (exact_residuals(*pair, each.codes, each.groups, half_range=half_range) for each in _groups(task, records))
    return (*whole, *(figure for table in tables for figure in residual_scores(table)))


def softmax(outputs: Floats) -> Floats:
    """The probability of each class from outputs, nan in the row of a null record."""
    with np.errstate(all="ignore"):
        weights = np.exp(outputs - outputs.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _score_tables(records: Encoded, outputs: Any, tables: int) -> list[Scored]:
    """The records by each protected column, or by none."""
    target, group = _target(records), records.group
    return [Scored(target, outputs, None if group is None else group[:, place]) for place in range(tables)]


def _groups(task: FitTask, records: Encoded) -> list[Grouped]:
    """The group codes of the records by each protected column."""
    if records.group is None:
        return []
    return [Grouped(codes, groups) for codes, groups in zip(records.group.T, task.groups, strict=True)]


def _scale(task: FitTask, records: Encoded, outputs: Floats) -> tuple[float, tuple[Floats, Floats]]:
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
    return np.asarray(records.target)
