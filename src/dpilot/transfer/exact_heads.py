"""Sums of linear heads on a grid, for hardened noise: what each record adds is cut by itself, and added up exactly.

Features are cut once, to 2^-20 of the power of two above the length of their row, towards zero, and stay float32.
Weighed residuals, in units of the noise, are cut at every step, to 2^-20 of what a head may send, over that power. Both
shrink number by number, so the bound stays as it is; their products are multiples of 2^-40 of it, of which float64 adds
up a block (fewer than 2^12 records) exactly, and two limbs all blocks (``numerics.grid``, docs/proofs/hardened.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpilot.numerics.grid import add_to_limbs, join_limbs, power_below
from dpilot.transfer.joint import JointHeads, clip_heads

__all__ = ["cut_features", "powers_above", "sum_exactly"]

_FINE: Final = 2.0**-20
_SHORTEST: Final = 2.0**-100  # a shorter row is zero: float32 could not hold its grid


class BlockGradients(Protocol):
    """What a sum needs of the gradients of one block."""

    rows: Tensor

    @property
    def norms(self) -> Tensor: ...

    def weigh(self, weights: Tensor) -> Tensor: ...


def cut_features(rows: Tensor) -> Tensor:
    """Rows (n, d) float32, each on the grid of its own length: no number grows."""
    wide = rows.double()
    lengths = torch.linalg.vector_norm(wide, dim=1)
    grid = (powers_above(lengths.clamp_min(_SHORTEST)) * _FINE)[:, None]
    return torch.where((lengths >= _SHORTEST)[:, None], (wide / grid).trunc_().mul_(grid), 0.0).float()


def powers_above(lengths: Tensor) -> Tensor:
    """2^k with 2^(k-1) <= length < 2^k; 1 for null records, whose length is infinite, and for rows of zeros."""
    return torch.exp2(torch.frexp(torch.where(torch.isfinite(lengths), lengths, 0.0))[1].double())


def sum_exactly(blocks: Iterable[BlockGradients], powers: Tensor, shape: torch.Size, joint: JointHeads) -> Tensor:
    """The sum of clipped gradients (heads, classes, d), each head's in units of its noise, in float64: the same for
    every order of the records, to the last bit."""
    limbs, start = torch.zeros((2, *shape), dtype=torch.float64), 0
    units, coarse = (
        torch.tensor(each, dtype=torch.float64)[:, None, None]
        for each in (joint.units, [power_below(1 / sigma) * _FINE for sigma in joint.multipliers])
    )
    wide = torch.empty(0)
    for block in blocks:
        count = len(block.rows)
        wide = wide if wide.shape == block.rows.shape else block.rows.double()
        own = powers[start : start + count]
        grid = coarse / pad(own, (0, count - len(own)), value=1.0)
        pull = block.weigh(clip_heads(block.norms, None)[0]).double()
        pull.div_(units).div_(grid).trunc_().mul_(grid)  # towards zero: no longer than it was
        sums = torch.mm(pull.view(-1, count), wide.copy_(block.rows)).view(shape)
        add_to_limbs(limbs, sums, coarse * _FINE)
        start += count
    return torch.from_numpy(join_limbs(limbs.numpy()))
