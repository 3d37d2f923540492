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
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import shake_256
from itertools import accumulate, count
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats, is_tensor
from dpilot.errors import InvalidInput

__all__ = ["Streams", "add_on_grid", "exact_choice", "grid_size", "keyed_streams", "rounded_gaussian", "system_streams"]

_FINE: Final = 20  # the grid has 2^20 to 2^21 points in one standard deviation
_BLOCK: Final = 1 << 16
_CACHED: Final = 1 << 14  # numbers added to at a time: all that is read and written stays in a core's own cache
_MIDDLE: Final = 1 << 25  # of 2^32: tail probabilities from 2^-7 on are decided by 31 bits, where that suffices
_STEEP: Final = 47.0  # 1 / density of the normal law at a tail probability of 2^-7: 46.6
_DOUBT: Final = 1e-12  # relative, by which an inverse of the normal law may be wrong: it is seen to be right to 1e-14
_DIGITS: Final = 60
_ROOM: Final = 1 + 2.0**-8  # for sums of up to 2^44 points of the grid that were rounded to float64 before
_ONE_AT_A_TIME: Final = Lock()


Read = Callable[[int], bytes]
"""The next so many random bytes."""
Streams = Callable[[int], Read]
"""The stream of a block of numbers, by the block's place: blocks are drawn side by side."""


def system_streams(block: int) -> Read:
    """The operating system's generator, for every block."""
    del block
    return os.urandom


def keyed_streams(key: bytes) -> Streams:
    """SHAKE-256 of the key, the block and how often it was read: nobody tells it from chance without the key."""

    def stream(block: int) -> Read:
        reads = count()
        return lambda size: shake_256(key + struct.pack("<QQ", block, next(reads))).digest(size)

    return stream


def grid_size(bound: float, noise_multiplier: float) -> float:
    """The distance of the grid's points for noise of this scale: a power of two, 2^-20 of the scale or less.

    >>> grid_size(1.0, 1.0) == 2.0**-20, grid_size(3.0, 1.0) == 2.0**-19
    (True, True)
    """
    return math.ldexp(1.0, math.frexp(noise_multiplier * bound)[1] - 1 - _FINE)


def rounded_gaussian(size: int, scale: float, streams: Streams = system_streams) -> Floats:
    """``size`` whole numbers round(Y), Y ~ N(0, scale^2) continuous: exact, however many bits that takes.

    Each is the inverse of the normal law at a uniform number of which 32 bits are drawn first, then 64. Where these, or
    the error of the inverse in floating point, leave two integers open, more are drawn and the law itself is computed
    to 60 digits: a few times in a million numbers.

    >>> drawn = rounded_gaussian(10_000, 1000.0)
    >>> bool(abs(drawn.std() / 1000 - 1) < 0.05), bool((drawn == np.rint(drawn)).all())
    (True, True)
    """
    drawn = np.empty(size)

    def fill(start: int) -> None:
        _round(drawn[start : start + _BLOCK], scale, streams(start // _BLOCK))

    starts = range(0, size, _BLOCK)
    if len(starts) < 2:
        list(map(fill, starts))
    else:
        with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
            list(pool.map(fill, starts))
    return drawn


def exact_choice(log_weights: Floats, read: Read = os.urandom) -> int:
    """An index with probability proportional to exp(log_weights), which are cut to whole numbers, 2^53 the largest."""
    weights = np.nan_to_num(np.exp(log_weights - np.max(log_weights)) * 2.0**53)
    shares = list(accumulate(map(int, weights)))
    point = int.from_bytes(read(16), "little") * shares[-1] >> 128
    return min(bisect_right(shares, point), len(shares) - 1)


def _round(drawn: Floats, scale: float, read: Read) -> None:
    """Fill ``drawn`` by uniform 32-bit words, v: the number is negative where v < 2^31, and v, or 2^32 - 1 - v, are the
    first 32 bits of the tail probability, the first of them 0."""
    from scipy.special import ndtri

    words = np.frombuffer(read(4 * drawn.size), dtype="<u4")
    far = np.multiply(words, 2.0**-32)
    far += 2.0**-33
    ndtri(far, out=far)
    far *= scale
    np.rint(far, out=drawn)
    far -= drawn
    np.abs(far, out=far)
    # in the middle 32 bits leave the number open by 2^-33 / density; smaller words wrap around to the largest
    doubt = scale * (4 * _DOUBT + 2.0**-33 * _STEEP)
    beyond = words - np.uint32(_MIDDLE) >= np.uint32(2**32 - 2 * _MIDDLE)
    open_still = np.flatnonzero((far > 0.5 - doubt) | beyond)
    signs, tails = words[open_still] >> np.uint32(31), words[open_still].astype(np.uint64)
    tails = np.where(signs, np.uint64(2**32 - 1) - tails, tails)
    sizes = _sizes(tails << np.uint64(32) | np.frombuffer(read(4 * tails.size), dtype="<u4"), scale, read)
    drawn[open_still] = np.where(signs, sizes, -sizes)


def _sizes(tails: NDArray[np.uint64], scale: float, read: Read) -> Floats:
    """Sizes by the first 64 bits of their tail probabilities, the first bit 0."""
    from scipy.special import ndtri

    open_by = tails.astype(np.float64) + 0.5  # of 2^64: in (0, 1/2)
    distance = -ndtri(open_by * 2.0**-64)
    far = scale * distance
    nearest: Floats = np.rint(far)
    # these bits leave the tail probability open by 1 / tail of itself, that is the distance by as much at most
    doubt = scale * (_DOUBT * (1 + distance) + 1 / open_by)
    for place in np.flatnonzero(0.5 - np.abs(far - nearest) <= doubt):
        nearest[place] = _decide(int(tails[place]), scale, read)
    return nearest


def _decide(bits: int, scale: float, read: Read) -> int:
    """The integer of a tail probability with these first bits (of 64, the first one 0), more being drawn as needed.

    k is the number of half-integers j + 1/2 that the size exceeds, and it does where the probability is below
    Phi(-(j + 1/2) / scale). Those next to the inverse in floating point are tried first.
    """
    from mpmath import mp, mpf, ncdf
    from scipy.special import ndtri

    known, near = 64, round(-scale * float(ndtri((bits + 0.5) * 2.0**-64)))
    with _ONE_AT_A_TIME, mp.workdps(_DIGITS):  # its digits are those of the process
        while True:
            low, high = mpf(bits) / mpf(2) ** known, mpf(bits + 1) / mpf(2) ** known
            least, most, tries = 0, math.ceil(60 * scale), [near - 2, near + 1, near - 1, near]
            while least < most:
                middle = min(max(tries.pop(), least), most - 1) if tries else (least + most) // 2
                edge = ncdf(-(mpf(middle) + mpf(1) / 2) / mpf(scale))
                if low < edge < high:
                    break
                least, most = (middle + 1, most) if high <= edge else (least, middle)
            if least >= most:
                return least
            bits, known = (bits << 64) | int.from_bytes(read(8), "little"), known + 64


def add_on_grid(values: Sequence[Any], *, bound: float, noise_multiplier: float, streams: Streams) -> list[Any]:
    """Each value, rounded to the grid, plus noise on it, in the value's own type and new memory.

    Guarantee:
        The Gaussian mechanism of ``noise_multiplier`` on the rounded values, then a function of that alone. The bound
        is widened by what rounding so many coordinates can add: noise grows by noise_multiplier sqrt(d) 2^-20 at most.
    """
    grid = grid_size(bound, noise_multiplier)
    numbers = sum(math.prod(value.shape) for value in values)
    scale = noise_multiplier * (bound + _ROOM * grid * math.sqrt(numbers)) * (1 + 2.0**-50)  # more than this rounds
    drawn = rounded_gaussian(numbers, scale / grid, streams)
    ends = np.cumsum([math.prod(value.shape) for value in values])
    return [_add(value, part, grid) for value, part in zip(values, np.split(drawn, ends[:-1]), strict=True)]


def _add(value: Any, noise: Floats, grid: float) -> Any:
    if not is_tensor(value):
        _add_numbers(value.reshape(-1), noise, grid)
        return noise.reshape(value.shape).astype(value.dtype, copy=False)
    if value.device.type != "cpu":
        raise InvalidInput(
            f"hardened noise is asked for on {value.device}: expected the CPU, where sums have a fixed order. "
            'Train on device="cpu", or leave out noise="hardened".'
        )
    import torch

    _add_numbers(value.detach().reshape(-1).numpy(), noise, grid)
    return torch.from_numpy(noise.reshape(value.shape)).to(value.dtype)


def _add_numbers(values: NDArray[Any], noise: Floats, grid: float) -> None:
    """Make of whole numbers what is released, in place: grid (round(value / grid) + noise)."""
    with np.errstate(all="ignore"):  # a sum of any size and kind is released without a word
        for start in range(0, noise.size, _CACHED):
            few, made = values[start : start + _CACHED], noise[start : start + _CACHED]
            made += np.rint(few.astype(np.float64) / grid)
            made *= grid
            made += 0.0  # a zero without a sign: -0.0 would tell on which side of it the sum was
