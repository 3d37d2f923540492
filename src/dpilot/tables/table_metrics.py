"""How good the model is, from one noisy release on the held-out part; or exactly, on records declared public."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from dpilot._arrays import Floats
from dpilot.data.encoder import Encoded
from dpilot.errors import InvalidInput
from dpilot.mechanism import SYSTEM, Draws, Noise
from dpilot.metrics.counts import Scored, exact_counts, noisy_counts
from dpilot.metrics.metric import Metric
from dpilot.metrics.regression import exact_sums, noisy_sums, regression_scores
from dpilot.metrics.residuals import exact_residuals, noisy_residuals, residual_scores, split_noise
from dpilot.metrics.scores import scores
from dpilot.tables.declaration import TableTask
from dpilot.train.run import predict

__all__ = ["exact_metrics", "noisy_metrics", "outputs", "probabilities"]


def noisy_metrics(
    model: nn.Module,
    records: Encoded,
    task: TableTask,
    *,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise = SYSTEM,
) -> tuple[Metric, ...]:
    """Every figure of ``records``, from one paid release; two where a number is predicted and groups are compared."""
    if task.numeric:
        paid = {"half_range": task.half_range, "receipt": receipt, "noise": noise}
        return _regression(model, records, task, noise_multiplier, paid)
    counts = noisy_counts(
        _predictions(model, records), task.layout, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise
    )
    return scores(counts)


def exact_metrics(model: nn.Module, records: Encoded, task: TableTask) -> tuple[Metric, ...]:
    """Every figure of ``records`` itself: for records that are declared public, and no others."""
    if task.numeric:
        pair = _target(records), outputs(model, records)[:, 0]
        whole = regression_scores(exact_sums(*pair, half_range=task.half_range))
        if task.groups is None or records.group is None:
            return whole
        table = exact_residuals(*pair, records.group, task.groups, half_range=task.half_range)
        return (*whole, *residual_scores(table))
    return scores(exact_counts(_predictions(model, records), task.layout))


def _regression(
    model: nn.Module, records: Encoded, task: TableTask, noise_multiplier: float, paid: dict[str, Any]
) -> tuple[Metric, ...]:
    """The figures of all records, and those of each group where there are groups, in the order of their receipt."""
    pair = _target(records), outputs(model, records)[:, 0]
    if task.groups is None or records.group is None:
        return regression_scores(noisy_sums(*pair, noise_multiplier=noise_multiplier, **paid))
    whole, grouped = split_noise(noise_multiplier)
    sums = noisy_sums(*pair, noise_multiplier=whole, **paid)
    table = noisy_residuals(*pair, records.group, task.groups, noise_multiplier=grouped, **paid)
    return (*regression_scores(sums), *residual_scores(table))


def outputs(model: nn.Module, records: Encoded) -> Floats:
    """The model's outputs in float64, nan in the row of a null record."""
    values = predict(model, torch.from_numpy(records.features)).double().numpy()
    known = np.asarray(np.isfinite(records.features).all(axis=1))
    return np.where(known[:, None], values, np.nan)


def probabilities(model: nn.Module, records: Encoded) -> Floats:
    """The probability of each class, nan in the row of a null record."""
    values = outputs(model, records)
    with np.errstate(all="ignore"):
        weights = np.exp(values - values.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _predictions(model: nn.Module, records: Encoded) -> Scored:
    return Scored(_target(records), probabilities(model, records), records.group)


def _target(records: Encoded) -> Floats:
    if records.target is None:
        raise InvalidInput("the records have no target: expected one to score them by. Declare it in the schema.")
    return records.target
