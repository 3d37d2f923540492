"""Lower bounds on epsilon from guesses: what a run gave away of canaries, each of which was in it by a fair coin.

The accountant says what a run can give away at most. An audit guesses, for some canaries, whether they took part; the
more guesses are right, the more was given away, whatever the accountant says. A lower bound above the claim disproves
the claim; one below it proves nothing.

References:
    one run, any mechanism: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023.
    one run, a Gaussian trade-off: Mahloujifar, Melis, Chaudhuri, "Auditing f-differential privacy in one run", 2025.
    many runs: Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from scipy.stats import beta as beta_law
from scipy.stats import binom

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.privacy.gaussian import gdp_epsilon

__all__ = ["LowerBound", "TradeOffRegion", "gaussian_tail", "guess_tail", "one_run", "trade_off_region"]

_MOST: Final = 50.0  # epsilons, and mus, are sought up to here
_FEW: Final = 100  # guesses: with fewer, even all of them right prove little
_SHARE: Final = 25  # a confident guesser speaks of one canary in so many


@dataclass(frozen=True, slots=True)
class LowerBound:
    """What the guesses of one run prove.

    ``epsilon`` holds for any mechanism, ``gaussian_epsilon`` for one whose trade-off is a Gaussian's (full batches),
    both at ``delta`` and with ``confidence``. ``correct`` of ``guesses`` were right, for the more telling number of
    guesses.
    """

    epsilon: float
    gaussian_epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def one_run(scores: ArrayLike, included: ArrayLike, *, delta: float, confidence: float = 0.95) -> LowerBound:
    """The lower bound on epsilon that ``scores`` prove: one a canary, high where it seems to have taken part.

    The highest scores are guessed to be in, as many lowest ones to be out; no guess is made in between. Two numbers of
    guesses are tried, a few confident ones and all, each at half of the error, so that a small and a large epsilon are
    both within reach.

    Args:
        scores: one number for each canary, from what the run released alone.
        included: whether the canary took part, as a fair coin of its own had decided.
        delta: that of the claim.
        confidence: with which the bound holds.

    Guarantee:
        If the run is (epsilon, delta)-differentially private for each canary, ``epsilon`` of the result is larger than
        that with probability at most ``1 - confidence``, over the coins and the run.

    Edge cases:
        a score that is not finite    a tie in the middle: it is guessed last

    Example:
        >>> coins = np.arange(1000) % 2 == 0
        >>> one_run(np.where(coins, 1.0, 0.0), coins, delta=1e-5).epsilon > 3      # every guess is right
        True
        >>> one_run(np.zeros(1000), coins, delta=1e-5).epsilon                     # nothing was given away
        0.0
    """
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=np.bool_)
    if values.ndim != 1 or values.shape != coins.shape or values.size < 2:
        raise InvalidInput(f"scores and included have shapes {values.shape} and {coins.shape}: expected equal rows.")
    delta, confidence = _validate.open_unit(delta=delta), _validate.open_unit(confidence=confidence)
    m = values.size
    found = []
    counts = sorted({min(m, max(_FEW, m // _SHARE)) // 2 * 2, m // 2 * 2})
    error = (1 - confidence) / len(counts)
    for guesses in counts:
        correct = _correct(values, coins, guesses)
        epsilon = _largest(lambda e, r=guesses, v=correct: guess_tail(m, r, v, e, delta) < error)  # type: ignore[misc]
        mu = _largest(lambda u, r=guesses, v=correct: gaussian_tail(m, r, v, u, error))  # type: ignore[misc]
        gaussian = gdp_epsilon(mu, delta) if mu > 0 else 0.0
        found.append(LowerBound(epsilon, gaussian, delta, confidence, m, guesses, correct))
    return max(found, key=lambda bound: (bound.epsilon, bound.gaussian_epsilon))


def _correct(scores: Floats, included: Any, guesses: int) -> int:
    """How many of the ``guesses`` are right: half of them "in" for the highest scores, half "out" for the lowest."""
    finite = scores[np.isfinite(scores)]
    order = np.argsort(np.where(np.isfinite(scores), scores, np.median(finite) if finite.size else 0.0), kind="stable")
    half = guesses // 2
    return int(included[order[order.size - half :]].sum() + (~included[order[:half]]).sum())


def guess_tail(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """At most how likely so many guesses are right, if the run is (epsilon, delta)-private.

    A guess of an epsilon-private run is right with probability e^epsilon / (1 + e^epsilon) at most; delta adds
    2 m delta max_i P[v > X >= v - i] / i, with X binomial (Steinke et al., Theorem 5.2).

    >>> guess_tail(1000, 100, 50, 0.0, 0.0) > 0.5, guess_tail(1000, 100, 90, 0.0, 0.0) < 1e-6
    (True, True)
    """
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, right))
    if not (correct and delta):
        return tail
    below = np.arange(1, correct + 1)
    steepest = float((np.cumsum(binom.pmf(correct - below, guesses, right)) / below).max())
    return min(1.0, tail + 2 * canaries * delta * steepest)


def gaussian_tail(canaries: int, guesses: int, correct: int, mu: float, error: float) -> bool:
    """Whether so many right guesses are less likely than ``error``, if the run is mu-Gaussian private.

    Mahloujifar et al., Algorithm 3, for two choices a canary. The trade-off bounds how fast the probability of more
    right guesses falls; followed down from an assumed tail of ``error``, the probabilities would add up to more than
    guesses / canaries, which cannot be.
    """
    right, wrong, whole = error * correct / canaries, error * (guesses - correct) / canaries, guesses / canaries
    for i in range(correct - 1, -1, -1):
        steeper = max(wrong, float(ndtr(ndtri(min(right, 1.0)) - mu)))
        right += i / (guesses - i) * (steeper - wrong)
        wrong = steeper
        if right + wrong > whole:
            return True
    return False


@dataclass(frozen=True, slots=True)
class TradeOffRegion:
    """What many runs on each of two neighbours prove: pairs of error rates that a guesser reaches.

    ``false_positive`` and ``false_negative`` are upper limits, for the same thresholds; all hold together with
    ``confidence``.
    """

    false_positive: tuple[float, ...]
    false_negative: tuple[float, ...]
    confidence: float

    def epsilon(self, delta: float) -> float:
        """The largest lower bound on epsilon at ``delta`` that a point of the region proves."""
        found = [0.0]
        for a, b in zip(self.false_positive, self.false_negative, strict=True):
            found += [math.log((1 - delta - b) / a) for a, b in ((a, b), (b, a)) if a > 0 and 1 - delta - b > a]
        return max(found)


def trade_off_region(
    without: ArrayLike, with_record: ArrayLike, *, thresholds: int = 100, confidence: float = 0.999
) -> TradeOffRegion:
    """The trade-off region from the scores of independent runs without and with one record.

    Half of the runs place the thresholds, the other half counts, so that no threshold is chosen by what it is judged
    on. Each rate has a Clopper-Pearson limit, at the error shared out among all of them.

    Example:
        >>> noise = np.random.default_rng(0)
        >>> region = trade_off_region(noise.normal(size=2000), 3 + noise.normal(size=2000))
        >>> region.epsilon(1e-5) > 2, trade_off_region(noise.normal(size=2000), noise.normal(size=2000)).epsilon(1e-5)
        (True, 0.0)
    """
    out, inside = (np.asarray(each, dtype=np.float64) for each in (without, with_record))
    if min(out.size, inside.size) < 4 or out.ndim != 1 or inside.ndim != 1:
        raise InvalidInput(f"there are {out.size} and {inside.size} runs: expected rows of 4 or more scores each.")
    confidence = _validate.open_unit(confidence=confidence)
    if not (np.isfinite(out).all() and np.isfinite(inside).all()):
        raise InvalidInput("a score is not finite: expected finite ones. Give a run that failed the middle score.")
    places = np.quantile(np.concatenate([out[::2], inside[::2]]), np.linspace(0, 1, thresholds + 2)[1:-1])
    error = (1 - confidence) / (2 * thresholds)
    positive = _upper_limits((out[1::2][:, None] > places).sum(0), out[1::2].size, error)
    negative = _upper_limits((inside[1::2][:, None] <= places).sum(0), inside[1::2].size, error)
    return TradeOffRegion(tuple(positive.tolist()), tuple(negative.tolist()), confidence)


def _upper_limits(hits: Any, runs: int, error: float) -> Floats:
    """One-sided Clopper-Pearson limits."""
    limits: Floats = np.where(hits >= runs, 1.0, beta_law.ppf(1 - error, hits + 1, np.maximum(runs - hits, 1)))
    return limits


def _largest(refuted: Callable[[float], bool]) -> float:
    """The largest value that is refuted, where all smaller ones are too; 0 where none is."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, _MOST
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
