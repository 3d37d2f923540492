"""Which of unknown many values occur often: thresholded partition selection. Every record holds one value at most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import chain

import numpy as np
from scipy.stats import norm

from dpilot import _validate
from dpilot.hardened import grid_size
from dpilot.mechanism import SYSTEM, Draws, Noise, gaussian_event, release_sample
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import ApproxDP, Composed
from dpilot.privacy.gaussian import gdp_mu

_PROBES = 1024
_BLOCK = 1024  # counts that take noise together


def partitions_event(noise_multiplier: float, threshold: float) -> Composed:
    """What ``partitions`` costs: one Gaussian, and the chance that a value of one record is released.

    >>> gaussian, chance = partitions_event(2.0, 11.0).events
    >>> gaussian, round(chance.delta, 9)
    (Gaussian(noise_multiplier=2.0), 2.87e-07)
    """
    sigma, least = _validate.positive(noise_multiplier=noise_multiplier), _validate.number(threshold=threshold)
    grid, deviation = _widest_noise(sigma)
    return Composed((gaussian_event(sigma), ApproxDP(0.0, float(norm.sf((least - 1 - grid) / deviation)))))


def threshold_for(noise_multiplier: float, delta: float) -> float:
    """The threshold above which a value of one record comes by chance ``delta`` at most.

    >>> round(threshold_for(2.0, 1e-6), 3)
    10.507
    """
    sigma, chance = _validate.positive(noise_multiplier=noise_multiplier), _validate.open_unit(delta=delta)
    grid, deviation = _widest_noise(sigma)
    return float(1 + grid + deviation * norm.isf(chance)) * (1 + 1e-12)


def _widest_noise(sigma: float) -> tuple[float, float]:
    """The grid of hardened noise on a block of counts, and its standard deviation there: that of float noise is sigma.

    Rounded to the grid a noisy count is above the threshold only if it lies above the threshold less the grid.
    """
    grid = grid_size(1.0, sigma)
    return grid, sigma * (1 + grid * math.sqrt(_BLOCK))


def partition_terms(budget: Budget) -> tuple[float, float]:
    """Noise multiplier and threshold that cost ``budget``: half of its delta for the Gaussian, half for the threshold.

    A ledger adds the threshold's delta to that at which it prices the Gaussian: commit at half of the budget's.

    >>> sigma, threshold = partition_terms(Budget(0.1, 1e-6))
    >>> round(sigma), round(threshold)
    (38, 186)
    """
    half = Budget(budget.epsilon, budget.delta / 2, allow_large_delta=True)
    sigma = (1 + 1e-9) / gdp_mu(half)
    return sigma, threshold_for(sigma, half.delta)


def partitions(
    values: Iterable[str | None],
    *,
    noise_multiplier: float,
    threshold: float,
    receipt: Draws,
    noise: Noise = SYSTEM,
) -> list[str]:
    """The texts, in order, whose noisy count is above ``threshold``; None, and whatever is no text, holds no value.

    ::

        released = { v : count(v) + N(0, sigma^2) > threshold },  over the values that occur

    Guarantee:
        ``partitions_event``: one Gaussian of sensitivity 1 if another record holds the new one's value, and
        (0, delta) if none does, with delta = P[1 + N(0, sigma^2) > threshold] of the widest noise, which is hardened
        (docs/proofs/partition.md).

    Edge cases:
        a value of few records    is missed, as a rule
        no value above it         an empty list
        numbers, dates            write them as texts first, one text for equal values: 1 and "1" would be two
                                  values of one name, and a record of another type would move both

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> paid = Receipt(partitions_event(2.0, 12.0))
        >>> partitions(["yes"] * 90 + ["no"] * 50 + ["who"], noise_multiplier=2.0, threshold=12.0, receipt=paid)
        ['no', 'yes']
    """
    counts = Counter(str(value) for value in values if type(value) in (str, np.str_))
    names = sorted(counts)

    def choose(source: Noise) -> list[str]:
        exact = np.zeros((-(-len(names) // _BLOCK), _BLOCK))
        exact.flat[: len(names)] = [counts[name] for name in names]
        # hardened noise grows with how many numbers it covers: in blocks of one size it does not with those that occur
        blocks = [source.gaussian([block], bound=1.0, noise_multiplier=noise_multiplier)[0] for block in exact]
        noisy = chain.from_iterable(blocks)
        return [name for name, count in zip(names, noisy, strict=False) if count > threshold]

    gaussian, chance = partitions_event(noise_multiplier, threshold).events
    receipt.draw(chance)  # of a value that nobody else holds
    return release_sample(
        choose,
        probes=lambda: _probes(counts),
        sensitivity=1.0,
        event=gaussian,
        receipt=receipt,
        noise=noise,
    )


def _probes(counts: Counter[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The counts by a public hash of the value: as many numbers whatever values occur."""
    made = np.zeros(_PROBES)
    for value, count in counts.items():
        made[sum(value.encode("utf-8", "surrogatepass")) % _PROBES] += count
    return made
