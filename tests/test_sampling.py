"""Batches are Poisson, local to each record, single-use and in order; everything else is refused."""

from __future__ import annotations

import copy
import math
import os
import pickle
import tracemalloc
from collections import defaultdict
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dpilot import sampling
from dpilot.errors import InvalidInput
from dpilot.keys import Chain
from dpilot.sampling import PoissonSampler, check_source, scatter
from tests.distributions import REJECT

KEY = Chain(bytes(range(32)))


def indices(rate=0.3, steps=5, length=200, state=KEY):
    return [batch.indices.tolist() for batch in PoissonSampler(rate, steps, state=state).batches(length)]


@given(st.integers(0, 300), st.floats(1e-3, 1.0))
def test_a_record_added_at_the_end_moves_no_other_record(length, rate):
    for before, after in zip(indices(rate, 3, length), indices(rate, 3, length + 1), strict=True):
        assert before == [i for i in after if i < length]


def test_coins_do_not_move_across_the_blocks_they_are_drawn_in():
    small, large = indices(0.04, 1, 65_000), indices(0.04, 1, 200_000)
    assert small[0] == [i for i in large[0] if i < 65_000]
    coins = KEY.generator("sampling").random(200_000)  # one stream for all blocks, so that no two share a coin
    assert large[0] == np.flatnonzero(coins < 0.04).tolist()


@pytest.mark.parametrize("rate", [1 / 32, 1e-3, 3e-6])
@pytest.mark.parametrize("draws", [7, 1 << 12])
def test_skips_do_not_move_with_the_length(rate, draws):
    def places(length):
        return sampling._skips(KEY.generator("sampling"), rate, length, draws).tolist()

    long = places(min(3_000_000, int(2_000 / rate)))
    assert len(long) > 0
    for length in (0, 1, long[0], long[0] + 1, long[len(long) // 2], long[-1], long[-1] + 1):
        assert places(length) == [place for place in long if place < length]
    assert indices(rate, 1, long[-1] + 1) == [places(long[-1] + 1)] or draws == 7


@pytest.mark.parametrize("rate", [1 / 32, 1 / 100])
def test_skips_have_the_law_of_coins(rate):
    """Counts of records, of pairs of neighbours, and of tails before each heads, beyond where these are drawn anew."""
    batches = indices(rate, 4_000, 1_000)
    counts = np.bincount(np.concatenate(batches).astype(int), minlength=1_000)
    assert stats.chisquare(counts, counts.mean() * np.ones(1_000)).pvalue > REJECT
    assert stats.binomtest(int(counts.sum()), 4_000_000, rate).pvalue > REJECT
    sizes = np.array([len(batch) for batch in batches])
    cells = np.arange(0, 1_000)
    law = stats.binom(1_000, rate).pmf(cells)
    edge = [int(stats.binom(1_000, rate).ppf(share)) for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    found, expected = (np.add.reduceat(values, [0, *edge]) for values in (np.bincount(sizes, minlength=1_000), law))
    assert stats.chisquare(found, expected / expected.sum() * found.sum()).pvalue > REJECT
    (tails,) = indices(rate, 1, 4_000_000)
    gaps = np.diff(tails) - 1
    limits = [0, *(int(math.log(share) / math.log1p(-rate)) for share in (0.8, 0.6, 0.37, 0.2, 0.1, 0.03))]
    chances = -np.diff([*((1 - rate) ** np.array(limits)), 0.0])
    times = np.bincount(np.searchsorted(limits, gaps, side="right") - 1, minlength=len(limits))
    assert stats.chisquare(times, chances * times.sum()).pvalue > REJECT


def test_a_skipped_record_is_taken_with_no_more_than_the_rate():
    """The shave is more than roundings can add: the probability of each number of tails from the grid of u itself."""
    for rate in (1e-8, 1e-7, 1e-4):
        q = rate * (1 - 2.0**-20)
        scale, most = 1 / math.log1p(-q), math.ceil(1 / q)
        for tails in (0, 1, most // 2, most - 1):
            ends = [math.exp(each / scale) for each in (tails, tails + 1)]
            grid = np.array([np.arange(-64, 65) * 2.0**-53 + 2.0**-53 * round(end * 2**53) for end in ends])
            first, last = (
                row[np.floor(np.log(row) * scale) >= each].max()
                for row, each in zip(grid, (tails, tails + 1), strict=True)
            )
            exact = q * math.exp(tails * math.log1p(-q))
            assert abs((first - last) - exact) <= 4 * 2.0**-53
            assert 3 * 4 * 2.0**-53 / exact < 2.0**-20


def test_memory_is_that_of_the_batch():
    tracemalloc.start()
    try:
        batch = PoissonSampler(1e-4, 1, state=KEY).issue(100_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 9_000 < batch.indices.size < 11_000
    assert peak < 2_000_000


def test_each_record_is_kept_with_the_rate_at_every_step():
    rate, steps, length = 0.2, 400, 500
    kept = np.zeros((steps, length))
    for batch in PoissonSampler(rate, steps, state=KEY).batches(length):
        kept[batch.step, batch.indices] = 1
    for totals, trials in ((kept.sum(0), steps), (kept.sum(1), length), (kept.sum(), kept.size)):
        z = (np.asarray(totals) - rate * trials) / np.sqrt(trials * rate * (1 - rate))
        assert np.abs(z).max() < 6
    sizes = kept.sum(1)  # binomial, not fixed: the variance is there
    assert stats.chi2(steps).cdf(np.sum((sizes - 100) ** 2) / 80) == pytest.approx(0.5, abs=0.5 - REJECT)
    pairs = np.corrcoef(kept.T) - np.eye(length)
    assert np.abs(pairs).max() * np.sqrt(steps) < 6


def test_coins_are_float64_and_kept_below_the_rate_exactly():
    coins = KEY.generator("sampling").random(1000)
    assert np.any(coins * 2**24 % 1 != 0)  # float32 coins sit on a grid of 2^-24, on which 1e-7 becomes 1.19e-7
    rate = float(coins[17])
    (kept,) = indices(rate, 1, 1000)
    assert kept == np.flatnonzero(coins < rate).tolist()
    assert 17 not in kept


def test_the_full_batch_is_every_record_at_every_step():
    assert indices(1.0, 2, 5) == [[0, 1, 2, 3, 4]] * 2


def test_empty_batches_are_issued_and_claimed():
    sampler = PoissonSampler(1e-9, 3, state=KEY)
    for batch in sampler.batches(10):
        assert batch.indices.size == 0
        assert list(batch.chunks(4)) == []
        sampler.claim(batch)
    assert sampler.position == 3
    assert indices(0.5, 2, 0) == indices(1.0, 2, 0) == [[], []]


@given(st.integers(1, 80))
def test_chunks_are_the_batch_in_pieces(size):
    (batch,) = PoissonSampler(0.3, 1, state=KEY).batches(200)
    pieces = list(batch.chunks(size))
    assert sorted(np.concatenate(pieces)) == batch.indices.tolist()
    assert [piece.size for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
    assert 0 < pieces[-1].size <= size
    again = batch.chunks(size)
    assert all(np.array_equal(piece, other) for piece, other in zip(pieces, again, strict=True))


class Order:
    """A generator whose permutations are given."""

    def __init__(self, *orders: tuple[int, ...]) -> None:
        self.orders = list(orders)

    def permutation(self, count: int) -> np.ndarray:
        assert len(self.orders[0]) == count
        return np.array(self.orders.pop(0), dtype=np.int64)


def law(count: int, extra: int | None) -> dict[object, Fraction]:
    """How likely records other than ``extra`` have which places, in two chunks of two, exactly.

    Those of a full chunk stand in its order; one that is alone in a chunk has either place (``draw_places``).
    """
    found: dict[object, Fraction] = defaultdict(Fraction)
    for order, slots in product(permutations(range(count)), permutations(range(4))):
        chunks = [chunk.tolist() for chunk in scatter(count, 2, 2, Order(order, slots))]
        ways = list(product(*([each] if len(each) == 2 else [[each[0], None], [None, each[0]]] for each in chunks)))
        for way in ways:
            others = (tuple(renumber(i, extra) for i in chunk) for chunk in way)
            found[frozenset(chunk for chunk in others if chunk != (None, None))] += Fraction(1, len(ways))
    return {way: times / sum(found.values()) for way, times in found.items()}


def renumber(record: int | None, extra: int | None) -> int | None:
    """The number of a record in the data without ``extra``; None for ``extra`` itself and for a place of nobody."""
    if record is None or extra is None:
        return record
    return None if record == extra else record - (record > extra)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_record_more_moves_no_other_one_wherever_it_is_put(count):
    for extra in range(count + 1):
        assert law(count + 1, extra) == law(count, None)


def test_records_beyond_the_usual_chunks_fill_further_ones():
    chunks = list(scatter(9, 2, 2, np.random.default_rng(0)))
    assert [chunk.size for chunk in chunks] == [2, 2, 2, 2, 1]
    assert sorted(np.concatenate(chunks)) == list(range(9))


def test_fresh_samplers_and_steps_share_no_coins():
    first, second = (PoissonSampler(0.5, 2) for _ in range(2))
    batches = [batch.indices.tolist() for sampler in (first, second) for batch in sampler.batches(200)]
    assert len({tuple(batch) for batch in batches}) == 4
    assert len({tuple(batch) for batch in indices(0.5, 5, 200)}) == 5


def test_resume_repeats_what_was_not_claimed_and_nothing_else():
    whole = indices(steps=6)
    sampler = PoissonSampler(0.3, 6, state=KEY)
    ahead = [sampler.issue(200) for _ in range(4)]  # a loader that fetches ahead
    for batch in ahead[:2]:
        sampler.claim(batch)
    assert sampler.position == sampler.state.position == 2
    assert indices(steps=6, state=sampler.state) == whole[2:]
    assert sampler.state.key != KEY.key


def test_a_finished_sampler_issues_nothing_more():
    sampler = PoissonSampler(0.3, 2)
    assert len(list(sampler.batches(10))) == 2
    assert list(sampler.batches(10)) == []
    with pytest.raises(InvalidInput, match="all batches were issued"):
        sampler.issue(10)


def test_a_batch_is_claimed_once_in_order_by_its_own_sampler():
    sampler, other = PoissonSampler(0.3, 3), PoissonSampler(0.3, 3)
    first, second, _ = sampler.batches(10)
    with pytest.raises(InvalidInput, match="early"):
        sampler.claim(second)
    sampler.claim(first)
    with pytest.raises(InvalidInput, match="again"):
        sampler.claim(first)
    with pytest.raises(InvalidInput, match="another sampler"):
        other.claim(first)
    with pytest.raises(InvalidInput, match="another sampler"):
        PoissonSampler(0.2, 3, state=KEY).claim(PoissonSampler(0.3, 3, state=KEY).issue(10))
    with pytest.raises(InvalidInput, match="not a batch"):
        sampler.claim([0, 1])
    sampler.claim(second)
    assert sampler.position == 2


def test_a_batch_can_travel_between_processes():
    sampler = PoissonSampler(0.3, 1)
    batch = sampler.issue(100)
    travelled = pickle.loads(pickle.dumps(batch))
    assert np.array_equal(travelled.indices, batch.indices)
    sampler.claim(travelled)
    with pytest.raises(InvalidInput, match="again"):
        sampler.claim(batch)


def test_a_batch_tells_neither_its_records_nor_how_many():
    assert repr(PoissonSampler(1.0, 1).issue(12345)) == "Batch(step=0)"


@pytest.mark.parametrize(("rate", "steps"), [(0.0, 1), (1.1, 1), (float("nan"), 1), (0.5, 0), (0.5, 2.5), ("0.5", 1)])
def test_rates_and_steps_are_checked(rate, steps):
    with pytest.raises(InvalidInput):
        PoissonSampler(rate, steps)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


DATA = TensorDataset(torch.arange(4))
REFUSED = {
    "shuffled loader": (DataLoader(DATA, shuffle=True), "shuffled"),
    "plain loader": (DataLoader(DATA), "its batches are its own"),
    "weighted loader": (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 4, 4)), "weighted"),
    "streaming loader": (DataLoader(Stream()), "iterable"),
    "iterable data set": (Stream(), "iterable"),
    "random sampler": (RandomSampler(DATA), "shuffled"),
    "subset sampler": (SubsetRandomSampler([0]), "shuffled"),
    "weighted sampler": (WeightedRandomSampler([1.0], 1), "weighted"),
    "sequential sampler": (SequentialSampler(DATA), "its batches are its own"),
    "generator": ((i for i in range(3)), "stream"),
    "iterator": (iter([1, 2]), "stream"),
    "set": ({1, 2}, "cannot be indexed"),
    "number": (3, "cannot be indexed"),
    "frame": (pd.DataFrame(np.zeros((3, 3))), "columns"),
    "series": (pd.Series([1, 2], index=[0, 0]), "labels"),
    "arrow": (pa.table({"x": [1, 2]}), "columns"),
    "mapping": ({"x": [1, 2], "y": [0, 1]}, "names"),
}


@pytest.mark.parametrize(("source", "reason"), REFUSED.values(), ids=REFUSED)
def test_sources_that_are_not_poisson_are_refused_with_the_reason(source, reason):
    with pytest.raises(InvalidInput, match=reason) as refusal:
        check_source(source)
    assert "Pass the data set itself" in str(refusal.value)


@pytest.mark.parametrize("source", [DATA, [1, 2], (), np.zeros((3, 2)), torch.zeros(0, 2)])
def test_anything_with_a_length_and_an_index_is_accepted(source):
    assert check_source(source) is None


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
