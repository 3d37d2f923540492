"""How a kernel moves over its input, and what it sees where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from dpilot.engine.base import NoRule


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a kernel moves over its input; padding is already applied when ``padding`` is zero."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def unfold(a: Tensor, geometry: Geometry, positions: tuple[int, ...]) -> Tensor:
    """A view (rows, C, *kernel, *positions) of the padded input: what each kernel entry sees at each position."""
    if any(geometry.padding):
        a = F.pad(a, [width for side in reversed(geometry.padding) for width in (side, side)])
    a = a.contiguous()
    space = a.stride()[2:]
    steps = [s * d for s, d in zip(space, geometry.dilation, strict=True)]
    moves = [s * m for s, m in zip(space, geometry.stride, strict=True)]
    return a.as_strided((*a.shape[:2], *geometry.kernel, *positions), (*a.stride()[:2], *steps, *moves))


def even_parts(start: int, stop: int, each: int, most: int) -> list[tuple[int, int]]:
    """Ranges of samples of ``each`` numbers, as few as hold ``most`` numbers at a time, of about equal size.

    Example:
        >>> even_parts(0, 10, each=3, most=12)
        [(0, 4), (4, 8), (8, 10)]
    """
    fitting = max(1, most // max(1, each))
    count = -(-(stop - start) // fitting)
    step = -(-(stop - start) // max(1, count))
    return [(at, min(at + step, stop)) for at in range(start, stop, max(1, step))]


def spatial_dims(x: Tensor, weight: Tensor) -> int:
    """The number of spatial dimensions; an input without a batch dimension is refused."""
    if x.dim() != weight.dim():
        raise NoRule(
            f"a convolution of an input of shape {tuple(x.shape)} without samples first. Add a batch dimension."
        )
    return weight.dim() - 2


def tuple_of(value: Any, length: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(int(v) for v in values) * (length if len(values) == 1 else 1)


def pad_same(x: Tensor, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """The zeros padding="same" asks for; the odd one goes to the right."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return F.pad(x, [width for total in reversed(totals) for width in (total // 2, total - total // 2)])
