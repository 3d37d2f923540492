"""Trials in processes of their own: the same trials, paid before a process starts, each sent once."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import pickle
import sys
from dataclasses import replace
from io import BytesIO
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from dpilot import Budget, Ledger
from dpilot.data.units import group_rows
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.noise import KeyedNoise, SystemNoise, seeded_noise
from dpilot.privacy.events import Gaussian, PoissonSampled, Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import PrivacyUnit
from dpilot.train.batches.unit_reader import UnitsById, rows_of
from dpilot.tune import Candidate, ModuleTask, autopilot, private_selection, random_search, worker
from dpilot.tune import pool as pools
from dpilot.tune.recipe import TrialKeys
from dpilot.tune.space import Always, LogUniform, Space
from dpilot.tune.task import Trial, fixed_noise, require_distinct
from dpilot.tune.trial_transfer import TransferredTrial
from tests.tune import pool_cases
from tests.tune.helpers import LOSS, arrays, dataset, seen, with_keys

RATE = 0.4


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def task_of(model_fn, data=None, **options):
    options = {"options": {"chunk_size": 64}, "clipping": "constant", "sample_rate": RATE, "workers": 2, **options}
    data = dataset() if data is None else data
    return ModuleTask(model_fn, LOSS, data, rows_of(data), len(data), len(data), 2, **options)


def trial(steps=3, lr=0.5, sigma=2.0, rate=RATE):
    step = Gaussian(sigma) if rate == 1 else PoissonSampled(rate, Gaussian(sigma))
    return Trial(Candidate(lr, steps), sigma, Receipt(Repeated(step, steps)))


def plan_of(each):
    return task_of(pool_cases.linear).recipe.plan(each)


def sequences():
    made = np.random.default_rng(0)
    values = torch.from_numpy(made.normal(size=(60, 5, 2)).astype(np.float32))
    labels = (values[:, -1, 0] > 0).long()
    values[0, 0, 0], values[1, 0, 0], labels[2] = math.nan, math.inf, 9
    return TensorDataset(values, labels)


def marked(value):
    values, labels = arrays()
    values[3] = value
    return dataset((values, labels))


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def foretell(monkeypatch):
    """The same fresh keys every time, all different."""
    drawn = itertools.count()
    monkeypatch.setattr("dpilot.keys._entropy", lambda: hashlib.sha256(b"%d" % next(drawn)).digest())


@pytest.fixture
def no_process(monkeypatch):
    def never(*args, **options):
        raise AssertionError("a process is started")

    monkeypatch.setattr(pools.subprocess, "Popen", never)


@pytest.mark.slow
@pytest.mark.parametrize("by_unit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_pool_gives_what_trials_one_after_the_other_give_bit_for_bit(monkeypatch, by_unit):
    """With the same keys: weights, Poisson batches, dropout, noise, clip state, averages; null records end nothing."""
    made, told, data, unit = [], [], sequences(), PrivacyUnit("unit", 3)
    if by_unit:
        data = UnitsById(data, group_rows(np.arange(60) // 4, unit, key=bytes(32)))
    for workers in (1, 2):
        foretell(monkeypatch)
        how = {"options": {"chunk_size": 16, "average": "ema"}, "clipping": "bounded-slack", "noise": fixed_noise(2)}
        records = []
        how |= {"unit": unit} if by_unit else {}
        task = task_of(pool_cases.Sequences, data, workers=workers, watch=records.append, **how)
        made.append(task.train([trial(4), trial(2, 0.1, 3.0), trial(3)]))
        told.append(records)
    assert all(same(one, other) for one, other in zip(*made, strict=True))
    assert not any(same(made[0][place], made[0][other]) for place, other in ((0, 1), (0, 2), (1, 2)))
    assert all(bool(torch.isfinite(each).all()) for model in made[1] for each in model.parameters())
    assert told[0] == told[1]
    assert len(told[1]) == 9
    assert all(model.training for model in made[1])


@pytest.mark.slow
def test_a_selection_hands_out_the_same_whether_its_trials_are_in_processes_or_not(monkeypatch, capfd):
    """From the same keys the same winner, score, entries and words; nothing is printed that would tell of K."""
    made, sent = [], []

    def noted(recipe, moved, workers):
        sent.append(len(moved))
        return pools.run_in_processes(recipe, moved, workers)

    monkeypatch.setattr("dpilot.tune.module_task.run_in_processes", noted)
    for workers in (1, 2):
        foretell(monkeypatch)
        task = task_of(pool_cases.Sequences, sequences(), workers=workers, noise=fixed_noise(4))
        space = Space(LogUniform(0.1, 1.0), Always(2))
        tuned = private_selection(task, space, Budget(3.0, 1e-5), mean_trials=5, law="poisson")
        made.append(seen(tuned))
    assert made[0][0] == made[1][0]
    assert same(made[0][1], made[1][1])
    assert max(sent) > 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_trials_in_processes_have_batches_and_noise_of_their_own_and_draw_all_that_was_paid():
    size, sigma = 600, 1e-4
    data = TensorDataset(torch.eye(size), torch.zeros(size, dtype=torch.long))
    trials = [trial(steps=1, lr=size * RATE, sigma=sigma) for _ in range(3)]
    models = task_of(pool_cases.OneHot, data, optimizer="sgd").train(trials)
    weights = [model.head.weight.detach().numpy() for model in models]  # what a record adds is 0.7, beside the noise
    batches = [set(np.flatnonzero(each[0] - each[1] > 0.7)) for each in weights]
    for batch in batches:
        assert abs(len(batch) - size * RATE) < 5 * math.sqrt(size * RATE)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(len(batches[one] & batches[other]) - size * RATE**2) < 5 * math.sqrt(size * RATE**2)
        nobody = sorted(set(range(size)) - batches[one] - batches[other])  # there, only noise
        gap = (weights[one] - weights[other])[:, nobody] / (sigma * math.sqrt(2))
        assert 0.8 < gap.std() < 1.2
    for each in trials:
        with pytest.raises(BudgetExceeded):
            each.receipt.draw(PoissonSampled(RATE, Gaussian(sigma)))


def test_nothing_starts_that_was_not_drawn_from_an_open_receipt(no_process):
    closed = trial()
    closed.receipt.close()
    for wrong in (closed, Trial(Candidate(0.5, 3), 2.0, Receipt(Repeated(PoissonSampled(RATE, Gaussian(2.0)), 3)))):
        if wrong is not closed:
            wrong.receipt.draw(PoissonSampled(RATE, Gaussian(2.0)))  # it has begun elsewhere
        with pytest.raises(BudgetExceeded):
            task_of(pool_cases.linear).train([trial(), wrong])


def test_all_releases_of_all_trials_are_drawn_before_a_process_starts(monkeypatch):
    trials = [trial(), trial()]

    def started(*args, **options):
        for each in trials:
            with pytest.raises(BudgetExceeded):
                each.receipt.draw(PoissonSampled(RATE, Gaussian(2.0)))
        raise InterruptedError

    monkeypatch.setattr(pools.subprocess, "Popen", started)
    with pytest.raises(InterruptedError):
        task_of(pool_cases.linear).train(trials)


@pytest.mark.parametrize(
    "value",
    [pool_cases.DEADLY, pytest.param(pool_cases.FAILING, marks=pytest.mark.slow)],
    ids=["killed", "out of memory"],
)
def test_a_trial_whose_process_dies_stays_paid_is_not_tried_again_and_nothing_is_said_of_it(
    value, tmp_path, monkeypatch, capfd
):
    sent, dump = [], pickle.dump

    def noted(what, sink, *rest, **options):
        sent.append(what)
        dump(what, sink, *rest, **options)

    task = task_of(pool_cases.Fragile, marked(value), sample_rate=1.0, options={"chunk_size": 5})
    book = Ledger.open(tmp_path / "ledger", dataset="d", budget=Budget(1.0, 1e-5), mode="precommitted")
    monkeypatch.setattr(pools.pickle, "dump", noted)
    with pytest.raises(pools.TrialLost) as lost:
        random_search(task, Space(LogUniform(0.1, 1.0), Always(2)), Budget(1.0, 1e-5), trials=2, ledger=book)
    assert sum(isinstance(each, TransferredTrial) for each in sent) <= 2
    assert str(lost.value).startswith("a worker process ended before its trial did: expected every trial")
    assert not any(character.isdigit() for character in str(lost.value))
    assert capfd.readouterr() == ("", "")  # what workers print goes nowhere
    assert [entry.state for entry in book.entries()] == ["reserved"] * 2 + ["planned"] * 2
    assert 0.99 < book.spent().epsilon <= 1.0


def test_a_trial_that_goes_wrong_after_it_read_a_record_says_nothing(monkeypatch):
    """In a worker it ends the process; here, the one exception that no record is guarded for is seen to get out."""
    monkeypatch.setattr(pool_cases, "in_worker", lambda: True)
    task, mine = task_of(pool_cases.Fragile, marked(pool_cases.FAILING), sample_rate=1.0), trial(rate=1.0)
    with pytest.raises(MemoryError):
        worker.answer_trial(task.recipe, mine, task.recipe.plan(mine), TrialKeys.draw(SystemNoise()))


def test_a_trial_is_sent_once_and_leaves_nothing_to_draw():
    mine = trial()
    moved = TransferredTrial(mine, plan_of(mine), TrialKeys.draw(KeyedNoise()))
    there, plan, keys = pickle.loads(pickle.dumps(moved))
    assert (there.candidate, there.noise_multiplier) == (mine.candidate, mine.noise_multiplier)
    assert there.receipt.event == mine.receipt.event
    assert plan == plan_of(mine)
    assert keys.noise.stamp == KeyedNoise().stamp
    for _ in range(3):
        there.receipt.draw(PoissonSampled(RATE, Gaussian(2.0)))
    for spent in (there, mine):
        with pytest.raises(BudgetExceeded):
            spent.receipt.draw(PoissonSampled(RATE, Gaussian(2.0)))
    with pytest.raises(InvalidInput, match="a second time"):
        pickle.dumps(moved)


def test_a_moved_trial_shows_no_key():
    keys, mine = TrialKeys.draw(SystemNoise()), trial()
    assert "Chain" not in repr(keys) + repr(TransferredTrial(mine, plan_of(mine), keys))


def test_lots_have_keys_of_their_own():
    for noise in (SystemNoise, fixed_noise(1)):
        key_sets = [TrialKeys.draw(noise()) for _ in range(3)]
        assert len({keys.weights.key for keys in key_sets}) == len({keys.batches.key for keys in key_sets}) == 3


@pytest.mark.slow
def test_one_noise_source_for_all_trials_gives_each_process_noise_of_its_own():
    """A source handed out again and again is not sent as it stands: two workers would repeat its noise."""
    one = KeyedNoise()
    task = task_of(pool_cases.linear, noise=lambda: one, sample_rate=1.0, optimizer="sgd")
    first, second = task.train([trial(1, sigma=50.0, rate=1.0), trial(1, sigma=50.0, rate=1.0)])
    gap = torch.cat([(a - b).detach().flatten() for a, b in zip(first.parameters(), second.parameters(), strict=True)])
    assert gap.abs().max() > 0.05  # noise alone moves a weight by 50 / 40


def test_a_source_whose_trial_was_sent_adds_no_more_noise_here():
    mine = trial()
    keys = TrialKeys.draw(KeyedNoise())
    pickle.dumps(TransferredTrial(mine, plan_of(mine), keys))
    with pytest.raises(InvalidInput, match="given to another process"):
        keys.noise.gaussian([np.zeros(2)], bound=1.0, noise_multiplier=1.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_factory_that_builds_every_source_from_one_state_is_refused(workers, no_process):
    state = KeyedNoise().state
    for repeats in (lambda: KeyedNoise(state), lambda: seeded_noise(3)):
        with pytest.raises(InvalidInput, match="built from the same state or seed"):
            task_of(pool_cases.linear, workers=workers, noise=repeats)


def test_a_factory_that_repeats_a_state_later_is_refused_then():
    first = KeyedNoise()
    handed = iter([first, KeyedNoise(), KeyedNoise(), KeyedNoise(first.state)])
    make = require_distinct(lambda: next(handed))
    kept = [make() for _ in range(3)]
    kept[0].gaussian([np.zeros(2)], bound=1.0, noise_multiplier=1.0)  # the first one has moved on since
    with pytest.raises(InvalidInput, match="built from the same state or seed"):
        make()


class Hardened:
    stamp = "hardened"

    def gaussian(self, values, *, bound, noise_multiplier):
        raise NotImplementedError

    def choice(self, log_weights):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_fn": lambda: torch.nn.Linear(3, 2)}, "model_fn cannot be sent"),
        ({"loss_fn": lambda outputs, y: LOSS(outputs, y)}, "loss_fn cannot be sent"),
        ({"train_data": Subset(dataset(), range(5))}, "expected a TensorDataset"),
        ({"noise": Hardened}, "Hardened, which cannot be moved"),
        ({"workers": 0}, "workers"),
    ],
    ids=["lambda", "loss", "data set", "noise", "none"],
)
def test_what_cannot_be_sent_is_refused_when_the_task_is_made(change, told, no_process):
    plain = {"model_fn": pool_cases.linear, "loss_fn": LOSS, "train_data": dataset(), "held_out": dataset()}
    with pytest.raises(InvalidInput, match=told):
        ModuleTask(**{**plain, "size": 40, "held_out_size": 40, "classes": 2, "workers": 2, **change})


@pytest.mark.parametrize(
    ("home", "told"), [("__main__", "of __main__, the script"), ("made_here", "of made_here, which is not where")]
)
def test_what_only_this_process_can_find_is_refused(home, told, monkeypatch, no_process):
    def scripted():
        return torch.nn.Linear(3, 2)

    scripted.__module__, scripted.__qualname__ = home, "scripted"
    monkeypatch.setitem(sys.modules, home, sys.modules.get(home, ModuleType(home)))
    monkeypatch.setattr(sys.modules[home], "scripted", scripted, raising=False)
    with pytest.raises(InvalidInput, match=told):
        task_of(scripted)


def test_a_module_that_is_another_one_in_a_worker_is_refused():
    weights = {name: each.detach().numpy() for name, each in pool_cases.linear().named_parameters()}
    rest, frozen = worker._digest_frozen(pool_cases.linear()), pool_cases.frozen(1.0)
    last = {f"1.{name}": each for name, each in weights.items()}
    for parameters, other, model in (
        ({"weight": weights["weight"]}, rest, pool_cases.linear()),
        (last, worker._digest_frozen(pool_cases.frozen(2.0)), frozen),
    ):
        with pytest.raises(InvalidInput, match="made another module in a worker"):
            worker.TrialOutput(parameters, [], other).load_into(model)
    model = pool_cases.linear()
    worker.TrialOutput(weights, [], rest).load_into(model)
    assert np.array_equal(model.weight.detach(), weights["weight"])


def test_what_a_worker_refuses_before_it_reads_a_record_is_told():
    mine = trial()
    recipe = replace(task_of(pool_cases.linear).recipe, model_fn=pool_cases.missing)
    refused = worker.answer_trial(recipe, mine, plan_of(mine), TrialKeys.draw(SystemNoise()))
    assert refused.why == "FileNotFoundError: no weights here"
    there, here = os.pipe()
    os.close(there)  # the worker ended before it heard all
    with os.fdopen(here, "wb", 0) as sink, pytest.raises(InvalidInput, match="no weights here"):
        pools._Worker(None, sink, BytesIO(pickle.dumps(refused))).ask("a trial", bytes(1 << 20))


def test_a_tape_hears_every_release_so_trials_stay_in_its_process(no_process):
    models = with_keys(5, lambda: task_of(pool_cases.linear).train([trial(), trial()]))
    assert len(models) == 2


def test_one_trial_and_trials_that_stack_need_no_process(no_process):
    task_of(pool_cases.linear).train([trial()])
    task_of(pool_cases.linear, together=True).train([trial(), trial()])


def test_workers_share_the_cores(monkeypatch):
    torch.set_num_threads(8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [worker.Conditions.here(workers).threads for workers in (1, 2, 3, 9)] == [8, 4, 2, 1]
    torch.set_num_threads(2)
    assert worker.Conditions.here(2).threads == 2


def test_the_autopilot_hands_its_workers_on_and_refuses_before_anything_is_paid(tmp_path):
    path = tmp_path / "run.ledger"
    with pytest.raises(InvalidInput, match="model_fn cannot be sent"):
        autopilot(lambda: torch.nn.Linear(3, 2), dataset(), Budget(1.0, 1e-5), classes=2, workers=2, ledger=path)
    assert not path.exists()
