"""Moments of bounded records: how many there are, their mean over a declared size, their second moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.hardened import grid_size
from dpilot.mechanism import EXACT, Draws, Noise, gaussian_event, release, release_symmetric
from dpilot.numerics.grid import cut, gram_in_limbs
from dpilot.privacy.events import Event
from dpilot.statistics.rows import Data, into_ball, into_box, parts


class Domain(Protocol):
    """Where records are declared to lie: what they are measured from, and how far they can be from it in L2."""

    @property
    def middle(self) -> Floats | float: ...

    def bound(self, columns: int) -> float: ...

    def clip(self, rows: Floats) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Ball:
    """Rows of L2 norm at most ``radius``; longer ones are scaled down to it."""

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", _validate.positive(radius=self.radius))

    @property
    def middle(self) -> float:
        return 0.0

    def bound(self, columns: int) -> float:
        del columns  # a ball has one radius in any dimension
        return self.radius

    def clip(self, rows: Floats) -> Floats:
        return into_ball(rows, self.radius)


@dataclass(frozen=True, slots=True)
class Box:
    """Values in [lower, upper], one interval for all columns or one a column; others are clipped to the nearer end."""

    lower: float | Sequence[float]
    upper: float | Sequence[float]

    def __post_init__(self) -> None:
        lower, upper = (np.asarray(end, dtype=np.float64) for end in (self.lower, self.upper))
        with np.errstate(over="ignore", invalid="ignore"):
            fits = lower.shape == upper.shape and lower.ndim <= 1 and lower.size
            if not (fits and bool(np.all(np.isfinite(upper - lower) & (lower < upper)))):
                raise InvalidInput(f"box is {self!r}: expected finite lower < upper, one a column or one for all.")
        object.__setattr__(self, "lower", lower.tolist() if not lower.ndim else tuple(lower.tolist()))
        object.__setattr__(self, "upper", upper.tolist() if not upper.ndim else tuple(upper.tolist()))

    @property
    def middle(self) -> Floats:
        return np.asarray(self.lower) + self._half

    def bound(self, columns: int) -> float:
        if self._half.ndim and self._half.size != columns:
            raise InvalidInput(f"box has {self._half.size} intervals: expected one for each of {columns} columns.")
        return math.hypot(*np.broadcast_to(self._half, columns).tolist())  # whose squares cannot vanish or overflow

    def clip(self, rows: Floats) -> Floats:
        self.bound(rows.shape[1])  # refuses rows of other columns, which numpy might broadcast or refuse
        return into_box(rows, np.asarray(self.lower), np.asarray(self.upper))

    @property
    def _half(self) -> Floats:
        return np.asarray((np.asarray(self.upper) - np.asarray(self.lower)) / 2)


def count_event(noise_multiplier: float) -> Event:
    """What ``count`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def count(data: Data, *, noise_multiplier: float, receipt: Draws, noise: Noise = EXACT) -> float:
    """The number of records plus noise: ``n + N(0, noise_multiplier^2)``.

    Guarantee:
        Sensitivity 1, as one record adds one row. A Gaussian of ``noise_multiplier``.

    Edge cases:
        A record with a value that is not finite is the null record and is not counted. The result may be negative.

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> noisy = count(np.zeros(1000), noise_multiplier=2.0, receipt=Receipt(count_event(2.0)))
        >>> 900 < noisy < 1100
        True
    """
    total = float(sum(rows.shape[0] for rows in parts(data)))
    return release(total, bound=1.0, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)


def mean_event(noise_multiplier: float) -> Event:
    """What ``mean`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def mean(
    data: Data, *, domain: Domain, size: float, noise_multiplier: float, receipt: Draws, noise: Noise = EXACT
) -> Floats:
    """The mean of the clipped records over the declared ``size``, one entry a column.

    ::

        middle + (sum over records of (clip(x) - middle) + N(0, (noise_multiplier * bound)^2 I)) / size

    Guarantee:
        The sum moves by at most ``bound`` in L2 when a record is added or removed: the radius of a Ball, the half
        diagonal of a Box. The divisor is declared, never the realised number of records, so it moves nothing.

    Edge cases:
        Values outside the domain are clipped to it. A record that is not finite is the null record and adds nothing.
        Where the number of records is not ``size``, the result leans to the middle (fewer) or away from it (more).

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> ages = np.full(1000, 40.0)
        >>> paid = Receipt(mean_event(2.0))
        >>> noisy = mean(ages, domain=Box(0.0, 100.0), size=1000, noise_multiplier=2.0, receipt=paid)
        >>> bool(39 < noisy[0] < 41)
        True
    """
    size = _validate.positive("It is declared, not counted.", size=size)
    total = np.asarray(sum(_onto_grid(domain, rows, noise_multiplier).sum(axis=0) for rows in parts(data)))
    bound = domain.bound(total.size)
    noisy = release(total, bound=bound, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)
    return np.asarray(domain.middle + noisy / size)


@np.errstate(all="ignore")  # whatever a caller has set: no number of a record may raise or warn
def _onto_grid(domain: Domain, rows: Floats, noise_multiplier: float) -> Floats:
    """The clipped rows, cut towards 0 to the grid of the noise: of such rows sums are exact in any order."""
    grid = grid_size(domain.bound(rows.shape[1]), noise_multiplier)
    return cut(domain.clip(rows), grid)


def second_moment_event(noise_multiplier: float) -> Event:
    """What ``second_moment`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def second_moment(
    data: Data, *, radius: float, noise_multiplier: float, receipt: Draws, noise: Noise = EXACT
) -> Floats:
    """The noisy sum of z z^T over the records, a symmetric (d, d) matrix, not divided by anything.

    ::

        smat( sum svec(z z^T) + N(0, (noise_multiplier * radius^2)^2 I) )        z = x scaled down to |z| <= radius

    Guarantee:
        One record moves svec(sum z z^T) by |z z^T|_F = |z|^2 <= radius^2, all columns and products together: put the
        intercept and the target among the columns, and they are covered. A Gaussian of ``noise_multiplier``.

    Edge cases:
        Rows longer than ``radius`` are scaled down to it, and entries cut to 2^-20 of it: sums are then exact, in any
        order. A record that is not finite is the null record.
        The result is symmetric but, being noisy, may have negative eigenvalues.

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> paid = Receipt(second_moment_event(1.0))
        >>> noisy = second_moment(np.eye(2).repeat(500, 0), radius=1.0, noise_multiplier=1.0, receipt=paid)
        >>> bool(np.abs(noisy - 500 * np.eye(2)).max() < 10)
        True

    Reference:
        svec and its noise: Sheffet 2017; as sufficient statistics: Wang, "Revisiting differentially private linear
        regression", UAI 2018.
    """
    radius = _validate.positive(radius=radius)
    if not 1e-100 <= radius <= 1e100:
        _validate.refuse("radius", radius, "1e-100 to 1e100", "Measure the columns in another unit.")
    limbs = np.asarray(sum(gram_in_limbs(into_ball(rows, radius), np.ones(len(rows)), radius) for rows in parts(data)))
    return release_symmetric(
        limbs, bound=radius * radius, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise
    )
