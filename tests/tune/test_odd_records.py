"""Records of a module: one that is odd, or does not compute, is null, alone, in training, scores and figures."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, tune
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.privacy.receipt import Receipt
from dpilot.train.batches import held_out
from dpilot.train.run import predict
from dpilot.tune import ModuleTask
from dpilot.tune.task import Outlay, fixed_noise
from tests.tune.helpers import LOSS, arrays, dataset, module_task

FORM = torch.zeros(1, 3), torch.zeros(1, dtype=torch.long)


@pytest.fixture(autouse=True)
def _scored_in_order(monkeypatch):
    """Held-out records in the order of the data, so that those of two data sets can be compared one by one."""
    monkeypatch.setattr(held_out, "draw_order", np.arange)


class Listed(torch.utils.data.Dataset):
    """Records one by one, whatever they are; the last or the first may be odd."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, place):
        return self.records[place]


def plain(count=30):
    return [(torch.tensor([1.0, place / count, 0.5]), torch.tensor(place % 2)) for place in range(count)]


ODD_RECORDS = [
    (torch.ones(3), torch.tensor([1, 0])),
    (torch.ones(3), torch.tensor(0.5)),
    (torch.ones(1, 3), torch.tensor(0)),
    (torch.full((3,), 1j), torch.tensor(0)),
    (torch.ones(3),),
    "no record",
]


@pytest.mark.parametrize("objective", ["accuracy", "macro"])
@pytest.mark.parametrize("odd", ODD_RECORDS, ids=range(len(ODD_RECORDS)))
def test_an_odd_held_out_record_is_null_and_changes_no_other(odd, objective):
    model, found = nn.Linear(3, 2), []
    for records in (plain(), [*plain(), odd], [odd, *plain()]):
        task = module_task(lambda: nn.Linear(3, 2), Listed(plain()), Listed(records), example=FORM)
        found.append(task.exact_table(model, objective))
        assert task.predictions(model).target.tolist() == [place % 2 for place in range(30)]
    assert found[0].sum() == 30
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


class Parity(nn.Module):
    """Right for whole numbers as they are; a chunk that became float32 would lose them."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 2)

    def forward(self, x):
        return (x.double() % 2 - 0.5).float() @ torch.tensor([[-1.0, 1.0]]) + 0 * self.last.weight.sum()


def test_one_float_among_whole_numbers_rounds_no_other():
    whole = [(torch.tensor([(1 << 24) + 2 * place + 1]), torch.tensor(1)) for place in range(40)]
    form = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    odd = (torch.tensor([0.5]), torch.tensor(0))
    task = module_task(Parity, Listed(whole), Listed([*whole, odd]), example=form)
    assert task.exact_table(Parity(), "accuracy").tolist() == [[0.0, 40.0]]


def test_an_odd_record_in_front_does_not_decide_what_the_others_are():
    trained = []
    for records in (plain(), [(torch.ones(1, 3), torch.tensor(0)), *plain()]):
        torch.manual_seed(0)
        task = module_task(lambda: nn.Linear(3, 2), Listed(records), example=FORM, noise=fixed_noise(1))
        outlay = Outlay(1e-3)
        trained.append(task.train([outlay.trial(tune.Candidate(0.5, 2), Receipt(outlay.event))])[0].weight)
    assert torch.allclose(*trained, rtol=0, atol=1e-6)  # the others stand in other places


def test_a_form_that_only_a_record_shows_is_refused_before_anything_is_paid(tmp_path):
    for data in (Listed(plain()), torch.utils.data.Subset(Listed(plain()), range(5))):
        with pytest.raises(InvalidInput, match="expected example="):
            module_task(lambda: nn.Linear(3, 2), data)
    with pytest.raises(InvalidInput, match="y one class"):
        module_task(lambda: nn.Linear(3, 2), Listed(plain()), example=torch.zeros(1, 3))
    fly = partial(tune.autopilot, lambda: nn.Linear(3, 2), Listed(plain()), Budget(1.0, 1e-5), classes=2, epochs=1)
    with pytest.raises(InvalidInput, match="expected example="):
        fly(size=100, ledger=tmp_path / "ledger")
    assert fly(size=100, example=FORM).spent.epsilon <= 1.0


class Picky(nn.Module):
    """Refuses a chunk that holds a negative record."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 2)

    def forward(self, x):
        if bool((x < 0).any()):
            raise ValueError("negative")
        return self.last(x)


def test_a_record_that_does_not_compute_is_left_out_alone():
    values = torch.tensor([[1.0], [-1.0], [2.0], [3.0]])
    held_out = TensorDataset(values, torch.tensor([0, 1, 1, 0]))
    task = ModuleTask(Picky, LOSS, held_out, held_out, 4, 4, 2, example=held_out[:1])
    found = task.predictions(Picky())
    assert found.target.tolist() == [0.0, 1.0, 0.0]
    assert found.probabilities.shape == (3, 2)
    assert np.allclose(found.probabilities.sum(axis=1), 1)


@pytest.mark.parametrize("together", [True, False])
def test_an_empty_part_is_noise_alone_and_raises_nothing(together):
    nobody = dataset((np.zeros((0, 3), np.float32), np.zeros(0, np.int64)))
    task = module_task(lambda: nn.Linear(3, 2), nobody, nobody, together=together)
    one, other = (Outlay(1.0) for _ in range(2))
    models = task.train([each.trial(tune.Candidate(0.5, 2), Receipt(each.event)) for each in (one, other)])
    assert not torch.equal(models[0].weight, models[1].weight)
    assert task.exact_table(models[0], "accuracy").sum() == 0
    assert task.predictions(models[0]).target.tolist() == []


def test_coins_that_leave_a_part_empty_raise_nothing():
    for key in range(8):
        split = Split({"train": 0.5, "held-out": 0.5}, bytes([key] * 32))
        task = ModuleTask.of(lambda: nn.Linear(3, 2), LOSS, dataset(arrays(1)), split, size=40, classes=2)
        assert len(task.train_data) + len(task.held_out) == 1
    nobody = dataset((np.zeros((0, 3), np.float32), np.zeros(0, np.int64)))
    task = ModuleTask.of(lambda: nn.Linear(3, 2), LOSS, nobody, split, size=40, classes=2)
    assert len(task.train_data) + len(task.held_out) == 0


@pytest.mark.parametrize("count", [1, 511, 513, 1023, 1024])
def test_which_records_are_scored_together_follows_from_their_places(count, monkeypatch):
    """Sums are rounded by the shape of a chunk: how many records there are in all must not decide it."""
    data = torch.utils.data.TensorDataset(torch.randn(count, 3), torch.zeros(count, dtype=torch.long))
    task, model, sizes = module_task(lambda: nn.Linear(3, 2), data, data), nn.Linear(3, 2), []

    def noted(model, inputs, **options):
        sizes.append(len(inputs))
        return predict(model, inputs, **options)

    monkeypatch.setattr("dpilot.tune.module_task.predict", noted)
    seen = lambda: len(task.predictions(model).target)  # noqa: E731
    for score in (lambda: task.exact_table(model, "accuracy").sum(), seen):
        sizes.clear()
        assert score() == count
        assert set(sizes[:-1]) <= {512}
        assert sizes[-1] == (count - 1) % 512 + 1


@pytest.mark.parametrize("count", [1, 3, 513, 515])
def test_one_more_held_out_record_changes_no_bit_of_what_others_are_scored_by(count, monkeypatch):
    torch.manual_seed(0)
    inputs, model = torch.randn(count + 1, 240), nn.Sequential(nn.Linear(240, 100), nn.Linear(100, 2))
    labels, outputs = torch.zeros(count + 1, dtype=torch.long), []

    def noted(model, inputs, **options):
        outputs.append(predict(model, inputs, **options))
        return outputs[-1]

    monkeypatch.setattr("dpilot.tune.module_task.predict", noted)
    scores = (lambda task: task.exact_table(model, "accuracy"), lambda task: task.predictions(model))
    for score in scores:
        seen = []
        for size in (count, count + 1):
            outputs.clear()
            data = torch.utils.data.TensorDataset(inputs[:size], labels[:size])
            score(module_task(lambda: nn.Linear(240, 2), data, data))
            seen.append(torch.cat(outputs))
        assert torch.equal(seen[0], seen[1][:count])
