"""Ranks: one payment, one draw, one noise; every failure is everybody's."""

from __future__ import annotations

from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from dpilot import Ledger, PrivateStep, Trainer, audit, clipping, poisson_loader
from dpilot.errors import InvalidInput
from dpilot.keys import Chain
from dpilot.train.canaries import Canaries
from dpilot.train.ranks import Alone, RankLost, find_ranks
from dpilot.train.sums import ExactSums
from tests.train import helpers
from tests.train import test_replay as replays
from tests.train.helpers import LOSS, data, model, plan, same
from tests.train.threads import run_on_ranks

PAIRS = replays.PAIRS
fit = partial(helpers.fit, engine="loop")  # other engines look at the generators of the process, which threads share


@pytest.mark.parametrize("rule", ["constant", "slack"])
def test_two_ranks_are_one_process(rule, tmp_path):
    alone = fit(rule)
    book = tmp_path / "people.ledger"
    first, second = run_on_ranks(2, lambda rank: fit(rule, net=model(rank), ledger=str(book) if rank == 0 else "no"))
    assert same(first.model, second.model)
    gap = max(
        float((a - b).abs().max()) for a, b in zip(first.model.parameters(), alone.model.parameters(), strict=True)
    )
    assert gap < 1e-6
    assert first.epsilon == second.epsilon == alone.epsilon
    assert first.record == second.record
    assert len(Ledger.read(book).entries()) == 1
    assert second.ledger is None


def test_ranks_without_records_send_zeros():
    """Most batches of one record are empty, and two of three ranks never see it."""
    alone = fit(dataset=data(1), chunk_size=1)
    for other in run_on_ranks(3, lambda rank: fit(dataset=data(1), chunk_size=1)):
        assert other.thresholds == alone.thresholds
        assert len(other.record.steps) == len(alone.record.steps)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs(other, alone))


def pairs(one, other):
    return zip(one.model.parameters(), other.model.parameters(), strict=True)


def strange(size=60):
    """Records of which some do not compute: labels that are no class."""
    made = data(size)
    made.tensors[1][::7] = 9
    return made


@pytest.mark.slow
def test_null_records_stop_no_rank():
    alone = fit(dataset=strange(), chunk_size=4)
    for other in run_on_ranks(2, lambda rank: fit(dataset=strange(), chunk_size=4)):
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs(other, alone))


class Once:
    """Fails at the call of this number; what counts is nothing that a step could put back."""

    def __init__(self, at):
        self.calls, self.at = count(), at

    def __call__(self, *arguments):
        if next(self.calls) == self.at:
            raise MemoryError("none left")
        return LOSS(*arguments) if len(arguments) == 2 else None  # a loss, or a hook of three


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("computing", [True, False])
def test_a_failure_of_one_rank_stops_all_and_stays_paid(failing, computing, tmp_path):
    def work(rank):
        fails = rank == failing
        options = {"ledger": str(tmp_path / "book"), "chunk_size": 4, "engine": "loop"}
        trainer = Trainer(model(), Once(40) if computing and fails else LOSS, plan(), **options)
        if fails and not computing:
            trainer._job.optimizer.register_step_post_hook(Once(3))
        return trainer.fit(data())

    results = run_on_ranks(2, work, fails=True)
    own, other = results[failing], results[1 - failing]
    assert isinstance(own, MemoryError), own
    assert isinstance(other, RankLost), other
    assert "MemoryError: none left" in str(other)
    (entry,) = Ledger.read(tmp_path / "book").entries()
    assert entry.state == "reserved"


def test_other_plans_are_refused_on_all_ranks_unpaid(tmp_path):
    def work(rank):
        return fit(plan=plan(epsilon=5.0 - rank), ledger=str(tmp_path / "book"))

    told, own = run_on_ranks(2, work, fails=True)
    assert isinstance(own, InvalidInput)
    assert "rank 1 has another plan than rank 0" in str(own)
    assert isinstance(told, RankLost)
    assert "rank 1 failed (InvalidInput: rank 1 has another plan" in str(told)
    assert not Ledger.read(tmp_path / "book").entries()


@pytest.mark.parametrize("ranks", [1, *(pytest.param(j, marks=pytest.mark.slow) for j in (2, 3))])
def test_a_run_of_two_ranks_goes_on_bit_for_bit_on_any_number(ranks, tmp_path):
    def stop(record):
        if record.step == 5:
            raise KeyboardInterrupt

    def begin(folder, watch):
        options = {"checkpoint": folder, "checkpoint_every": 2, "callback": watch, "chunk_size": 4}
        return lambda rank: fit("slack", **options)

    whole = run_on_ranks(2, begin(tmp_path / "whole", None))[0]
    folder = tmp_path / "stopped"
    stopped = run_on_ranks(2, begin(folder, stop), fails=True)
    assert [type(each) for each in stopped] == [KeyboardInterrupt, RankLost]
    done = run_on_ranks(ranks, lambda rank: Trainer.resume(folder, model(1), LOSS, data()))
    assert all(same(each.model, whole.model) for each in done)
    assert len(Ledger.read(folder / "ledger").entries()) == 1


def test_own_loops_on_two_ranks(tmp_path):
    def work(rank, home=tmp_path):
        net, chosen = model(rank), plan("slack")
        loader = poisson_loader(data(), chosen)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        options = {"test_seed": 7, "ledger": str(home / "book"), "chunk_size": 8, "engine": "loop"}
        step = PrivateStep(net, LOSS, optimizer, chosen, **options)
        for batch in loader:
            step(batch)
        assert step.run.save(home / "run") == home / "run"
        return step.run

    first, second = run_on_ranks(2, work)
    assert same(first.model, second.model)
    assert first.record == second.record
    assert [entry.state for entry in Ledger.read(tmp_path / "book").entries()] == ["committed"]
    (tmp_path / "alone").mkdir()
    assert max(float((a - b).abs().max()) for a, b in pairs(first, work(0, tmp_path / "alone"))) < 1e-6


def trained(rule, chunk, leads):
    def run(arrays):
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        with torch.no_grad():
            for number, each in enumerate(net.parameters()):
                each.copy_(torch.linspace(-1 - number, 1, each.numel()).reshape(each.shape))
        heard = []
        options = {"lr": 0.1, "engine": "loop", "chunk_size": chunk, "callback": heard.append}
        if leads:
            options["ledger"] = Ledger.open("book", dataset="people", budget=plan().budget)
        run = Trainer(net, LOSS, plan(rule, rate=0.5, steps=3), **options).fit(replays.dataset(arrays))
        entries = [{**entry.as_dict(), "time": ""} for entry in run.ledger.entries()] if leads else []
        return run.model, run.record, run.thresholds, entries, heard

    return run


@pytest.mark.parametrize("rule", ["slack", pytest.param("histogram-e", marks=pytest.mark.slow)])
@pytest.mark.parametrize("pair", [0, *(pytest.param(j, marks=pytest.mark.slow) for j in range(1, len(PAIRS)))])
def test_a_neighbour_moves_nothing_on_two_ranks(rule, pair):
    """Replayed on rank 0; rank 1 follows both times, and what it hands out is the same too."""
    one, other = PAIRS[pair].data, PAIRS[pair].neighbour

    def work(rank):
        if rank == 0:
            return audit.replay(trained(rule, 2, True), one, other, opaque=("book*",))
        return trained(rule, 2, False)(one), trained(rule, 2, False)(other)

    seen, (first, second) = run_on_ranks(2, work)
    assert seen.differences == ()
    assert seen.releases == 3
    assert seen.largest <= 1 + 1e-6
    assert same(first[0], second[0])
    assert first[1:] == second[1:]


def test_one_process_that_goes_on_deals_as_ranks_do():
    """Chunks, of whatever size, and the keys of their randomness, to the last bit."""
    whole, chain = [np.arange(4), np.arange(4, 5), np.arange(5, 8)], Chain(bytes(range(32)), 3)

    def work(rank):
        share = find_ranks().deal(chain, 3, whole if rank == 0 else ())
        return share.chain.key, [piece.tolist() for piece in share.pieces]

    (key, first), (other, second) = run_on_ranks(2, work)
    alone = Alone(as_ranks=True).deal(chain, 3, whole)
    assert (first, second) == ([[0, 1, 2, 3], [5, 6, 7]], [[4]])
    assert alone.chain.key == key == other
    assert [piece.tolist() for piece in alone.pieces] == [first[0], *second, first[1]]


OPTIONS = {
    "units": {"units": [row // 3 for row in range(60)], "rows_per_unit": 2},
    "layers": {"rule": clipping.get("slack", groups=2)},
    "measuring": {"rule": "one-shot"},
    "adam": {"optimizer": "adam", "lr": 0.02, "average": "ema", "schedule": "cosine"},
    "validation": {"public_validation": data(20), "checkpoint_every": 2},
    "no form": {"collate_fn": default_collate},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_every_kind_of_run_is_that_of_one_process(name):
    alone = fit(**OPTIONS[name])
    for other in run_on_ranks(2, lambda rank: fit(net=model(rank), **OPTIONS[name])):
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs(other, alone))
        assert other.thresholds == pytest.approx(alone.thresholds)
        assert len(other.record.validation) == len(alone.record.validation)


def test_the_grid_has_room_for_a_thousand_expected_batches():
    for expected in (1.0, 512.0, 1e5, 1e8):
        made = ExactSums.of(Alone(), model(), expected)
        assert 2 ** (62 - made.bits) >= 1000 * expected
        assert made.bits >= 24


def test_canaries_hardened_noise_and_own_loops_with_a_secret_are_for_one_process(tmp_path):
    def work(rank):
        net, options = model(), {"ledger": str(tmp_path / "book"), "secret": tmp_path / "keys"}
        with pytest.raises(InvalidInput, match="there are 2 ranks, and a loop of one's own that can be resumed"):
            PrivateStep(net, LOSS, torch.optim.SGD(net.parameters(), lr=0.5), plan(), **options)
        with pytest.raises(InvalidInput, match="there are 2 ranks, and a loop of one's own that can be resumed"):
            PrivateStep.resume(tmp_path, net, LOSS, torch.optim.SGD(net.parameters(), lr=0.5))
        with pytest.raises(InvalidInput, match="audit is given on 2 ranks: expected one process"):
            Trainer(model(), LOSS, plan(), audit=Canaries(10))
        with pytest.raises(InvalidInput, match='noise is "hardened" on several ranks'):
            Trainer(model(), LOSS, plan(), noise="hardened")

    run_on_ranks(2, work)
    assert not any(tmp_path.iterdir())
