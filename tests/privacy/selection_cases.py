"""Selection from finite laws, computed exactly, and the laws of K that the tests run through it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import logsumexp

from dpilot.privacy.trials import Poisson, TruncatedNegativeBinomial

LAWS = [
    TruncatedNegativeBinomial(1.3, 0.0),
    TruncatedNegativeBinomial(10, 0.0),
    TruncatedNegativeBinomial(100, 0.0),
    TruncatedNegativeBinomial(5, 1.0),
    TruncatedNegativeBinomial(30, 2.5),
    TruncatedNegativeBinomial(4, -0.5),
    TruncatedNegativeBinomial(3, -0.9),
    Poisson(0.5),
    Poisson(3),
    Poisson(20),
]


def named(law):
    return f"{type(law).__name__}-{law.mean:g}-{getattr(law, 'shape', '')}"


every_law = pytest.mark.parametrize("law", LAWS, ids=named)


def increments(law):
    """phi(f + here) - phi(f) from (here, tail = 1 - f), from phi as the literature defines it, no cancellation."""
    if isinstance(law, Poisson):
        return lambda here, tail: math.exp(-law.mean * tail) * math.expm1(law.mean * here)
    gamma, shape = law.gamma, law.shape

    def increment(here, tail):
        rest = gamma + (1 - gamma) * tail
        step = math.log1p(-(1 - gamma) * here / rest)
        if shape == 0:
            return step / math.log(gamma)
        return rest**-shape * math.expm1(-shape * step) / math.expm1(-shape * math.log(gamma))

    return increment


def released(law_of_one, scores, increment, empty):
    """The exact law of the best of K, ties broken uniformly; its last entry is the chance of no trial."""
    result = np.zeros(len(law_of_one))
    for score in np.unique(scores):
        tied = scores == score
        here, above = law_of_one[tied].sum(), law_of_one[scores > score].sum()
        if here:
            result[tied] = law_of_one[tied] / here * increment(here, here + above)
    return np.append(result, empty)


def hockey_stick(p, q, epsilon):
    """The worse direction of sup_S P(S) - e^epsilon Q(S)."""
    factor = math.exp(epsilon)
    return max(np.maximum(p - factor * q, 0).sum(), np.maximum(q - factor * p, 0).sum())


def renyi(p, q, order):
    """The Renyi divergence of p from q, in logarithms."""
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log(q)
    if np.any((p > 0) & (q == 0)):
        return math.inf
    seen = p > 0
    return float(logsumexp(order * log_p[seen] + (1 - order) * log_q[seen])) / (order - 1)


@dataclass(frozen=True)
class Pair:
    one: np.ndarray
    other: np.ndarray
    scores: np.ndarray

    def curve(self, epsilon):
        return hockey_stick(self.one, self.other, epsilon)


def random_pair(rng):
    """Neighbouring laws on a few outputs, from nearly equal to partly singular, scored with and without ties."""
    size = int(rng.integers(2, 7))
    one = rng.dirichlet(np.full(size, rng.choice([0.1, 0.5, 2.0])))
    kind = rng.integers(3)
    if kind == 0:
        other = rng.dirichlet(np.full(size, rng.choice([0.1, 0.5, 2.0])))
    else:
        other = one * np.exp(rng.choice([0.05, 0.5, 2.0]) * rng.standard_normal(size))
    if kind == 2:
        other[rng.integers(size)] *= rng.choice([0.0, 1e-3])
    other = other / other.sum()
    ratio = one / np.maximum(other, 1e-300)
    scores = rng.choice([0, 1, 2])
    if scores == 0:
        return Pair(one, other, np.argsort(np.argsort(ratio)).astype(float))
    if scores == 1:
        return Pair(one, other, np.argsort(np.argsort(-ratio)).astype(float))
    return Pair(one, other, rng.integers(0, size, size).astype(float))


def selected(law, pair):
    """The laws of what is released from each of two neighbours."""
    return tuple(released(p, pair.scores, increments(law), law.empty) for p in (pair.one, pair.other))


def profile_excess(mean, pair, outputs, moved):
    """How far the exact delta of the selection lies above the profile bound with S = moved, at many epsilons."""
    both = (pair.one > 0) & (pair.other > 0)
    losses = np.abs(np.log(pair.one[both] / pair.other[both]))
    epsilons = [*np.linspace(0, 8, 9), *(losses + moved), *losses]
    return max(hockey_stick(*outputs, e) - min(1.0, mean * pair.curve(e - moved)) for e in epsilons)
