"""Hardened noise: an exact law on a grid, from the operating system's own generator.

Floating-point noise has holes: which low-order bits a noisy sum can have depends on the sum (Mironov 2012). Here both
lie on a grid of a power of two, where addition is exact::

    release = g round(sum / g) + g round(Y / g)      Y ~ N(0, scale^2),   g = 2^floor(log2(scale)) 2^-20

g round(sum / g) is a multiple of g, so the release is g round((g round(sum / g) + Y) / g): a function of the continuous
Gaussian mechanism on the rounded sum and of nothing else. Every accounting of the Gaussian, sampling included, holds as
it is. Rounding moves each coordinate by g / 2 at most, which ``scale`` allows for. See docs/proofs/hardened.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.noise import Leaf, is_tensor

__all__ = ["HARDENED", "HardenedNoise", "grid_size", "rounded_gaussian"]

HARDENED: Final = "hardened noise: an exact law on a grid"

_FINE: Final = 20  # the grid has 2^20 to 2^21 points in one standard deviation
_BLOCK: Final = 1 << 16
_DOUBT: Final = 1e-12  # relative, by which an inverse of the normal law may be wrong: it is seen to be right to 1e-14
_DIGITS: Final = 60


class HardenedNoise:
    """Gaussian noise on a grid, exact, from the operating system's generator; a fresh draw for every release.

    Guarantee:
        What is released is a function of the Gaussian mechanism, at the same price, applied to the sum rounded to the
        grid; no low-order bit of sum or noise is in it. The bound is widened by what rounding a sum of that many
        coordinates can add, so the noise is larger by a factor of 1 + noise_multiplier sqrt(d) 2^-20 at most.
        Sums whose records were each rounded to ``grid_size`` first are exact, and nothing of a record is in their order
        either; other sums carry the rounding of their own addition.

    Edge cases:
        values on an accelerator    refused: sums there have no fixed order
        resume                      there is no state to resume from
    """

    __slots__ = ()
    stamp: Final[str] = HARDENED

    def gaussian(self, values: Sequence[Leaf], *, bound: float, noise_multiplier: float) -> list[Leaf]:
        grid = grid_size(bound, noise_multiplier)
        numbers = sum(int(np.prod(np.shape(value))) for value in values)
        scale = noise_multiplier * (bound + grid * math.sqrt(numbers))
        return [_add_on_grid(value, grid, scale) for value in values]

    def choice(self, log_weights: Floats) -> int:
        """An index by one uniform number; its law is right to 2^-50."""
        shares = np.cumsum(np.exp(log_weights - np.max(log_weights)))
        return int(np.searchsorted(shares, shares[-1] * (_words(1)[0] >> np.uint64(11)) * 2.0**-53, side="right"))


def grid_size(bound: float, noise_multiplier: float) -> float:
    """The distance of the grid's points for noise of this scale: a power of two, 2^-20 of the scale or less.

    >>> grid_size(1.0, 1.0) == 2.0**-20, grid_size(3.0, 1.0) == 2.0**-19
    (True, True)
    """
    return math.ldexp(1.0, math.frexp(noise_multiplier * bound)[1] - 1 - _FINE)


def rounded_gaussian(count: int, scale: float) -> NDArray[np.int64]:
    """``count`` numbers round(Y), Y ~ N(0, scale^2) continuous: exact, however many bits that takes.

    Each is the inverse of the normal law at a uniform number of which 64 bits are drawn first. Where these bits, or the
    error of the inverse in floating point, leave two integers open, more bits are drawn and the law itself is computed
    to 60 digits: about once in a million numbers.

    >>> drawn = rounded_gaussian(10_000, 1000.0)
    >>> bool(abs(drawn.std() / 1000 - 1) < 0.05), drawn.dtype.name
    (True, 'int64')
    """
    drawn = np.empty(count, dtype=np.int64)

    def fill(start: int) -> None:
        drawn[start : start + _BLOCK] = _round(_words(min(_BLOCK, count - start)), scale)

    starts = range(0, count, _BLOCK)
    if len(starts) < 2:
        list(map(fill, starts))
    else:
        with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
            list(pool.map(fill, starts))
    return drawn


def _words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def _round(words: NDArray[np.uint64], scale: float, more: Callable[[], int] | None = None) -> NDArray[np.int64]:
    """The integers of uniform 64-bit words: one bit is the sign, 63 are the first of the tail probability."""
    from scipy.special import ndtri

    tail = (words >> np.uint64(1)).astype(np.float64) + 0.5  # of 2^64: in (0, 1/2)
    distance = -ndtri(tail * 2.0**-64)
    size = scale * distance
    nearest = np.rint(size)
    # the first bits leave the tail probability open by 1 / tail of itself, that is the distance by as much at most
    doubt = scale * (_DOUBT * (1 + distance) + 1 / tail)
    for place in np.flatnonzero(0.5 - np.abs(size - nearest) <= doubt):
        nearest[place] = _decide(int(words[place] >> np.uint64(1)), scale, more or _next_word)
    negative = (words & np.uint64(1)).astype(bool)
    return np.where(negative, -nearest, nearest).astype(np.int64)


def _next_word() -> int:
    return int(_words(1)[0])


def _decide(bits: int, scale: float, more: Callable[[], int]) -> int:
    """The integer of a tail probability with these first bits (of 64, the first one 0), more being drawn as needed.

    k is the number of half-integers j + 1/2 that the size exceeds, and it does where the probability is below
    Phi(-(j + 1/2) / scale).
    """
    from mpmath import mp, mpf, ncdf

    known = 64
    with mp.workdps(_DIGITS):
        while True:
            low, high = mpf(bits) / mpf(2) ** known, mpf(bits + 1) / mpf(2) ** known
            least, most = 0, math.ceil(60 * scale)
            while least < most:
                middle = (least + most) // 2
                edge = ncdf(-(mpf(middle) + mpf(1) / 2) / mpf(scale))
                if low < edge < high:
                    break
                least, most = (middle + 1, most) if high <= edge else (least, middle)
            if least >= most:
                return least
            bits, known = (bits << 64) | more(), known + 64


def _add_on_grid(value: Any, grid: float, scale: float) -> Any:
    """The value rounded to the grid plus noise on it, in the value's own type."""
    if is_tensor(value):
        if value.device.type != "cpu":
            raise InvalidInput(
                f"hardened noise is asked for on {value.device}: expected the CPU, where sums have a fixed order. "
                'Train on device="cpu", or leave out noise="hardened".'
            )
        import torch

        noisy = torch.from_numpy(_add_numbers(value.detach().double().numpy(), grid, scale))
        return noisy.to(value.dtype)
    return np.asarray(_add_numbers(value.astype(np.float64), grid, scale).astype(value.dtype))


def _add_numbers(value: Floats, grid: float, scale: float) -> Floats:
    noise = rounded_gaussian(value.size, scale / grid).reshape(value.shape)
    with np.errstate(all="ignore"):  # a sum of any size and kind is released without a word
        return np.asarray((np.rint(value / grid) + noise) * grid)
