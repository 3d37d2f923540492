"""How many trials a private selection runs: the announced laws of K, their parameters, chances and draws.

With generating function phi(f) = sum_k P[K = k] f^k, the selected run is distributed as phi'(F) times the law of one
run, F being the chance that one run scores less (docs/proofs/selection.md). Everything selection costs is in phi'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from dpilot import _validate
from dpilot.privacy.events import RepeatAndSelect

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True, slots=True)
class TruncatedNegativeBinomial:
    """At least one trial: the negative binomial of ``shape`` > -1, given that it is not 0.

    With L = ln(1/gamma) and E(x) = (e^x - 1)/x::

        mean = E(L) / E(-shape L)         phi'(F) = mean * (gamma / (gamma + (1 - gamma)(1 - F)))^(1 + shape)

    Edge cases:
        shape = 0    the logarithmic law: the cheapest for many trials, and most spread out
        shape = 1    the geometric law
        shape < 0    heavier tails still; gamma falls very fast as the mean grows

    Example:
        >>> law = TruncatedNegativeBinomial(mean=10, shape=1)
        >>> round(law.gamma, 12), law.empty
        (0.1, 0.0)

    Reference:
        Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", ICLR 2022, Definition 1.
    """

    mean: float
    shape: float = 0.0
    gamma: float = field(init=False)

    def __post_init__(self) -> None:
        shape = _validate.number(shape=self.shape)
        if shape <= -1:
            _validate.refuse("shape", shape, "a number > -1")
        mean = _validate.positive(mean_trials=self.mean)
        if mean <= 1:
            _validate.refuse("mean_trials", mean, "a number > 1", "This law always runs at least one trial.")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "gamma", gamma(mean, shape))

    @property
    def empty(self) -> float:
        """P[K = 0]."""
        return 0.0

    def chance(self, trials: int) -> float:
        """P[K = trials]."""
        if trials < 1:
            return 0.0
        first = math.log(self.mean) + (1 + self.shape) * math.log(self.gamma)
        growth = math.lgamma(trials + self.shape) - math.lgamma(1 + self.shape) - math.lgamma(trials + 1)
        return math.exp(first + (trials - 1) * math.log1p(-self.gamma) + growth)

    def draw(self, generator: Generator) -> int:
        """One draw of K; exact for every shape, in ``mean`` rounds on average.

        The size-biased law, k P[K = k] / mean, is one plus a negative binomial of shape + 1: propose from it and
        accept k with chance 1/k.
        """
        # A negative binomial is a Poisson of gamma-distributed rate. P[accept k] = k P[K = k] / mean / k: K's own law.
        # tests/privacy/test_trials.py::test_draws_follow_the_chances.
        while True:
            rate = generator.standard_gamma(1 + self.shape) * (1 - self.gamma) / self.gamma
            drawn = int(generator.poisson(rate)) if rate < 1e15 else int(rate)  # numpy's draws overflow above it
            proposal = 1 + drawn
            if generator.random() * proposal < 1:
                return proposal


@dataclass(frozen=True, slots=True)
class Poisson:
    """K ~ Poisson(mean): concentrated around its mean, and none at all with chance e^-mean.

    phi'(F) = mean * exp(-mean (1 - F)). When K = 0 the default is released, which depends on no record.

    Reference:
        Papernot and Steinke, ICLR 2022, Theorem 6.
    """

    mean: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _validate.positive(mean_trials=self.mean))

    @property
    def empty(self) -> float:
        """P[K = 0]."""
        return math.exp(-self.mean)

    def chance(self, trials: int) -> float:
        """P[K = trials]."""
        if trials < 0:
            return 0.0
        return math.exp(trials * math.log(self.mean) - self.mean - math.lgamma(trials + 1))

    def draw(self, generator: Generator) -> int:
        """One draw of K; may be 0."""
        return int(generator.poisson(self.mean))


Law = TruncatedNegativeBinomial | Poisson


def law_of(event: RepeatAndSelect) -> Law:
    """The law of K that ``event`` announces."""
    if event.law == "poisson":
        return Poisson(event.mean_trials)
    return TruncatedNegativeBinomial(event.mean_trials, event.shape)


@lru_cache(maxsize=1024)
def gamma(mean: float, shape: float) -> float:
    """The gamma in (0, 1) whose truncated negative binomial has this mean, to rounding, on the small side."""
    low, high = 0.0, 690.0  # of ln(1/gamma), so that gamma and 1/gamma are both ordinary floats
    if tnb_mean(high, shape) < mean:
        _validate.refuse(
            "mean_trials", mean, f"at most {tnb_mean(high, shape):.3g} at shape {shape}", "Raise the shape."
        )
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if tnb_mean(middle, shape) < mean else (low, middle)
    return math.exp(-high)


def tnb_mean(log_inverse_gamma: float, shape: float) -> float:
    """E[K] of the truncated negative binomial.

    >>> round(tnb_mean(math.log(10), 1.0), 12), round(tnb_mean(math.log(10), 0.0), 12) == round(9 / math.log(10), 12)
    (10.0, True)
    """
    return _expm1_over(log_inverse_gamma) / _expm1_over(-shape * log_inverse_gamma)


def _expm1_over(x: float) -> float:
    return math.expm1(x) / x if x else 1.0
