"""Tuning over units: persons go to one part with all their rows, are trained on and scored as one record each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget
from dpilot.audit import Pair
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy.events import Gaussian, PoissonSampled, Repeated
from dpilot.privacy.ledger import Ledger
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import PrivacyUnit
from dpilot.transfer.features import Features
from dpilot.tune import Candidate, ModuleTask, autopilot
from dpilot.tune.task import HELD_OUT, TRAIN, Trial
from tests.tune.pilot_cases import key_that_puts
from tests.tune.test_autopilot_replay import shown

LOSS = nn.CrossEntropyLoss(reduction="none")
PERSONS, CAP, RATE = 40, 3, 0.5


def table(persons=PERSONS, last=None):
    """Rows of persons in turns, their number first; ``last`` is one more, behind them."""
    made = np.random.default_rng(0)
    sizes = made.integers(1, 6, persons)
    ids = np.concatenate([np.flatnonzero(sizes > turn) for turn in range(5)])
    inputs = np.stack([ids, *made.normal(size=(2, len(ids)))], 1).astype(np.float32)
    labels = (inputs[:, 1] > 0).astype(np.int64)
    if last is not None:
        value, rows = last
        inputs = np.concatenate([inputs, np.full((rows, 3), value, dtype=np.float32)])
        labels, ids = np.append(labels, np.ones(rows, dtype=np.int64)), np.append(ids, np.full(rows, persons))
    return torch.from_numpy(inputs), torch.from_numpy(labels), ids


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 2)


def split_by(part=TRAIN):
    shares = {TRAIN: 0.6, HELD_OUT: 0.4}
    return Split(shares, key_that_puts(PERSONS, part, shares))


def task_of(rows, split, **options):
    inputs, labels, ids = rows
    options = {"units": ids, "rows_per_unit": CAP, "classes": 2, "sample_rate": RATE, **options}
    more = {"clipping": "constant", "options": {"chunk_size": 16}}
    return ModuleTask.of(net, LOSS, TensorDataset(inputs, labels), split, size=PERSONS, **more, **options)


def test_persons_go_to_one_part_and_are_scored_by_one_row():
    inputs, _, ids = table()
    task = task_of(table(), split_by())
    assert task.unit == PrivacyUnit("unit", CAP)
    assert (task.size, task.held_out_size) == (PERSONS * 0.6, PERSONS * 0.4)
    trained = inputs[task.train_data.rows.places, 0].int().tolist()
    held_out = task.held_out.tensors[0][:, 0].int().tolist()
    assert len(set(held_out)) == len(held_out)
    assert not set(trained) & set(held_out)
    assert {*trained, *held_out} == set(ids.tolist())
    assert max(trained.count(who) for who in trained) == CAP


@pytest.mark.parametrize("part", [TRAIN, HELD_OUT])
@pytest.mark.parametrize("last", [(1e3, 1000), (-1e30, 1), (np.nan, CAP)])
def test_a_person_moves_trials_and_scores_by_a_bound(part, last, replay):
    step = PoissonSampled(RATE, Gaussian(2.0))

    def run(rows):
        task = task_of(rows, split_by(part))
        (model,) = task.train([Trial(Candidate(0.1, 2), 2.0, Receipt(Repeated(step, 2)))])
        return model, task.table(model, "accuracy", noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))

    (result,) = replay(run, pairs=[Pair("a person added", table(), table(last=last))])
    assert result.releases == 3


def flown(rows, **options):
    inputs, labels, ids = rows
    chosen = {"units": ids, "unit": "patient", "rows_per_unit": CAP, "classes": 2, "epochs": 1, **options}
    return autopilot(net, TensorDataset(inputs, labels), Budget(3.0, 1e-3, allow_large_delta=True), **chosen)


def test_an_autopilot_over_a_module_names_the_unit_and_counts_persons(tmp_path):
    fitted = flown(table(), ledger=tmp_path / "patients")
    assert fitted.record.data["size"] == PERSONS
    assert fitted.record.privacy["unit_name"] == "patient"
    assert fitted.record.privacy["rows_per_unit"] == CAP
    assert "number of units is published" in fitted.record.privacy["unit"]
    assert Ledger.read(tmp_path / "patients").unit == "patient"
    with pytest.raises((LedgerError, InvalidInput), match="patient"):
        flown(table(), ledger=tmp_path / "patients", unit="device")


def test_a_person_moves_only_what_an_autopilot_releases(replay, monkeypatch):
    key = key_that_puts(PERSONS, TRAIN, {TRAIN: 0.9, HELD_OUT: 0.1})
    monkeypatch.setattr("dpilot.data.splits.fresh_key", lambda purpose: key)
    pairs = [Pair("a person added", table(), table(last=(1e3, 9)))]
    replay(lambda rows: shown(flown(rows, size=PERSONS, held_out_share=0.1)), pairs=pairs)


def test_what_contradicts_itself_is_refused():
    inputs, labels, ids = table()
    data, split = TensorDataset(inputs, labels), split_by()
    with pytest.raises(InvalidInput, match="units are missing"):
        ModuleTask.of(net, LOSS, data, split, size=PERSONS, classes=2, unit="patient")
    with pytest.raises(InvalidInput, match="one id for each row"):
        task_of((inputs, labels, ids[1:]), split)
    with pytest.raises(InvalidInput, match="with a module"):
        autopilot(Features.of(inputs, labels, 2), budget=Budget(3.0, 1e-5), units=ids)


def test_features_of_units_are_paid_for_as_units(tmp_path):
    """Of rows that count, a unit has up to the cap: their number tells of one unit, and is not published."""
    inputs, labels, ids = table()
    features = Features.of(inputs, labels, 2).by_unit(ids, PrivacyUnit("patient", CAP))
    budget = Budget(3.0, 1e-3, allow_large_delta=True)
    with pytest.raises(InvalidInput, match="number of units, declared"):
        autopilot(features, budget=budget, ledger=tmp_path / "patients")
    with pytest.raises(InvalidInput, match="with a module"):
        autopilot(features, budget=budget, size=PERSONS, unit="device")
    assert not (tmp_path / "patients").exists()
    fitted = autopilot(features, budget=budget, size=PERSONS, ledger=tmp_path / "patients", epochs=2)
    assert fitted.record.privacy["unit_name"] == "patient"
    assert Ledger.read(tmp_path / "patients").unit == "patient"


def test_what_is_published_of_a_module_is_the_number_of_units():
    assert any("number of units" in each for each in flown(table()).record.unprotected)
