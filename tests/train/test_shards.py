"""Models in pieces (``fully_shard``): what two ranks do with them is what one process does with the whole."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

import dpilot
from dpilot import Ledger
from tests.train import helpers, shard_scenes
from tests.train.crew import finish
from tests.train.test_rank_processes import equal

SCENES = "tests.train.shard_scenes"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def seen(home):
    """What both ranks saw in every scene."""
    return finish(SCENES, home / "two", 2)


@pytest.mark.parametrize("name", shard_scenes.RUNS)
def test_a_model_in_pieces_is_trained_like_a_whole_one(name, seen):
    """To the last bit like ranks that hold it whole: each coordinate has its own noise, once. And like one process."""
    options = dict(shard_scenes.RUNS[name])
    make = options.pop("net", helpers.model)
    alone = helpers.fit(net=shard_scenes.seeded(make), **options)
    for rank in seen:
        (weights, record, thresholds), (whole, same, kept) = rank["kinds"][name]
        assert equal(weights, whole)
        assert thresholds == kept
        assert (record.epsilon, record.plan) == (same.epsilon, same.plan) == (alone.epsilon, alone.record.plan)
        assert [each.length for each in record.steps] == pytest.approx([each.length for each in same.steps], rel=1e-6)
        assert [each.released for each in record.steps] == [each.released for each in same.steps]
        assert len(record.validation) == len(alone.record.validation)
        ours = alone.model.state_dict()
        assert list(weights) == list(ours)
        near = 0.02 if "amp" in options else 1e-6
        assert all(torch.allclose(weights[each], ours[each], atol=near) for each in ours)


def test_own_loops_with_a_model_in_pieces(seen):
    for rank in seen:
        (weights, record, shown), (whole, same, expected) = rank["own_loop"]
        assert equal(weights, whole)
        assert all(torch.equal(one, other) for one, other in zip(shown, expected, strict=True))
        assert record.epsilon == same.epsilon


@pytest.mark.parametrize("half", [False, True])
def test_norms_and_sums_are_those_of_the_plain_model(half, seen):
    net = helpers.model()
    norms, sums = shard_scenes.sums(net.bfloat16() if half else net, half)
    for rank in seen:
        theirs, their_sums = rank["put_together"][half]
        assert norms.dtype == theirs.dtype == torch.float32
        assert torch.equal(norms, theirs)
        assert equal(sums, their_sums)


def test_half_precision_is_that_of_the_model_alone(seen, home):
    """Sums and noise in float32: one rank and two come to the same weights, but for the order in a chunk."""
    (alone,) = finish(SCENES, home / "one", 1, "half")
    exact = helpers.fit("slack", chunk_size=4).model.state_dict()
    for rank in seen:
        weights, thresholds = rank["half"]
        assert all(torch.allclose(weights[name], alone["half"][0][name], atol=1e-6) for name in exact)
        assert thresholds == pytest.approx(alone["half"][1], rel=1e-6)
        assert 0 < max(float((weights[name] - exact[name]).abs().max()) for name in exact) < 0.02


def test_a_neighbour_moves_no_more_than_the_bound_on_all_ranks_together(seen):
    first, second = (rank["neighbours"] for rank in seen)
    largest = 0.0
    for case, (differences, releases, moved) in first.items():
        others, count, more = second[case]
        assert differences == others == ()
        assert releases == count == 3
        for (square, bound), (other, same) in zip(moved, more, strict=True):
            assert bound == same
            largest = max(largest, (square + other) ** 0.5 / bound)
    assert 0.99 < largest <= 1 + 1e-6


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("where", ["loss", "sum", "room", "noise", "moving"])
def test_a_failure_of_one_rank_stops_all_and_stays_paid(where, failing, seen):
    said = [rank["failures"][where, failing] for rank in seen]
    assert said[failing][0] == "MemoryError: none left"
    assert said[1 - failing][0].startswith("RankLost: ")
    assert "MemoryError: none left" in said[1 - failing][0]
    assert said[0][1] == ["reserved"]


REFUSED = {
    "a whole parameter": "parameter '3.weight' is whole on every rank, and others are in pieces",
    "columns": "expected rows on all 2 ranks",
    "batch norm": "mixes samples",
    "another policy": "rank 1 has another way of sharding than rank 0",
    "another plan": "rank 1 has another plan than rank 0",
    "low memory": "low_memory is given, and the model lies in pieces",
    "device": "device is given, and the model lies in pieces",
    "hardened": 'noise is "hardened" on several ranks',
    "audit": "audit is given on 2 ranks: expected one process",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_whole_model_is_refused_unpaid(name, seen):
    for rank in seen:
        assert REFUSED[name] in rank["refusals"][name]
        assert not rank["refusals"][name, "paid"]


def test_a_rank_holds_and_stores_its_own_rows(seen, home):
    (whole, said, first), (_, other, second) = (rank["stored"] for rank in seen)
    assert (said, other) == ("KeyboardInterrupt", "RankLost")
    assert {name: each.numel() for name, each in whole.items()} == {name: first[name] + second[name] for name in first}
    assert sum(second.values()) < sum(first.values()) < sum(each.numel() for each in whole.values())
    names = [path.name for path in sorted((home / "stopped").glob("checkpoint*"))]
    assert names == ["checkpoint-4-0-of-2.safetensors", "checkpoint-4-1-of-2.safetensors", "checkpoint.safetensors"]
    saved = dpilot.load(home / "done").model
    assert type(saved[0]) is nn.Linear
    assert equal(saved.state_dict(), whole)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_step_that_was_begun_is_taken_again_on_any_number_of_ranks(count, seen, home, tmp_path):
    """Its noise covers the sum that it covered, as the log of the run shows; what was altered is refused."""
    for name in ("stopped", "altered"):
        shutil.copytree(home / "stopped", tmp_path / name)
        for end in ("", ".steps"):
            shutil.copy(home / f".stopped.secret{end}", tmp_path / f".{name}.secret{end}")
    piece = tmp_path / "altered" / "checkpoint-4-1-of-2.safetensors"
    content = bytearray(piece.read_bytes())
    content[-1] ^= 1
    piece.write_bytes(bytes(content))
    for rank in finish(SCENES, tmp_path / "again", count, "resume"):
        assert equal(rank["resume"]["stopped"], seen[0]["stored"][0])
        assert "was altered since the run wrote it" in rank["resume"]["altered"]
    (entry,) = Ledger.read(tmp_path / "stopped" / "ledger").entries()
    assert entry.state == "committed"
