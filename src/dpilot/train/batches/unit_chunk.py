"""Units (persons with all their rows) in the shape of records: rows on a second axis, padded, and one loss a unit.

A chunk of n units is a pair (real, rows). ``real`` (n, cap) marks a unit's own rows; in ``rows``, a chunk of records,
what holds records has the shape (n, cap, ...). So a unit is one record of a step: it is sampled, clipped and counted
once, and the engine sees its rows as one more block axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpilot._arrays import Indices
from dpilot.engine import batch as batches

MEAN = "mean"
SUM = "sum"


def pad_rows(whole: Any, form: Any, sizes: Indices, cap: int) -> tuple[Tensor, Any]:
    """A chunk of rows, unit by unit, ``sizes`` of each, as a chunk of units; ``form`` is that of one row.

    Padding repeats a unit's own first row, which counts for nothing: zeros might be what no row is, and a model may
    divide by them.

    Guarantee:
        At most ``cap`` rows of a unit are in the chunk, and nothing of a unit is in another's rows.

    Example:
        >>> real, rows = pad_rows(torch.tensor([5, 7, 8, 9]), torch.zeros(1), np.array([1, 3]), 2)
        >>> real.tolist(), rows.tolist()
        ([[True, False], [True, True]], [[5, 5], [7, 8]])
    """
    real = np.arange(cap) < sizes[:, None]
    first = np.cumsum(sizes) - sizes
    places = torch.from_numpy(first[:, None] + np.where(real, np.arange(cap), 0))
    held = iter([like.dim() > 0 and like.shape[0] == 1 for like in batches.tensors(form)])
    return torch.from_numpy(real), batches.rebuild(whole, lambda t: t[places] if next(held) else t)


def repeat_rows(chunk: Any, count: int, cap: int) -> tuple[Tensor, Any]:
    """A public chunk of ``count`` rows as one of so many units: each has its row ``cap`` times."""
    device = next((t.device for t in batches.records(chunk, count)), None)

    def repeat(t: Tensor) -> Tensor:
        return t.unsqueeze(1).repeat(1, cap, *[1] * (t.dim() - 1)) if batches.holds_samples(t, count) else t

    return torch.ones(count, cap, dtype=torch.bool, device=device), batches.rebuild(chunk, repeat)


def row_form(form: tuple[Tensor, Any]) -> Any:
    """The form of one row, from a public chunk of units."""
    count = form[0].shape[0]
    return batches.rebuild(form[1], lambda t: t[:1, 0] if batches.holds_samples(t, count) else t)


def unit_losses(
    loss_fn: Callable[..., Tensor], per_batch: bool, gradient: str, model: Any, batch: tuple[Tensor, Any]
) -> Tensor:
    """One loss a unit: the mean over its own rows, or their sum.

    ::

        mean    1/m sum_j loss(row j), over the m rows of the unit that are real       sum    without 1/m

    A row whose loss is not finite makes the unit null, as the unit's gradient is not finite.
    """
    real, rows = batch
    units, cap = real.shape
    flat = batches.rebuild(rows, lambda t: t.flatten(0, 1) if batches.holds_samples(t, units) else t)
    chunk = batches.Chunk(model, loss_fn, flat, units * cap, per_batch)
    losses = batches.check_losses(chunk.losses(), chunk.n)
    total = torch.where(real, losses.reshape(units, cap), 0.0).sum(1)
    return total / real.sum(1) if gradient == MEAN else total
