"""The laws of the number of trials."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpilot.errors import InvalidInput
from dpilot.privacy.trials import Poisson, TruncatedNegativeBinomial, tnb_mean
from tests.privacy.selection_cases import (
    every_law,
)


@every_law
def test_chances_add_to_one_and_have_the_announced_mean(law):
    trials = range(40_000 if getattr(law, "shape", 0) >= 0 else 400_000)
    chances = np.array([law.chance(k) for k in trials])
    tail = 0.02 if getattr(law, "shape", 0) < -0.6 else 1e-6
    assert chances[0] == pytest.approx(law.empty)
    assert chances.sum() == pytest.approx(1, abs=tail)
    assert chances.sum() <= 1 + 1e-9
    if tail < 0.02:
        assert chances @ np.arange(len(chances)) == pytest.approx(law.mean, rel=1e-6)


@pytest.mark.parametrize(
    ("mean", "shape"), list(itertools.product([1 + 1e-9, 1.5, 10, 1e4], [-0.7, -0.1, 0, 1e-9, 0.5, 1, 20]))
)
def test_gamma_gives_back_the_mean(mean, shape):
    law = TruncatedNegativeBinomial(mean, shape)
    assert 0 < law.gamma < 1
    assert tnb_mean(-math.log(law.gamma), shape) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize(("mean", "shape"), [(1.5, 0.0), (10, 0.5), (10, 1.0), (1000, 3.0)])
def test_gamma_agrees_with_dp_accounting(mean, shape):
    from dp_accounting.rdp import rdp_privacy_accountant as library

    expected = library._gamma_truncated_negative_binomial(shape, mean)
    assert TruncatedNegativeBinomial(mean, shape).gamma == pytest.approx(expected, rel=1e-8)


@every_law
def test_draws_follow_the_chances(law):
    rng, runs = np.random.default_rng(7), 8_000
    draws = np.array([min(law.draw(rng), 60) for _ in range(runs)])
    expected = runs * np.array([law.chance(k) for k in range(60)])
    counts = np.bincount(draws, minlength=61)
    common = expected >= 20
    rest = runs - expected[common].sum()
    statistic = ((counts[:60] - expected)[common] ** 2 / expected[common]).sum()
    statistic += (counts.sum() - counts[:60][common].sum() - rest) ** 2 / max(rest, 20)
    degrees = common.sum()
    assert statistic < degrees + 5 * math.sqrt(2 * degrees) + 10


@pytest.mark.parametrize("shape", [-0.9, -0.5, 0.0, 5.0])
def test_draws_stay_whole_numbers_under_heavy_tails(shape):
    law, rng = TruncatedNegativeBinomial(200, shape), np.random.default_rng(8)
    draws = [law.draw(rng) for _ in range(200)]
    assert all(isinstance(k, int) and k >= 1 for k in draws)


def test_impossible_laws_are_refused():
    for mean, shape in ((1.0, 0.0), (0.5, 1.0), (10, -1.0), (math.inf, 0.0), (1e40, -0.9)):
        with pytest.raises(InvalidInput):
            TruncatedNegativeBinomial(mean, shape)
    with pytest.raises(InvalidInput):
        Poisson(0.0)
