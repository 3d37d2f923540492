"""Whether noise and sampling on this machine follow the laws that the accountant prices.

The library's own ``release`` and ``PoissonSampler`` are called, many times, and what they give is compared with the
declared law. A wrong scale, a shared stream, a sampler that takes too many: each shows at these sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from scipy import stats

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.audit.check import Check
from dpilot.mechanism import Noise, choose, release
from dpilot.noise import HardenedNoise, KeyedNoise, SystemNoise
from dpilot.privacy.events import ExponentialMechanism, Gaussian, Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.sampling import PoissonSampler

__all__ = ["audit_mechanism"]

_BOUND, _MULTIPLIER = 2.0, 1.5
_SOURCES: Final[tuple[tuple[str, Callable[[], Noise]], ...]] = (
    ("system", SystemNoise),
    ("keyed", KeyedNoise),
    ("hardened", HardenedNoise),
)
_RATE, _STEPS = 0.05, 200


def audit_mechanism(*, samples: int = 200_000, confidence: float = 0.999) -> list[Check]:
    """Test the law of every noise source, of choices and of Poisson batches; a sound machine fails one run in 1,000.

    Args:
        samples: numbers drawn from each source. A scale that is off by 2 % is found with 200,000, by half with 100.
        confidence: with which a failure is no accident, all tests together (Bonferroni).
    """
    samples = _validate.count("Few samples find only gross faults.", least=100, samples=samples)
    found = [*_noise_tests(samples), *_choice_tests(samples // 10), *_sampling_tests(samples)]
    error = (1 - _validate.open_unit(confidence=confidence)) / len(found)
    return [Check(name, p >= error, f"{what}; p = {p:.3g}, fails below {error:.2g}") for name, what, p in found]


def _noise_tests(samples: int) -> Iterator[tuple[str, str, float]]:
    scale = _BOUND * _MULTIPLIER
    for name, source in _SOURCES:
        for kind in (np.float64, np.float32):
            first, second = (_draw(source(), samples, kind) for _ in range(2))
            spread = float(first.std())
            said = f"standard deviation {spread:.4g} where {scale:g} is declared, {samples:,} numbers"
            label = f"{name} noise, {np.dtype(kind).name}"
            yield f"{label}: its law is the normal one", said, float(stats.kstest(first / scale, "norm").pvalue)
            yield f"{label}: its variance is the declared one", said, _variance_p_value(first / scale)
            correlation = float(np.corrcoef(first, second)[0, 1])
            p = float(2 * stats.norm.sf(abs(correlation) * math.sqrt(samples)))
            yield f"{label}: two releases are independent", f"correlation {correlation:.2g}", p


def _draw(source: Noise, samples: int, kind: Any) -> Floats:
    receipt = Receipt(Gaussian(_MULTIPLIER))
    zeros = np.zeros(samples, dtype=kind)
    noisy = release(zeros, bound=_BOUND, noise_multiplier=_MULTIPLIER, receipt=receipt, noise=source)
    return noisy.astype(np.float64)


def _variance_p_value(standard: Floats) -> float:
    total, law = float(np.square(standard).sum()), stats.chi2(standard.size)
    return float(2 * min(law.cdf(total), law.sf(total)))


def _choice_tests(samples: int) -> Iterator[tuple[str, str, float]]:
    scores, epsilon = np.array([0.0, 1.0, 2.0]), 1.0
    weights = np.exp(epsilon * scores / 2)
    receipt = Receipt(Repeated(ExponentialMechanism(epsilon), samples))
    made = [choose(scores, sensitivity=1.0, epsilon=epsilon, receipt=receipt) for _ in range(samples)]
    counts = np.bincount(made, minlength=3)
    p = float(stats.chisquare(counts, samples * weights / weights.sum()).pvalue)
    yield "choices follow the exponential mechanism", f"{counts.tolist()} of three candidates", p


def _sampling_tests(samples: int) -> Iterator[tuple[str, str, float]]:
    records = max(1, samples // _STEPS)
    sampler = PoissonSampler(_RATE, _STEPS)
    taken = np.zeros((_STEPS, records), dtype=np.float64)
    for batch in sampler.batches(records):
        sampler.claim(batch)
        taken[batch.step, batch.indices] += 1
    total = int(taken.sum())
    said = f"{total:,} of {taken.size:,} coins, rate {_RATE}"
    yield "batches have the declared rate", said, float(stats.binomtest(total, taken.size, _RATE).pvalue)
    sizes = float(taken.sum(1).var(ddof=1)) / (records * _RATE * (1 - _RATE))
    law = stats.chi2(_STEPS - 1)
    p = 2 * min(law.cdf(sizes * (_STEPS - 1)), law.sf(sizes * (_STEPS - 1)))
    yield "sizes of batches vary as independent coins", f"variance {sizes:.3g} of the binomial one", float(min(1, p))
    most = float(taken.max())
    yield "no batch holds a record twice", f"at most {most:g} times", 1.0 if most <= 1 else 0.0
