"""Quantiles on a declared grid: by noisy counts, for many columns at once, or by the exponential mechanism.

Both look at the data through one function of the grid point g only, s(g) = sum over records of (1[x <= g] - q), which
is what is left of "how many records are at most g, less q times all" when the number of records is not public. One
record moves it by 1 - q or by q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats, Indices
from dpilot.mechanism import EXACT, Draws, Noise, choose, release
from dpilot.numerics.grid import cut
from dpilot.privacy.events import Event, ExponentialMechanism, Gaussian, Repeated
from dpilot.statistics.rows import Data, check_increasing, only_column, parts

_PART = 2.0**-24  # what quantiles are multiples of


def log_grid(
    smallest: float = 2.0**-20, largest: float = 2.0**20, *, per_octave: int = 8, signed: bool = False
) -> Floats:
    """Points from ``smallest`` to ``largest``, ``per_octave`` in each doubling; signed adds 0 and their negatives.

    >>> log_grid(1.0, 4.0, per_octave=1).tolist(), log_grid(1.0, 2.0, per_octave=1, signed=True).tolist()
    ([1.0, 2.0, 4.0], [-2.0, -1.0, 0.0, 1.0, 2.0])
    """
    smallest = _validate.positive(smallest=smallest)
    octaves = math.log2(_validate.positive(largest=largest)) - math.log2(smallest)
    steps = round(octaves * _validate.count(per_octave=per_octave))
    points = check_increasing("grid points", smallest * 2.0 ** (np.arange(steps + 1) / per_octave))
    return np.concatenate([-points[::-1], [0.0], points]) if signed else points


def quantile_event(noise_multiplier: float, *, grid: Floats) -> Event:
    """What ``quantile`` costs: one Gaussian for each round of the search, together (1 / noise_multiplier)-GDP."""
    rounds = _rounds(check_increasing("grid", grid))
    return Repeated(Gaussian(noise_multiplier * math.sqrt(rounds)), rounds)


def quantile(
    data: Data,
    q: float | Sequence[float],
    *,
    grid: Floats,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise = EXACT,
) -> Floats:
    """The ``q``-quantile of every column, as the grid point where a binary search on noisy counts ends.

    Round after round, all columns (and all of several ``q``) ask at once whether their quantile lies at or below the
    middle of what is left of the grid, and take the sign of the noisy answer::

        s[q, j] + N(0, (noise_multiplier sqrt(k) bound)^2)  >= 0,       s[q, j] = sum over records (1[x_j <= g_j] - q)
        bound = sqrt(d * sum over q of max(q, 1 - q)^2),                k = rounds = ceil(log2(grid points))

    The result has shape (d,) for one ``q``, and (len(q), d) for several.

    Guarantee:
        In one round each of the d columns moves by 1 - q or by q, at most max(q, 1 - q), for each q: the vector moves
        by at most ``bound`` in L2. k adaptive Gaussians of noise_multiplier sqrt(k) are one of ``noise_multiplier``:
        for one q, k counts in each of d columns of joint L2 sensitivity sqrt(k d) max(q, 1 - q).
        The number of rounds depends on the grid alone.

    Edge cases:
        A record with a value that is not finite in any column is the null record: it moves no count.
        A quantile beyond the grid comes back as the end of the grid; no data give a random walk over it.
        Several q come back sorted, so that quantiles do not cross.

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> grid = log_grid(1.0, 1024.0, per_octave=4)
        >>> paid = Receipt(quantile_event(5.0, grid=grid))
        >>> values = np.linspace(0.0, 100.0, 10_001)
        >>> bool(40 < quantile(values, 0.5, grid=grid, noise_multiplier=5.0, receipt=paid)[0] < 70)
        True

    Reference:
        noisy-count search: Smith 2011; centred bits: Andrew et al. 2021.
    """
    grid, targets = check_increasing("grid", grid), _targets(q)
    rounds = _rounds(grid)
    below = _quantile_scores(data, grid, targets)  # (q, d, g)
    bound = math.sqrt(below.shape[1]) * float(np.linalg.norm(np.maximum(targets, 1 - targets)))
    low, high = np.zeros(below.shape[:2], dtype=np.int64), np.full(below.shape[:2], grid.size - 1)
    for _ in range(rounds):
        middle = (low + high) // 2
        asked = np.take_along_axis(below, middle[..., None], axis=2)[..., 0]
        answer = release(
            asked, bound=bound, noise_multiplier=noise_multiplier * math.sqrt(rounds), receipt=receipt, noise=noise
        )
        high = np.where(answer >= 0, middle, high)
        low = np.where(answer >= 0, low, np.minimum(middle + 1, high))
    found = np.sort(grid[low], axis=0)
    return found[0] if np.ndim(q) == 0 else found


def chosen_quantile_event(epsilon: float) -> Event:
    """What ``chosen_quantile`` costs: one exponential mechanism, (epsilon^2 / 8)-zCDP and not a Gaussian."""
    return ExponentialMechanism(epsilon)


def chosen_quantile(
    data: Data, q: float, *, grid: Floats, epsilon: float, receipt: Draws, noise: Noise = EXACT
) -> float:
    """The ``q``-quantile of one column, as a grid point drawn by the exponential mechanism.

    ::

        P[g] proportional to exp(-epsilon |s(g)| / (2 max(q, 1 - q))),      s(g) = sum over records (1[x <= g] - q)

    Guarantee:
        |s(g)| moves by at most max(q, 1 - q), so this is epsilon-DP and (epsilon^2 / 8)-zCDP.

    Edge cases:
        A value that is not finite is the null record. No data give a uniform draw from the grid.
        On a log grid equal numbers of points in every octave mean a log-uniform prior.

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> paid = Receipt(chosen_quantile_event(0.1))
        >>> values, grid = np.linspace(0.0, 100.0, 10_001), log_grid(1.0, 1024.0, per_octave=4)
        >>> 40 < chosen_quantile(values, 0.5, grid=grid, epsilon=0.1, receipt=paid) < 70
        True

    Reference:
        Smith, "Privacy-preserving statistical estimation with optimal convergence rates", STOC 2011.
    """
    grid, targets = check_increasing("grid", grid), _targets(q)
    scores = -np.abs(_quantile_scores(data, grid, targets, single=True)[0, 0])
    sensitivity = float(np.max(np.maximum(targets, 1 - targets)))
    return float(grid[choose(scores, sensitivity=sensitivity, epsilon=epsilon, receipt=receipt, noise=noise)])


def _targets(q: float | Sequence[float]) -> Floats:
    """The quantiles asked for as multiples of 2^-24: products with whole numbers, and their sums, are exact."""
    targets = cut(np.array([_validate.open_unit(q=float(each)) for each in np.atleast_1d(q)]), _PART)
    targets = np.clip(targets, _PART, 1 - _PART)
    return targets if targets.size == 1 else check_increasing("q", targets)


def _rounds(grid: Floats) -> int:
    return (grid.size - 1).bit_length()


def _quantile_scores(data: Data, grid: Floats, targets: Floats, *, single: bool = False) -> Floats:
    """s[q, j, g] = sum over records of (1[x_j <= g] - q): exact, and sensitive."""
    counts: Indices | int = 0
    records = 0
    for rows in parts(data):
        columns = [only_column(rows)] if single else list(rows.T)
        counts = counts + np.array([_at_most(values, grid) for values in columns])
        records += rows.shape[0]
    return np.asarray(counts) - targets[:, None, None] * records


def _at_most(values: Floats, grid: Floats) -> Indices:
    first = np.searchsorted(grid, values, side="left")  # the first grid point not below the value
    return np.cumsum(np.bincount(first, minlength=grid.size + 1)[: grid.size])
