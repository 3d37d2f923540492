"""The noisy augmented Gram matrix of [features, intercept, target], and what is read off it for free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.problem import CommittedRun, LinearProblem, multiplier
from dpilot.linear.rows import Rows, UnitChunk, unit_total
from dpilot.mechanism import Draws, Noise, release_symmetric
from dpilot.numerics.grid import gram_in_limbs, row_lengths
from dpilot.privacy.events import Composed, Event, Gaussian
from dpilot.statistics import log_grid, quantile, quantile_event

__all__ = ["Gram", "GramPlan", "average_grams", "gram", "gram_stage", "plan_gram"]

_NORMS: Final = log_grid(2.0**-6, 2.0**12, per_octave=4)
_ROUNDS: Final = 7  # of a search in this grid
_RADIUS_QUANTILE: Final = 0.8
_SHAVE: Final = 1 - 1e-12


@dataclass(frozen=True, slots=True)
class Gram:
    """Released: second moments over ``size``, the target last; ``noise`` is the standard deviation on the diagonal.

    Off the diagonal it is smaller by 181/128, about sqrt(2), so the largest eigenvalue of the noise is about ``edge``.
    """

    moments: Floats
    noise: float
    radius_squared: float

    @property
    def width(self) -> int:
        return int(self.moments.shape[0]) - 1

    @property
    def features(self) -> Floats:
        return np.asarray(self.moments[:-1, :-1])

    @property
    def cross(self) -> Floats:
        return np.asarray(self.moments[:-1, -1])

    @property
    def edge(self) -> float:
        """The spectral edge of symmetric Gaussian noise: sqrt(2 d) times its diagonal standard deviation."""
        return math.sqrt(2 * self.width) * self.noise

    def floor_eigenvalues(self) -> tuple[Floats, Floats]:
        """Eigenvalues raised to the edge of the noise, and eigenvectors."""
        values, vectors = np.linalg.eigh(self.features)
        return np.maximum(values, max(self.edge, 1e-12)), vectors

    def shrink_eigenvalues(self) -> tuple[Floats, Floats]:
        """Eigenvalues drawn to their mean by as much as the noise explains, then raised to what noise is left.

        ::

            a = signal / (signal + noise),    noise = noise^2 d (d + 1) / 2,    signal + noise = |M - mean I|_F^2

        Noise alone gives the mean everywhere (no direction is believed); no noise gives the matrix itself.

        Reference:
            Ledoit and Wolf 2004, with the variance of the noise known instead of estimated.
        """
        values, vectors = np.linalg.eigh(self.features)
        mean = max(float(values.mean()), self.noise / math.sqrt(self.width), 1e-12)  # above its own noise
        spread = float(np.sum((values - mean) ** 2))
        expected = self.noise**2 * self.width * (self.width + 1) / 2
        kept = max(0.0, 1 - expected / spread) if spread > 0 else 0.0
        drawn = mean + kept * (values - mean)
        return np.maximum(drawn, max(kept * self.edge, 1e-3 * mean * (1 - kept), 1e-12)), vectors

    def whitening(self) -> Floats:
        """P with (P^T M P) about the identity in the directions that stand out of the noise."""
        values, vectors = self.shrink_eigenvalues()
        return np.asarray(vectors / np.sqrt(values))

    def solution(self, ridge: float = 1.0) -> Floats:
        """Least squares from the noisy moments, eigenvalues floored at ``ridge`` times the edge of the noise."""
        values, vectors = np.linalg.eigh(self.features)
        values = np.maximum(values, max(ridge * self.edge, 1e-12))
        return np.asarray(vectors @ ((vectors.T @ self.cross) / values))

    def risk(self, theta: Floats) -> float:
        """The noisy mean squared error of ``theta``: [theta, -1] M [theta, -1]^T."""
        probe = np.append(theta, -1.0)
        return float(probe @ self.moments @ probe)

    def difference_noise(self, one: Floats, other: Floats) -> float:
        """The standard deviation that the noise makes in risk(one) - risk(other), for thetas it did not choose."""
        first, second = np.append(one, -1.0), np.append(other, -1.0)
        return self.noise * float(np.linalg.norm(np.outer(first, first) - np.outer(second, second)))


@dataclass(frozen=True, slots=True)
class GramPlan:
    """The noise multipliers of the radius (None: a public one is used) and of the moments."""

    radius: float | None
    moments: float

    @property
    def event(self) -> Event:
        moments = Gaussian(self.moments)
        return moments if self.radius is None else Composed([quantile_event(self.radius, grid=_NORMS), moments])


def plan_gram(problem: LinearProblem, share: float) -> GramPlan:
    """Split ``share`` of the squared mu: to the radius what knows it to 3 % of the records, if that is cheap enough."""
    if problem.size is None:
        return GramPlan(multiplier(problem, 0.1 * share), multiplier(problem, 0.9 * share))
    needed = (_ROUNDS**0.5 * _RADIUS_QUANTILE / (0.03 * max(problem.size, 1.0) * problem.mu)) ** 2
    if needed > 0.3 * share:
        return GramPlan(None, multiplier(problem, share))
    needed = max(needed, 0.01 * share)
    return GramPlan(multiplier(problem, needed), multiplier(problem, share - needed))


def gram_stage(rows: Rows, plan: GramPlan, size: float, run: CommittedRun) -> Gram:
    """The stage "gram" of a fit: ``gram``, paid by its receipt."""
    with run.stage("gram") as receipt:
        return gram(rows, plan, size=size, receipt=receipt, noise=run.noise)


def gram(rows: Rows, plan: GramPlan, *, size: float, receipt: Draws, noise: Noise) -> Gram:
    """Find a radius that most rows keep, then buy the second moments of rows scaled down to it.

    Guarantee:
        A row z is scaled down to |z| <= radius and cut to a grid, so it moves svec(sum z z^T) by |z z^T|_F <= radius^2,
        intercept and target among its columns. A unit of several rows adds the mean of their z z^T, scaled down to
        |mean|_F <= radius^2. The radius by ``statistics.quantile``, one length for each unit. Sums are exact, whatever
        the order of the rows (docs/proofs/hardened.md).

    Edge cases:
        Standardised rows are about sqrt(columns) long, so a radius above twice that is not believed.
    """
    usual = 1.2 * math.sqrt(rows.columns)
    radius = usual if plan.radius is None else min(_radius(rows, plan.radius, receipt, noise), 2 * usual)
    # |z z^T|_F = |z|^2 <= radius^2, and |svec(A)|_2 <= |A|_F: each entry off the diagonal counts once, times 181/128
    limbs = unit_total(rows, lambda chunk: _products(chunk, radius))
    moments = release_symmetric(limbs, bound=radius**2, noise_multiplier=plan.moments, receipt=receipt, noise=noise)
    return Gram(moments / size, plan.moments * radius**2 / size, radius**2)


def average_grams(
    rows: Rows, seen: Gram, multipliers: tuple[float, ...], *, size: float, receipt: Draws, noise: Noise
) -> Gram:
    """The moments once more under each of ``multipliers``, averaged with those ``seen`` by the inverse of the variance.

    Guarantee:
        That of ``gram`` for each multiplier, at the radius that was released: one Gaussian each.
    """
    bound = seen.radius_squared
    limbs = unit_total(rows, lambda chunk: _products(chunk, math.sqrt(bound)))
    sum_, weight = seen.moments / seen.noise**2, 1 / seen.noise**2
    for sigma in multipliers:
        part = (size / (sigma * bound)) ** 2
        noisy = release_symmetric(limbs, bound=bound, noise_multiplier=sigma, receipt=receipt, noise=noise)
        sum_, weight = sum_ + part * noisy / size, weight + part
    return Gram(sum_ / weight, weight**-0.5, bound)


def _products(chunk: UnitChunk, radius: float) -> Floats:
    """The sum over units of the mean of z z^T, each unit scaled down to length ``radius``, in two limbs: for
    standardised rows, whose squares cannot overflow.

    Where m rows z_i of a unit, over sqrt(m), are cut by e_i, their sum moves by sum (2 |z_i| |e_i| + |e_i|^2), with
    |e_i| <= 2^-20 radius sqrt(d) and sum |z_i| <= m^(3/4) radius: 2^-18 sqrt(d) m^(3/4) radius^2 has room for that.
    """
    norms, sizes = _lengths(chunk), chunk.sizes
    lost = np.where(sizes > 1, 2.0**-18 * math.sqrt(chunk.values.shape[1]) * sizes**0.75, 0.0)
    most = np.where(lost <= 1, radius * _SHAVE / np.sqrt(1 + lost), 0.0)
    factors = np.where(norms > most, most / np.maximum(norms, 1e-300), 1.0) / np.sqrt(sizes)  # squares weigh
    return gram_in_limbs(chunk.values, np.repeat(factors, sizes), radius)


def _lengths(chunk: UnitChunk) -> Floats:
    """The root of |mean of z z^T|_F of each unit, for a unit of one row its length.

    ::

        |sum_i z_i z_i^T|_F^2 = sum_ij (z_i z_j)^2,    all pairs of rows of a unit, found by how far apart they lie

    A product is wrong by at most u d |z_i| |z_j|, u being half of the eps of floats, and sum_i |z_i|^2 <=
    sqrt(m) |sum_i z_i z_i^T|_F for m rows: the squares by a part 2 u d m, their sum by u m^2, and the length, which is
    raised by eps m (d + m), by a quarter of these.
    """
    rows = chunk.values
    if chunk.starts is None:
        return row_lengths(rows)
    squares = np.einsum("ij,ij->i", rows, rows)
    sizes = chunk.sizes
    units = np.repeat(np.arange(len(sizes)), sizes)
    total = np.bincount(units, squares**2, minlength=len(sizes))
    for apart in range(1, int(sizes.max(initial=1))):
        first = np.flatnonzero(units[apart:] == units[:-apart])
        pairs = np.einsum("ij,ij->i", rows[first], rows[first + apart])
        total += 2 * np.bincount(units[first], pairs**2, minlength=len(sizes))
    raised = 1 + np.where(sizes > 1, np.finfo(np.float64).eps * sizes * (rows.shape[1] + sizes), 0.0)
    return np.asarray(raised * np.sqrt(np.sqrt(total) / sizes))


def _radius(rows: Rows, sigma: float, receipt: Draws, noise: Noise) -> float:
    lengths = (_lengths(chunk)[:, None] for chunk in rows.unit_chunks())
    return float(
        quantile(lengths, _RADIUS_QUANTILE, grid=_NORMS, noise_multiplier=sigma, receipt=receipt, noise=noise)[0]
    )
