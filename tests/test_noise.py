"""Noise has the law it should (and the tests would see a tenth too much or too little), and is never used twice."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from itertools import pairwise

import numpy as np
import pytest
import torch

from dpilot.errors import InvalidInput
from dpilot.keys import Chain
from dpilot.noise import (
    _BLOCK,
    KeyedNoise,
    SharedNoise,
    Stretch,
    SystemNoise,
    _add_accelerated,
    _add_accelerated_stretch,
    add_gaussian,
    gumbel_choice,
    seeded_noise,
)
from tests.distributions import REJECT, frequency_p_value, largest_correlation, normal_p_value

SIZE = 100_000
BOUND, MULTIPLIER = 0.5, 3.0
VALUES = {
    "numpy32": np.zeros(SIZE, dtype=np.float32),
    "numpy64": np.zeros(SIZE),
    "torch32": torch.zeros(SIZE),
    "torch64": torch.zeros(SIZE, dtype=torch.float64),
}
SOURCES = {"system": SystemNoise(), "keyed": KeyedNoise(), "seeded": seeded_noise(3)}


def drawn(source, value, multiplier=MULTIPLIER):
    return source.gaussian([value], bound=BOUND, noise_multiplier=multiplier)[0]


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_noise_is_normal_with_multiplier_times_bound(source, value):
    assert normal_p_value(drawn(source, value), MULTIPLIER * BOUND) > REJECT


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_scale_off_by_a_tenth_is_rejected(factor, value):
    samples = drawn(SystemNoise(), value, multiplier=factor * MULTIPLIER)
    assert normal_p_value(samples, MULTIPLIER * BOUND) < REJECT


def test_another_law_of_the_right_variance_is_rejected():
    uniform = np.random.default_rng(0).uniform(-np.sqrt(3), np.sqrt(3), SIZE)
    assert normal_p_value(uniform, 1.0) < REJECT


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_the_value_is_kept_and_so_are_its_type_and_precision(value):
    noisy = drawn(seeded_noise(0), value + 7)
    assert type(noisy) is type(value)
    assert noisy.dtype == value.dtype
    assert abs(float(noisy.mean()) - 7) < 6 * MULTIPLIER * BOUND / SIZE**0.5
    assert float(abs(value).max()) == 0  # the input itself was not written to


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_releases_are_independent_of_each_other(source):
    assert largest_correlation([drawn(source, np.zeros(20_000)) for _ in range(20)]) < 6


def test_leaves_of_one_release_are_independent():
    leaves = seeded_noise(1).gaussian([np.zeros(20_000), torch.zeros(20_000)] * 3, bound=1.0, noise_multiplier=1.0)
    assert largest_correlation([np.asarray(leaf) for leaf in leaves]) < 6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_of_a_large_vector_are_normal_and_independent(dtype):
    large = drawn(SystemNoise(), np.zeros((3, _BLOCK), dtype)) / (MULTIPLIER * BOUND)
    assert [normal_p_value(block, 1.0) > REJECT for block in large] == [True] * 3
    assert largest_correlation([block[:20_000] for block in large]) < 6


def test_a_large_vector_repeats_exactly_whatever_the_threads(monkeypatch):
    first = drawn(seeded_noise(5), np.zeros(3 * _BLOCK + 17))
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert np.array_equal(first, drawn(seeded_noise(5), np.zeros(3 * _BLOCK + 17)))


def test_correlation_test_sees_a_shared_stream():
    shared = add_gaussian([np.zeros(20_000)], 1.0, Chain(bytes(32)).generator("noise"))[0]
    again = add_gaussian([np.zeros(20_000)], 1.0, Chain(bytes(32)).generator("noise"))[0]
    assert largest_correlation([shared, again]) > 6


LOG_WEIGHTS = np.log([0.5, 0.3, 0.15, 0.05])


def choices(temperature=1.0):
    generator = Chain(bytes(32)).generator("choice")
    picks = [gumbel_choice(LOG_WEIGHTS * temperature, generator) for _ in range(20_000)]
    return np.bincount(picks, minlength=4)


def test_choice_has_the_frequencies_of_its_weights():
    assert frequency_p_value(choices(), np.exp(LOG_WEIGHTS)) > REJECT


@pytest.mark.parametrize("temperature", [0.85, 1.15])
def test_choice_that_is_too_flat_or_too_sharp_is_rejected(temperature):
    assert frequency_p_value(choices(temperature), np.exp(LOG_WEIGHTS)) < REJECT


@pytest.mark.parametrize("source", [SystemNoise(), KeyedNoise(), seeded_noise(0)])
def test_every_source_chooses_afresh(source):
    picks = [source.choice(np.zeros(1000)) for _ in range(10)]
    assert len(set(picks)) > 5


def test_keyed_noise_resumes_exactly_and_only_forward():
    source = KeyedNoise()
    drawn(source, VALUES["numpy64"])
    state = source.state
    assert state.position == 1
    ahead = drawn(source, VALUES["torch32"])
    assert torch.equal(drawn(KeyedNoise(state), VALUES["torch32"]), ahead)
    assert source.state.position == 2
    assert source.state.key != state.key


def test_seeded_noise_repeats_and_says_so():
    first, second = (drawn(seeded_noise(5), VALUES["numpy64"]) for _ in range(2))
    assert np.array_equal(first, second)
    assert "not private" in seeded_noise(5).stamp
    assert not np.array_equal(first, drawn(seeded_noise(6), VALUES["numpy64"]))
    assert SystemNoise().stamp == KeyedNoise().stamp == "float noise, not hardened"


def test_no_two_sources_share_noise():
    system, keyed = ([drawn(kind(), VALUES["numpy64"]) for _ in range(3)] for kind in (SystemNoise, KeyedNoise))
    assert largest_correlation([*system, *keyed]) < 6


def test_threads_never_share_a_stream():
    source, noisy = KeyedNoise(), []
    work = [threading.Thread(target=lambda: noisy.append(drawn(source, np.zeros(2000)))) for _ in range(16)]
    [thread.start() for thread in work]
    [thread.join() for thread in work]
    assert source.state.position == 16
    assert largest_correlation(noisy) < 6


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_keyed_source_cannot_be_copied(copier):
    with pytest.raises(InvalidInput, match="copy repeats its noise"):
        copier(KeyedNoise())


def in_child(source, pipe):
    try:
        pipe.send(np.asarray(drawn(source, np.zeros(20_000))))
    except InvalidInput as refusal:
        pipe.send(str(refusal))


def from_forked_child(source):
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(source, there))
    child.start()
    assert here.poll(30)
    answer = here.recv()
    child.join()
    return answer


def test_spawned_sources_share_no_noise_with_each_other_or_their_parent():
    parent = seeded_noise(5)
    sources = [parent.spawn(), parent.spawn(), parent]
    assert largest_correlation([drawn(each, np.zeros(100_000)) for each in sources]) < 6
    assert {each.stamp for each in sources} == {"test noise (seed 5): not private"}
    again = seeded_noise(5)
    assert np.array_equal(drawn(again.spawn(), np.zeros(9)), drawn(seeded_noise(5).spawn(), np.zeros(9)))


def test_a_surrendered_state_goes_on_elsewhere_and_not_here():
    source, twin = seeded_noise(5), seeded_noise(5)
    elsewhere = KeyedNoise(source.surrender())
    assert np.array_equal(drawn(elsewhere, VALUES["numpy64"]), drawn(twin, VALUES["numpy64"]))
    for use in (lambda: drawn(source, VALUES["numpy64"]), source.spawn, source.surrender):
        with pytest.raises(InvalidInput, match="given to another process"):
            use()


def test_forked_processes_draw_their_own_noise():
    source = SystemNoise()
    streams = [drawn(source, np.zeros(20_000)), from_forked_child(source), from_forked_child(source)]
    assert largest_correlation(streams) < 6


def test_a_keyed_source_refuses_to_work_in_a_forked_child():
    assert "forked" in from_forked_child(KeyedNoise())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_on_a_gpu_is_normal_fresh_and_resumes(dtype):
    value = torch.zeros(SIZE, dtype=dtype, device="cuda")
    first, second = (drawn(SystemNoise(), value) for _ in range(2))
    assert first.device == value.device
    assert normal_p_value(first.cpu(), MULTIPLIER * BOUND) > REJECT
    assert normal_p_value(first.cpu(), 1.1 * MULTIPLIER * BOUND) < REJECT
    assert largest_correlation([first.cpu().numpy(), second.cpu().numpy()]) < 6
    assert torch.equal(drawn(seeded_noise(1), value), drawn(seeded_noise(1), value))


def test_noise_drawn_in_one_stretch_is_independent_between_leaves_and_of_the_asked_scale() -> None:
    """What an accelerator's tensors get, tried on the CPU's: one draw for all, each leaf its own part of it."""

    values = [torch.full((50, 40), 3.0), torch.full((2000,), -1.0), torch.zeros(2000, dtype=torch.float64)]
    noisy = _add_accelerated(values, 2.0, np.random.default_rng(0))
    drawn = [(after - before).double().flatten() for after, before in zip(noisy, values, strict=True)]
    assert [n.shape for n in noisy] == [v.shape for v in values]
    assert [n.dtype for n in noisy] == [v.dtype for v in values]
    assert all(abs(float(d.std()) / 2.0 - 1) < 0.1 for d in drawn)
    assert all(abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.1 for a, b in pairwise(drawn))
    again = _add_accelerated(values, 2.0, np.random.default_rng(0))
    other = _add_accelerated(values, 2.0, np.random.default_rng(1))
    assert all(torch.equal(a, b) for a, b in zip(noisy, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(noisy, other, strict=True))
    assert float(values[0].sum()) == 6000.0  # the values themselves are untouched


@pytest.mark.parametrize("cuts", [(0, 7, 10), (0, _BLOCK - 1, _BLOCK, 2 * _BLOCK + 5, 2 * _BLOCK + 5)])
def test_stretches_of_shared_noise_are_those_of_one_source(cuts):
    """No coordinate has another's noise, whoever holds it, and each release has its own."""
    whole, seeds = [torch.zeros(cuts[-1]), torch.zeros(3, dtype=torch.float64)], []
    source = seeded_noise(5)
    for _ in range(2):
        seed = source.surrender_release(whole, 2.0)
        seeds.append(seed)
        rows = []
        for first, last in pairwise(cuts):
            layout = [Stretch(cuts[-1], first, last), Stretch(3, 0, 3 if first == 0 else 0)]
            values = [whole[0][first:last], whole[1][: layout[1].last]]
            rows.append(
                SharedNoise(layout, lambda _, seed=seed: seed, "").gaussian(values, bound=1.0, noise_multiplier=2.0)
            )
        parts = [torch.cat([row[place] for row in rows]) for place in range(2)]
        alone = seeded_noise(5)
        for _ in seeds:
            exact = alone.gaussian(whole, bound=1.0, noise_multiplier=2.0)
        assert all(torch.equal(one, other) for one, other in zip(parts, exact, strict=True))
    assert seeds[0] != seeds[1]


def test_stretches_on_an_accelerator_do_not_depend_on_who_holds_them():
    """On the CPU, by the same functions; blocks of 8."""

    def drawn(first, last):
        seeded = Chain(bytes(32)).generator("noise")
        return _add_accelerated_stretch(torch.zeros(last - first), Stretch(30, first, last), 1.0, seeded, size=8)

    parts = [drawn(first, last) for first, last in pairwise((0, 5, 8, 8, 23, 30))]
    assert torch.equal(torch.cat(parts), drawn(0, 30))
    assert len(set(drawn(0, 30).tolist())) == 30
