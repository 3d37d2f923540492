"""How far float rounding can move a norm, and how the engine stays on the safe side of it.

With u the unit roundoff (2^-24 in float32), S = sum_t |a_t| |e_t| and products accumulated in any order by a kernel
that keeps a few partial sums, rounding errors add like a random walk: a dot product of length m is off by about
sqrt(m) u (Higham and Mary 2019). The constants below leave a factor of four over that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

LOOSE = 0.02
"""A Gram norm whose slack exceeds this part of the squared norm is replaced by the materialised one."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def gram_slack(d: int, p: int, dtype: torch.dtype) -> float:
    """k u: the computed Gram norm is within k u S^2 of the true square, k = sqrt(d) + sqrt(p) + 16."""
    k = math.sqrt(d) + math.sqrt(p) + 16
    return k * unit_roundoff(dtype)


def product_slack(tokens: int, dtype: torch.dtype) -> float:
    """c u: a summed product of T tokens is within c u S of the true gradient, c = 4 (sqrt(T) + 1)."""
    return 4 * (math.sqrt(tokens) + 1) * unit_roundoff(dtype)


@contextmanager
def full() -> Iterator[None]:
    """Run products in full float32: no autocast, no TF32, no bfloat16 passes; restores what was set."""
    with ExitStack() as settings:
        if (before := torch.get_float32_matmul_precision()) != "highest":
            torch.set_float32_matmul_precision("highest")
            settings.callback(torch.set_float32_matmul_precision, before)
        if torch.cuda.is_available() and torch.backends.cudnn.allow_tf32:
            torch.backends.cudnn.allow_tf32 = False
            settings.callback(setattr, torch.backends.cudnn, "allow_tf32", True)
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                settings.enter_context(torch.autocast(device, enabled=False))
        yield
