"""Gradients of linear heads where a unit has several rows: the mean of its rows' gradients, clipped once.

With share s_r = 1 / k of each of its k rows, the gradient of a unit is G = sum_r s_r x_r (p_r - y_r)^T. It is never
formed: its norm follows from the inner products of the unit's rows, which stay the same in all steps::

    |G|^2 = sum_rt (v_r . v_t) cos(x_r, x_t),       v_r = s_r |x_r| (p_r - y_r)         weighing G is weighing all v_r

The rows of a unit lie side by side, so these are products of rows i and i + lag, for lags below the cap.

Precision: with u = 2^-24 and A = sum_r |v_r|, float32 is off by at most u A^2 times classes (a product of two v), 2 cap
(sums over rows), 9 (the roundings of v and of cosines, which are taken in float64) and 5 (those of weighed residuals,
2 u A in length). So norms are sqrt(|G|^2 + (classes + 2 cap + 32) u A^2), never less than the norm of what is added up
(``test_the_norm_of_a_unit_is_no_less_than_it_is_and_hardly_more``). Where rows cancel, A is longer than G: weighed, by
at most sqrt(1 / 32 u) < 2^10 thresholds. Sums are in float64, whose roundings of numbers of that size are below
2^-40 thresholds each, far less than what the threshold was lowered by.

Limits are cut at 1e15, so the v of a row of next to no length is longer than its gradient, and could hide that of
another: by at most 1e-15 times its class weight, and no weight is above 1e9 (``fit_heads``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpilot.data.disk import DiskArray, DiskArrayBuilder
from dpilot.data.units import cut_units
from dpilot.private_sum import PerSampleGradients

__all__ = ["UnitBlock", "UnitBlocksOnDisk", "UnitHeadGradients", "cut_blocks"]

_ROUNDING: Final = 2.0**-24


@dataclass(frozen=True, slots=True, eq=False)
class UnitBlock:
    """Whose the rows of one block are: whole units, in the order of their rows. Sensitive."""

    start: int  # the place of its first row
    count: int  # of units
    numbers: Tensor  # (b,) int64, of each row's unit; ``count`` for rows that are not this block's
    shares: Tensor  # (b,) float32, 0 for those
    cosines: tuple[
        Tensor, ...
    ]  # that of lag l (b - l,) float32, between rows i and i + l; 0 where they are of two units
    most: int  # rows of a unit, as declared


@final
class UnitBlocksOnDisk:
    """Blocks whose numbers lie on disk: read one by one, as often as they are asked for."""

    def __init__(self, described: list[tuple[int, int, int, int, int]], numbers: DiskArray, floats: DiskArray) -> None:
        self._described, self._numbers, self._floats = described, numbers, floats

    @classmethod
    def of(cls, blocks: Iterator[UnitBlock], rows: int) -> UnitBlocksOnDisk:
        described = list[tuple[int, int, int, int, int]]()
        numbers, floats = DiskArrayBuilder(np.int32, (rows,)), DiskArrayBuilder(np.float32, (rows,))
        for each in blocks:
            described.append((each.start, each.count, each.most, len(floats), 1 + len(each.cosines)))
            numbers.append(each.numbers[None].numpy())
            for lag, values in enumerate((each.shares, *each.cosines)):
                floats.append(pad(values, (0, lag))[None].numpy())
        return cls(described, numbers.build(), floats.build())

    def __iter__(self) -> Iterator[UnitBlock]:
        for place, (start, count, most, first, many) in enumerate(self._described):
            numbers = torch.from_numpy(self._numbers[place : place + 1][0].astype(np.int64))
            shares, *cosines = torch.from_numpy(self._floats[first : first + many])
            cut = (values[: len(values) - lag] for lag, values in enumerate(cosines, 1))
            yield UnitBlock(start, count, numbers, shares, tuple(cut), most)


def cut_blocks(
    values: Tensor, lengths: Tensor, units: Tensor, shares: Tensor, *, rows: int, most: int
) -> Iterator[UnitBlock]:
    """Blocks of whole units, at most ``rows`` long; ``units`` ascend, and none has more than ``most`` rows."""
    numbered: Any = units.cpu().numpy() if isinstance(units, Tensor) else units
    for place in cut_units(numbered, rows) if len(units) else [slice(0, 0)]:
        some = units[place]
        changes = (some.diff() > 0).long()
        numbers = torch.cat([changes.new_zeros(min(len(some), 1)), changes.cumsum(0)])
        count = int(numbers[-1]) + 1 if len(some) else 0
        longest = int(numbers.bincount().amax()) if count else 0
        missing = rows - len(some)
        padded = pad(numbers, (0, missing), value=count)
        cosines = _cosines(values[place], lengths[place], padded, longest)
        yield UnitBlock(place.start, count, padded, pad(shares[place], (0, missing)), cosines, most)


def _cosines(values: Tensor, lengths: Tensor, numbers: Tensor, longest: int) -> tuple[Tensor, ...]:
    """Between rows ``lag`` apart, for each lag below ``longest``; rounded from float64."""
    rows = values.double() / lengths.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
    made = []
    for lag in range(1, longest):
        same = numbers[lag : len(rows)] == numbers[: len(rows) - lag]
        products = torch.where(same, torch.linalg.vecdot(rows[lag:], rows[:-lag]), 0.0).float()
        made.append(pad(products, (0, len(numbers) - len(rows))))
    return tuple(made)


@final
class UnitHeadGradients(PerSampleGradients):
    """The gradients of the units of one block, a group for each head; norms are in thresholds.

    ``residuals`` (heads, classes, b) and ``limits`` (heads, b) are those of the rows (b, d), as for records.

    Guarantee:
        What a unit adds to the sum of head j is no longer than weight times norm times threshold, for the very numbers
        that are multiplied. Units move nothing of one another: not by values that are not finite either.

    Edge cases:
        A row whose scores are not finite, or that is longer than 1e15 thresholds, makes its unit null for that head.
    """

    def __init__(self, rows: Tensor, residuals: Tensor, limits: Tensor, block: UnitBlock) -> None:
        self._rows, self._residuals, self._limits, self._block = rows, residuals, limits, block

    @property
    def norms(self) -> Tensor:
        block, vectors = self._block, self._residuals * (self._block.shares / self._limits)[:, None]
        squares = vectors.square().sum(1)  # (heads, b)
        products = squares.clone()
        for lag, cosines in enumerate(block.cosines, 1):
            found = (vectors[:, :, lag:] * vectors[:, :, :-lag]).sum(1).mul_(cosines)
            products[:, lag:] += torch.where(cosines == 0, 0.0, found).mul_(2.0)  # also where a neighbour is not finite
        room = (self._residuals.shape[1] + 2 * block.most + 32) * _ROUNDING
        found = self._by_unit(products) + room * self._by_unit(squares.sqrt_()).square()
        return found.sqrt_()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        heads, classes, rows = self._residuals.shape
        each = pad(weights, (0, 0, 0, 1))[self._block.numbers].T * self._block.shares
        weighed = (self._residuals * each[:, None]).nan_to_num_(nan=0.0)
        kind = torch.float32 if weighed.device.type == "mps" else torch.float64  # which has no float64
        return torch.mm(weighed.view(heads * classes, rows).to(kind), self._rows.to(kind)).view(heads, classes, -1)

    def _by_unit(self, values: Tensor) -> Tensor:
        """Sums (units, heads) of (heads, b)."""
        sums = values.new_zeros(self._block.count + 1, len(values))
        return sums.index_add_(0, self._block.numbers, values.T)[:-1]
