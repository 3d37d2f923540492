"""Replay finds each way a record can get out, and finds nothing where nothing does."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from dpilot import audit, mechanism
from dpilot import statistics as s
from dpilot.audit.replay import _length
from dpilot.data.splits import Split
from dpilot.errors import BudgetExceeded
from dpilot.mechanism import release
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian, PoissonSampled, Repeated
from dpilot.privacy.ledger import Ledger
from dpilot.privacy.receipt import Receipt
from dpilot.sampling import PoissonSampler

DATA = np.random.default_rng(0).normal(size=(12, 2))
MORE = np.concatenate([DATA, [[1.5, -2.5]]])
PAID = Gaussian(1.0)


def noisy(vector, bound=1.0, noise_multiplier=1.0):
    receipt = Receipt(Gaussian(noise_multiplier))
    return release(vector, bound=bound, noise_multiplier=noise_multiplier, receipt=receipt)


def clipped_sum(data, radius=1.0):
    norms = np.linalg.norm(data, axis=1, keepdims=True)
    return (data * np.minimum(1, radius * (1 - 1e-12) / norms)).sum(0)


def found(run, data=DATA, neighbour=MORE, **options):
    return audit.replay(run, data, neighbour, **options).differences


def test_an_honest_run_shows_nothing():
    result = audit.replay(lambda data: noisy(clipped_sum(data)), DATA, MORE)
    assert result.differences == ()
    assert result.releases == 1
    assert result.largest == pytest.approx(1.0)


def prints_the_size(data):
    print(len(data))


def prints_to_stderr(data):
    print(len(data), file=sys.stderr)


def logs_the_size(data):
    logging.getLogger("some.where").debug("read %d rows", len(data))


def warns_on_extremes(data):
    if data.max() > 1.4:
        warnings.warn("extreme", stacklevel=1)


def writes_the_size(data):
    Path("out").mkdir()
    (Path("out") / "n.txt").write_text(str(len(data)))


def writes_a_file_more(data):
    if len(data) > 12:
        Path("odd.txt").touch()


def exits_by_size(data):
    raise SystemExit(len(data))


def raises_on_extremes(data):
    if data.min() < -2.4:
        raise ValueError("out of range")


def raises_with_the_value(data):
    raise ValueError(f"the last one is {data[-1]}")


def swallows_a_divergence(data):
    try:
        noisy(np.zeros(len(data)))
    except Exception:
        return


LEAKS = {
    "unclipped sum": (lambda d: noisy(d.sum(0)), "moves by"),
    "clipped, then summed raw": (lambda d: noisy((clipped_sum(d), d.sum(0))[1]), "moves by"),
    "sensitivity without the square root": (lambda d: noisy(np.sign(d).sum(0), bound=1.0), "moves by"),
    "mean over the realised size": (lambda d: noisy(5 + clipped_sum(d) / len(d), bound=1e-3), "moves by"),
    "bound from the data": (lambda d: noisy(clipped_sum(d), bound=float(np.abs(d).max())), "what is public"),
    "noise from the size": (lambda d: noisy(clipped_sum(d), noise_multiplier=1 / len(d)), "what is public"),
    "one release a record": (lambda d: [noisy(0.0) for _ in d], "one data set only"),
    "shape from the data": (lambda d: noisy(np.zeros(len(d))), "what is public"),
    "type from the data": (lambda d: noisy(np.zeros(2, np.float32 if len(d) > 12 else float)), "what is public"),
    "domain from the data": (lambda d: noisy(dict.fromkeys(np.unique(d[:, 0].round(1)), 0.0)), "what is public"),
    "joint sensitivity forgotten": (lambda d: noisy([clipped_sum(d), clipped_sum(d)]), "moves by 1.41421"),
    "returns the size": (lambda d: (noisy(0.0), len(d)), "value differs"),
    "returns an exact sum": (lambda d: (noisy(0.0), d.sum()), "value differs"),
    "releases twice for one": (lambda d: noisy(clipped_sum(d)) if len(d) < 13 else None, "one data set only"),
    "prints the size": (prints_the_size, "printed differs"),
    "prints to stderr": (prints_to_stderr, "errors printed differs"),
    "logs the size": (logs_the_size, "log differs"),
    "warns on extremes": (warns_on_extremes, "warned differs"),
    "writes the size": (writes_the_size, "files differs"),
    "writes a file more": (writes_a_file_more, "files differs"),
    "exits by size": (exits_by_size, "ending differs: exited with 12 and exited with 13"),
    "raises on extremes": (raises_on_extremes, "ending differs: returned and raised ValueError: out of range"),
    "raises with the value": (raises_with_the_value, "ending differs"),
    "swallows a divergence": (swallows_a_divergence, "stopped"),
    "keys from the data": (lambda d: [PoissonSampler(0.5, 1) for _ in d], "keys asked for differ"),
    "shuffles globally by size": (lambda d: (np.random.permutation(len(d))[-5:], noisy(0.0)), "value differs"),
}


@pytest.mark.parametrize(("run", "sign"), LEAKS.values(), ids=LEAKS)
def test_every_way_out_is_found(run, sign):
    assert any(sign in difference for difference in found(run))


@pytest.mark.parametrize(("run", "sign"), LEAKS.values(), ids=LEAKS)
def test_and_only_where_it_is(run, sign):
    assert found(run, DATA, DATA) == ()


def clips_like_numpy(data):
    return noisy(np.clip(data, -1, 1).sum(0), bound=np.sqrt(2))


def test_nan_that_passes_a_clip_counts_as_infinite():
    assert found(clips_like_numpy) == ()
    assert "moves by inf" in found(clips_like_numpy, DATA, np.concatenate([DATA, [[np.nan, 0.0]]]))[0]


def test_a_choice_is_judged_score_by_score():
    def run(sensitivity):
        return lambda data: mechanism.choose(
            np.array([len(data), -len(data), 0.0]), sensitivity=sensitivity, epsilon=1.0, receipt=Anything()
        )

    assert found(run(1.0)) == ()
    assert "moves by 1" in found(run(0.9))[0]


class Anything:
    def draw(self, event):
        pass


def test_released_values_are_frozen_and_may_steer_the_run():
    def run(data):
        first = noisy(clipped_sum(data))
        first += 1  # what a run does to its copy does not reach the tape
        return [noisy(clipped_sum(data)) for _ in range(int(abs(first[0])))]

    assert found(run) == ()


class Held:
    def __init__(self, value):
        self.value = value


SAME = [
    1.5,
    float("nan"),
    "text",
    None,
    [1, (2,)],
    {"a": np.nan},
    {3, 4},
    np.array([np.nan]),
    torch.ones(2),
    PAID,
    Path("a"),
    torch.nn.Linear(2, 2),
]


@pytest.mark.parametrize("value", [*SAME, Held(np.arange(3))], ids=lambda value: type(value).__name__)
def test_returned_values_are_compared_by_what_they_hold(value):
    assert found(lambda data: copy.deepcopy(value)) == ()
    assert found(lambda data: (copy.deepcopy(value), len(data))) != ()


OTHER = [
    (1, 1.0),
    (0.0, -0.0),
    ([1], (1,)),
    ({1}, {2}),
    ({"a": 1}, {"a": 2}),
    (Held(1), Held(2)),
    (Gaussian(1.0), Gaussian(2.0)),
    (np.zeros(2), np.zeros(2, np.float32)),
    (np.zeros(2), np.zeros((1, 2))),
    (np.ones(1), torch.ones(1)),
    (np.array([1, None], object), np.array([2, None], object)),
    (PoissonSampler(0.1, 2), PoissonSampler(0.1, 3)),
    (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
    (Path("a"), Path("b")),
    (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})),
    (pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]})),
    (pd.Series(range(1000)), pd.Series([*range(500), 0, *range(501, 1000)])),
    (Gaussian, PoissonSampled),
]


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_what_holds_something_else_is_seen(one, other):
    assert found(lambda data: one if len(data) == 12 else other) != ()


def test_a_value_that_holds_itself_is_compared_too():
    def run(data):
        around = [1]
        around.append(around)
        return around

    assert found(run) == ()


def test_messages_may_name_the_working_folder():
    def run(data):
        noisy(0.0)
        print(Path.cwd())
        assert list(Path.cwd().iterdir()) == []
        Path("left.txt").write_text("same")

    before = Path.cwd()
    assert found(run) == ()
    assert Path.cwd() == before


def test_opaque_files_need_only_be_there():
    def run(data):
        Path("a.ledger").write_text(str(len(data)))

    assert found(run, opaque=["*.ledger"]) == ()
    assert found(lambda d: run(d) if len(d) > 12 else None, opaque=["*.ledger"]) != ()


def test_global_random_states_are_left_as_they_were():
    torch.manual_seed(1)
    np.random.seed(1)
    audit.replay(lambda data: (torch.rand(1), np.random.rand(), noisy(0.0)), DATA, MORE)
    after = torch.rand(1), np.random.rand()
    torch.manual_seed(1)
    np.random.seed(1)
    assert after == (torch.rand(1), np.random.rand())


def test_rounding_is_not_a_movement_but_float32_hides_no_record():
    def run(offset):
        return lambda data: noisy(torch.tensor(clipped_sum(data) + offset, dtype=torch.float32))

    assert found(run(1e4)) == ()
    assert found(lambda d: noisy(torch.tensor(d.sum(0), dtype=torch.float32))) != ()


def test_a_long_sum_in_float32_hides_no_movement():
    def run(data):  # float32 of this size may round by as much as the bound, which is no reason to allow it
        return noisy(torch.full((2,), 1e6 + (1.25 if len(data) > len(DATA) else 0.0), dtype=torch.float32))

    assert found(run) == ("release 0 moves by 1.76777, more than its bound 1",)


GRID = s.log_grid(0.1, 10.0, per_octave=2, signed=True)
ANY = Anything()
STATISTICS = {
    "count": lambda d: s.count(d, noise_multiplier=1.0, receipt=ANY),
    "mean in a ball": lambda d: s.mean(d, domain=s.Ball(1.0), size=10, noise_multiplier=1.0, receipt=ANY),
    "mean in a box": lambda d: s.mean(d, domain=s.Box(-1.0, 3.0), size=10, noise_multiplier=1.0, receipt=ANY),
    "second moment": lambda d: s.second_moment(d, radius=2.0, noise_multiplier=1.0, receipt=ANY),
    "quantiles": lambda d: s.quantile(d, (0.1, 0.9), grid=GRID, noise_multiplier=1.0, receipt=ANY),
    "table": lambda d: s.table(d, shape=(2, 3), noise_multiplier=1.0, receipt=ANY),
    "histogram": lambda d: s.histogram(d[:, 0], edges=[-1, 0, 1], noise_multiplier=1.0, receipt=ANY),
    "edge histogram": lambda d: s.histogram(
        d[:, 0], edges=[-1, 0, 1], outside="edge", noise_multiplier=1.0, receipt=ANY
    ),
    "chosen quantile": lambda d: s.chosen_quantile(d[:, 0], 0.5, grid=GRID, epsilon=1.0, receipt=ANY),
}


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_statistics_show_nothing_of_any_neighbour(name, dtype, replay):
    results = replay(STATISTICS[name], DATA.astype(dtype))
    assert max(result.largest for result in results) > 0.25  # the neighbours do press on the bound


def sampled_training(data):
    """A small private run: sampled batches in chunks, clipped sums, steps that see earlier outputs."""
    sampler = PoissonSampler(0.7, 4)
    receipt = Receipt(Repeated(PoissonSampled(0.7, Gaussian(1.0)), 4))
    rows = torch.from_numpy(np.where(np.isfinite(data).all(1, keepdims=True), data, 0.0)).double()
    weight = torch.zeros(2, dtype=torch.float64)
    for batch in sampler.batches(len(data)):
        sampler.claim(batch)
        total = torch.zeros(2, dtype=torch.float64)
        for chunk in batch.chunks(4):
            gradients = torch.from_numpy(s.rows.into_ball((rows[chunk] - weight).numpy(), 1.0))
            total += gradients.sum(0)
        step = release({"weight": total}, bound=1.0, noise_multiplier=1.0, receipt=receipt, sample_rate=0.7)
        weight = weight + step["weight"] / 8
    return weight


def test_a_sampled_run_shows_nothing_of_any_neighbour(replay):
    assert max(result.largest for result in replay(sampled_training, DATA)) == pytest.approx(1.0)


def run_with_a_ledger(data):
    """Every kind of release under a ledger on disk; what the ledger then says is part of what is returned."""
    ledger = Ledger.open("toy.ledger", dataset="toy", budget=Budget(2.0, 1e-5), bound="gdp")
    event = s.quantile_event(8.0, grid=GRID)
    with ledger.reserve(event, purpose="bounds") as receipt:
        scale = np.abs(s.quantile(data, 0.9, grid=GRID, noise_multiplier=8.0, receipt=receipt)).max() + 0.1
    scaled = np.clip(data, -scale, scale) / scale  # clipped first: dividing the largest float may overflow, and warn
    with ledger.reserve(s.second_moment_event(8.0), purpose="gram") as receipt:
        gram = s.second_moment(scaled, radius=1.0, noise_multiplier=8.0, receipt=receipt)
    with pytest.raises(BudgetExceeded), ledger.reserve(Gaussian(0.1), purpose="too much"):
        pass
    entries = [(entry.purpose, entry.event, entry.cost, entry.state) for entry in ledger.entries()]
    return scale, gram, entries, ledger.spent(), ledger.verify().split(":")[0]


def test_a_run_with_a_ledger_shows_nothing_of_any_neighbour(replay):
    results = replay(run_with_a_ledger, pairs=audit.neighbours(DATA)[::3], opaque=["*.ledger"])
    assert {result.releases for result in results} == {1 + (GRID.size - 1).bit_length()}


def test_a_split_run_touches_one_part_only(replay):
    def run(data):
        parts = Split.draw({"train": 0.5, "held-out": 0.5}).indices(len(data))
        return [noisy(clipped_sum(data[indices])) for indices in parts.values()]

    for result in (audit.replay(run, DATA, MORE) for _ in range(5)):
        assert result.differences == ()


def test_the_fixture_fails_on_a_leak_and_on_a_run_without_releases(replay):
    with pytest.raises(AssertionError, match="moves by"):
        replay(lambda data: noisy(np.nan_to_num(data).sum(0)), DATA)
    with pytest.raises(AssertionError, match="nothing was released"):
        replay(lambda data: None, DATA)


def test_lengths_of_tiny_vectors_do_not_vanish():
    assert _length(np.array([3e-170, 4e-170]), "gaussian") == pytest.approx(5e-170, rel=1e-9)
