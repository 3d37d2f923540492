"""Euclidean lengths of long rows of floats, and what may vanish of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def lengths(rows: Tensor) -> Tensor:
    """Upper bounds of Euclidean lengths along the last dimension, in float32 or better.

    What vanished when numbers were squared is added: |x| <= computed + root(m).
    """
    found = norms(rows)
    return found + root(rows.shape[-1], found.dtype)


def norms(rows: Tensor) -> Tensor:
    """Euclidean lengths along the last dimension, in float32 or better, of long rows block by block.

    Long chains of float32 sums lean to one side: the norm of 2^24 equal numbers came out 1 % short.
    """
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()  # else they are added one after the other
    width, wide = rows.shape[-1], torch.float32 if rows.dtype == torch.bfloat16 else None
    if width <= BLOCK:
        short: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=wide)
        return short
    even = width - width % BLOCK
    blocks: Tensor = torch.linalg.vector_norm(torch.unflatten(rows[..., :even], -1, (-1, BLOCK)), dim=-1, dtype=wide)
    last: Tensor = torch.linalg.vector_norm(rows[..., even:], dim=-1, keepdim=True, dtype=wide)
    return norms(torch.cat([blocks, last], dim=-1))


BLOCK = 256
"""Numbers whose squares are summed at a time."""


def root(width: int, dtype: torch.dtype) -> float:
    """The longest row of so many numbers that may vanish when its squares are added: sqrt(2 m tiny).

    A product below the smallest normal float may be flushed to zero, and so may a sum when it is read again.
    """
    return math.sqrt(2 * width * torch.finfo(dtype).tiny)
