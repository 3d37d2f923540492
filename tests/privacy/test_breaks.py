"""Breaks that were found by attack and must stay mended."""

from __future__ import annotations

import copy
import math
import os
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from dpilot import statistics
from dpilot.audit.replay import _length
from dpilot.clipping import AutoS
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.mechanism import release
from dpilot.privacy import accountant
from dpilot.privacy.events import (
    ApproxDP,
    Composed,
    Gaussian,
    PoissonSampled,
    PureDP,
    Repeated,
)
from dpilot.privacy.receipt import Receipt
from dpilot.sampling import PoissonSampler


class Own(np.ndarray):
    """An array that would not take the noise."""

    def __add__(self, other: object) -> np.ndarray:
        return np.asarray(self)

    __radd__ = __add__


@pytest.mark.parametrize(
    "vector",
    [
        np.ma.array([5.0, 6.0, 7.0], mask=[1, 0, 1]),
        np.array([5.0, 6.0]).view(Own),
        torch.ones(3).to_sparse(),
        torch.nn.Buffer(torch.ones(3)).as_subclass(type("Sub", (torch.Tensor,), {})),
    ],
    ids=["masked", "subclass", "sparse", "tensor subclass"],
)
def test_only_plain_arrays_are_released(vector: object) -> None:
    receipt = Receipt(Gaussian(100.0))
    with pytest.raises(InvalidInput, match="plain numpy arrays"):
        release(vector, bound=1.0, noise_multiplier=100.0, receipt=receipt)
    receipt.draw(Gaussian(100.0))  # nothing was drawn


def test_masked_data_are_refused_by_statistics() -> None:
    data = np.ma.array([1.0, 2.0], mask=[0, 1])
    with pytest.raises(InvalidInput, match="MaskedArray"):
        statistics.count(data, noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_sampler_has_one_holder(copied: object) -> None:
    with pytest.raises(InvalidInput, match="a copy repeats its batches"):
        copied(PoissonSampler(0.5, 3))  # type: ignore[operator]


def test_a_forked_sampler_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = PoissonSampler(0.5, 3)
    batch = sampler.issue(10)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(InvalidInput, match="forked"):
        sampler.issue(10)
    with pytest.raises(InvalidInput, match="forked"):
        sampler.claim(batch)


def test_a_rate_that_coins_cannot_follow_is_refused() -> None:
    with pytest.raises(InvalidInput, match="53 bits"):
        PoissonSampler(1e-18, 3)


HIDDEN = [
    PoissonSampled(1.0, Repeated(ApproxDP(5.0, 1e-7), 10)),
    PoissonSampled(1.0, Composed([ApproxDP(50.0, 1e-6)])),
    PoissonSampled(1.0, PoissonSampled(0.5, ApproxDP(50.0, 1e-6))),
    PoissonSampled(0.5, PoissonSampled(1.0, ApproxDP(50.0, 1e-6))),
]


@pytest.mark.parametrize("event", HIDDEN)
def test_no_pair_hides_in_a_sample_of_everything(event: PoissonSampled) -> None:
    assert accountant.epsilon(event, 1e-5, "rdp") > 45
    assert accountant.epsilon(event, 1e-5, "pld") > 45
    with pytest.raises(InvalidInput, match="no Renyi curve"):
        accountant.rdp(event)


def gaussian_epsilon(sigma: float, steps: int, delta: float) -> float:
    return accountant.gdp_epsilon(math.sqrt(steps) / sigma, delta)


@pytest.mark.parametrize(
    ("sigma", "steps", "delta"),
    [
        (200.0, 100_000, 1e-9),
        (200.0, 100_000, 1e-11),
        (200.0, 100_000, 3e-15),
        (118.6, 100_000, 1e-10),
        (792.2, 1_000_000, 1e-9),
    ],
)
def test_rounding_in_transforms_never_hides_a_cost(sigma: float, steps: int, delta: float) -> None:
    """Almost everybody is sampled, so the closed form of the full batch is the truth to nine digits."""
    event = Repeated(PoissonSampled(1 - 2e-9, Gaussian(sigma)), steps)
    assert accountant.epsilon(event, delta) >= gaussian_epsilon(sigma, steps, delta) * (1 - 1e-7)


@pytest.mark.parametrize("delta", [1e-12, 1e-13, 1e-14])
def test_rounding_hides_no_cost_of_pure_releases(delta: float) -> None:
    epsilon, times = 0.01, 1000
    found = accountant.epsilon(Repeated(PureDP(epsilon), times), delta)
    heads = np.arange(times + 1)
    losses = epsilon * (2 * heads - times)
    chances = binom.pmf(heads, times, 1 / (1 + math.exp(-epsilon)))
    true = float(np.sum(np.where(losses > found, chances * -np.expm1(found - losses), 0.0)))
    assert true <= delta * (1 + 1e-6)


def test_an_almost_full_sample_costs_no_less_than_the_full_batch() -> None:
    nearly, full = PoissonSampled(1 - 1e-15, Gaussian(2.0)), Gaussian(2.0)
    assert accountant.epsilon(Repeated(nearly, 3), 1e-5) == pytest.approx(accountant.epsilon(Repeated(full, 3), 1e-5))


def test_a_split_goes_by_places_or_by_ids() -> None:
    shares = {"train": 0.5, "test": 0.5}
    places, ids = Split.draw(shares), Split.draw(shares, by="id")
    assert Split(shares, places.key, "id").id != places.id
    with pytest.raises(InvalidInput, match="goes by place"):
        places.indices_of(["a"])
    with pytest.raises(InvalidInput, match="goes by id"):
        ids.indices(3)


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_no_id_raises() -> None:
    split = Split.draw({"train": 0.5, "test": 0.5}, by="id")
    parts = split.indices_of(["\ud800", 10**5000, Unspeakable(), None, float("nan"), "ordinary"])
    assert sum(len(part) for part in parts.values()) == 6


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_is_a_silent_null_record() -> None:
    bad = np.array([0x7F800001], dtype=np.uint32).view(np.float32)
    assert statistics.count(bad, noise_multiplier=1e-6, receipt=Receipt(Gaussian(1e-6))) == pytest.approx(0, abs=1e-3)


def test_no_message_tells_the_number_of_records() -> None:
    told = set()
    for n in (10, 11):
        with pytest.raises(InvalidInput) as problem:
            statistics.count(np.empty((n, 2), dtype=object), noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))
        told.add(str(problem.value))
    assert len(told) == 1


def test_domains_too_large_to_add_up_are_refused() -> None:
    with pytest.raises(InvalidInput, match="room for sums"):
        statistics.mean(
            np.array([9e307, 8e307]),
            domain=statistics.Ball(9e307),
            size=2,
            noise_multiplier=1.0,
            receipt=Receipt(Gaussian(1.0)),
        )


def test_the_bound_of_a_tiny_box_does_not_vanish() -> None:
    assert statistics.Box(0.0, 5.4e-162).bound(2) == pytest.approx(2.7e-162 * math.sqrt(2), rel=1e-9)
    assert _length(np.array([3e-170, 4e-170]), "gaussian") == pytest.approx(5e-170, rel=1e-9)


def test_automatic_clipping_with_a_vanishing_gamma_is_refused() -> None:
    with pytest.raises(InvalidInput, match="gamma"):
        AutoS(gamma=1e-45)


def test_the_second_closed_form_is_right() -> None:
    """The truth used above, once more from the normal law itself."""
    mu, epsilon = 1.5, 2.0
    delta = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert accountant.gdp_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-7)
