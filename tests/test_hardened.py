"""Hardened noise: its law is exact, everything lies on the grid, and it is the Gaussian's price."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri

from dpilot.errors import InvalidInput
from dpilot.hardened import HardenedNoise, _decide, _round, grid_size, rounded_gaussian
from dpilot.mechanism import release
from dpilot.privacy.events import ExponentialMechanism, Gaussian
from dpilot.privacy.receipt import Receipt
from tests.distributions import REJECT, frequency_p_value, normal_p_value


def test_the_law_is_that_of_a_rounded_normal_number() -> None:
    drawn = rounded_gaussian(200_000, 2.5)
    cells = np.arange(-12, 13)
    edges = np.concatenate([[-np.inf], cells[1:] - 0.5, [np.inf]])
    probabilities = np.diff(stats.norm(scale=2.5).cdf(edges))
    assert frequency_p_value(np.bincount(np.clip(drawn, -12, 12) + 12, minlength=25), probabilities) > REJECT
    assert frequency_p_value(np.bincount(np.clip(drawn, -12, 12) + 12, minlength=25), np.full(25, 1 / 25)) < REJECT


def test_the_law_at_the_grid_of_a_release_is_the_normal_one() -> None:
    drawn = rounded_gaussian(200_000, 1.5 * 2**20)
    assert normal_p_value(drawn, 1.5 * 2**20) > REJECT
    assert normal_p_value(drawn, 1.65 * 2**20) < REJECT


def test_the_inverse_in_floating_point_is_right_to_far_more_than_is_allowed_for() -> None:
    from mpmath import mp, mpf, ncdf

    tails = 2.0 ** -np.random.default_rng(0).uniform(1, 63, 300)
    with mp.workdps(40):
        for p in tails.tolist():
            x = -float(ndtri(p))
            for sign in (-1, 1):  # the true inverse lies between x (1 - 1e-13) and x (1 + 1e-13)
                shifted = mpf(x) + sign * mpf(1e-13) * (1 + mpf(x))
                assert (ncdf(-shifted) < mpf(p)) == (sign == 1)


@pytest.mark.parametrize("scale", [0.3, 1.0, 1000.0, 1.7 * 2**20])
def test_the_quick_way_and_the_long_one_agree(scale: float) -> None:
    words = np.random.default_rng(1).integers(0, 2**64, 200, dtype=np.uint64)
    words[:3] = 0, 1, 2**64 - 1
    ones = count(0)
    quick = np.abs(_round(words, scale, lambda: 2**63 + next(ones)))
    ones = count(0)
    long = [_decide(int(word >> np.uint64(1)), scale, lambda: 2**63 + next(ones)) for word in words]
    assert quick[3:].tolist() == long[3:]
    assert quick[0] >= 9 * scale - 1  # the first bits are all zero: far out, decided by further ones


def test_a_doubtful_number_is_decided_by_more_bits() -> None:
    """The tail probability of exactly 1/2 over the scale: the first 64 bits leave 0 and 1 open."""
    from mpmath import mp, mpf, ncdf

    with mp.workdps(60):
        first = int(ncdf(-mpf(1) / 2 / mpf(1000)) * mpf(2) ** 64)
    asked = []

    def more(word: int) -> int:
        asked.append(word)
        return word

    assert _decide(first, 1000.0, lambda: more(0)) == 1  # further in the tail
    assert _decide(first, 1000.0, lambda: more(2**64 - 1)) == 0
    assert len(asked) == 2


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_what_is_released_lies_on_the_grid_whatever_the_sum(kind: type) -> None:
    grid = grid_size(1.0, 2.0)
    sums = np.array([0.0, 1 / 3, 1e-30, -7.123456789, 5.0], dtype=kind)
    receipt = Receipt(Gaussian(2.0))
    noisy = release(sums, bound=1.0, noise_multiplier=2.0, receipt=receipt, noise=HardenedNoise())
    assert noisy.dtype == kind
    assert (np.mod(noisy.astype(np.float64), grid) == 0).all()
    tensor = HardenedNoise().gaussian([torch.from_numpy(sums)], bound=1.0, noise_multiplier=2.0)[0]
    assert (np.mod(tensor.double().numpy(), grid) == 0).all()


def test_two_sums_that_round_alike_release_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same noise only the rounded sum decides: nothing below the grid is in a release."""
    monkeypatch.setattr("dpilot.hardened.os.urandom", lambda n: np.random.default_rng(0).bytes(n))
    grid = grid_size(1.0, 1.0)
    one, other = (np.array([3.0 + shift * grid]) for shift in (-0.4, 0.4))
    released = [HardenedNoise().gaussian([each], bound=1.0, noise_multiplier=1.0)[0] for each in (one, other)]
    assert released[0] == released[1]


def test_the_noise_allows_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = []
    monkeypatch.setattr(
        "dpilot.hardened.rounded_gaussian", lambda n, scale: scales.append(scale) or np.zeros(n, dtype=np.int64)
    )
    HardenedNoise().gaussian([np.zeros(30), np.zeros((7, 10))], bound=2.0, noise_multiplier=1.5)
    grid = grid_size(2.0, 1.5)
    assert scales[0] * grid == pytest.approx(1.5 * (2.0 + math.sqrt(100) * grid), rel=1e-12)


def test_sums_of_any_size_are_released_without_a_word() -> None:
    values = np.array([np.nan, np.inf, 1e300, -1e-300])
    assert np.isnan(HardenedNoise().gaussian([values], bound=1.0, noise_multiplier=1.0)[0][0])


def test_choices_follow_their_law() -> None:
    weights = np.log([1.0, 2.0, 5.0])
    made = np.bincount([HardenedNoise().choice(weights) for _ in range(20_000)], minlength=3)
    assert frequency_p_value(made, np.array([1, 2, 5]) / 8) > REJECT
    assert ExponentialMechanism(1.0)


def test_an_accelerator_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected the CPU"):
        HardenedNoise().gaussian([torch.zeros(2, device="meta")], bound=1.0, noise_multiplier=1.0)
