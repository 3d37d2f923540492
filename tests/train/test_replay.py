"""Whole runs replayed on neighbours: one record moves nothing but what goes into the door, by its bound at most."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import PrivateStep, Trainer, audit, clipping, poisson_loader
from tests.thin import thin
from tests.train.helpers import plan

SIZE, STEPS = 12, 3
LOSS = nn.CrossEntropyLoss(reduction="none")
made = np.random.default_rng(0)
DATA = made.normal(size=(SIZE, 3)).astype(np.float32), made.integers(0, 2, SIZE)
PAIRS = audit.neighbours(DATA)  # the empty set and its first record among them
AWKWARD = [pair for pair in PAIRS if any(word in pair.name for word in ("1e30 added", "one nan"))]
RULES = [*clipping.names(), clipping.get("slack", groups=2), clipping.get("histogram-e", normalized=True)]


def dataset(arrays):
    return TensorDataset(*(torch.from_numpy(np.array(array)) for array in arrays))


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def short(rule):
    return plan(rule, rate=0.5, steps=STEPS)


def seen(run):
    """Everything a run hands out, its ledger's entries included (their time of day is not its doing)."""
    entries = [{**entry.as_dict(), "time": ""} for entry in run.ledger.entries()]
    return run.model, run.record, run.epsilon, run.thresholds, entries


def trained(rule, engine, optimizer, chunk):
    def run(arrays):
        heard = []
        trainer = Trainer(
            net(),
            LOSS,
            short(rule),
            optimizer=optimizer,
            lr=0.1,
            engine=engine,
            chunk_size=chunk,
            callback=heard.append,
        )
        return seen(trainer.fit(dataset(arrays))), heard

    return run


@pytest.mark.parametrize("engine", thin(["single-backward", "vmap"], 2))
@pytest.mark.parametrize("rule", thin(RULES, 3), ids=str)
def test_one_record_moves_a_release_by_its_bound_at_most_and_nothing_else(rule, engine, replay):
    optimizer, chunk = ("sgd", 2) if engine == "vmap" else ("adam", 100)
    results = replay(trained(rule, engine, optimizer, chunk), pairs=AWKWARD)
    assert {result.releases for result in results} == {STEPS}


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("engine", ["single-backward", "vmap"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_combination_on_every_neighbour(rule, engine, optimizer, chunk, replay):
    replay(trained(rule, engine, optimizer, chunk), pairs=PAIRS)


@pytest.mark.slow
def test_extreme_records_use_the_whole_bound(replay):
    """The replay can fail: some neighbour moves a release by nearly all it may."""
    results = replay(trained("constant", "auto", "sgd", 4), pairs=PAIRS)
    assert 0.5 < max(result.largest for result in results) <= 1.0 + 1e-6


def test_a_loop_of_ones_own_replays(replay):
    def run(arrays):
        chosen, model = short("slack"), net()
        loader = poisson_loader(dataset(arrays), chosen)
        step = PrivateStep(model, LOSS, torch.optim.Adam(model.parameters(), lr=0.1), chosen, chunk_size=3)
        return [step(batch) for batch in loader], model, step.record

    replay(run, pairs=PAIRS)


@pytest.mark.parametrize("rule", ["slack", "one-shot"])
def test_a_resumed_run_replays(rule, replay, capsys):
    """Its folder too: checkpoint, record and model are files that do not move. Ledger and secrets are apart."""

    def run(arrays):
        def stop(record):
            if record.step == 1:
                raise KeyboardInterrupt

        options = {"optimizer": "adam", "lr": 0.1, "chunk_size": 4}
        trainer = Trainer(net(), LOSS, short(rule), checkpoint="run", checkpoint_every=2, callback=stop, **options)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(dataset(arrays))
        return seen(Trainer.resume("run", net(), LOSS, dataset(arrays), callback=print))

    replay(
        run, pairs=AWKWARD, opaque=("ledger", "run.json", "ledger.json", "*.secret*", "statement.json", "paid_in.json")
    )


def test_dropout_takes_its_coins_from_the_runs_own_chain(replay):
    def run(arrays):
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        return seen(Trainer(model, LOSS, short("constant"), chunk_size=100).fit(dataset(arrays)))

    null = [pair for pair in PAIRS if "record of nan" in pair.name]
    for pair in null:
        result = audit.replay(run, pair.data, pair.neighbour)
        moved = [each for each in result.differences if "moves by" not in each]
        assert moved == []
        assert result.releases == STEPS
