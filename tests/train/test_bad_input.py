"""What is wrong is said clearly, before a spend where it can be known; the ledger is true in every case."""

from __future__ import annotations

import errno
import os
from itertools import count

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from dpilot import Budget, Ledger, PrivateStep, Trainer, clipping, poisson_loader
from dpilot.errors import BudgetExceeded, DpilotError, InvalidInput, LedgerError, UnsupportedModel
from dpilot.train.checkpoint import files
from tests.train.helpers import LOSS, SIZE, data, fit, model, plan, records


@pytest.fixture
def book(tmp_path):
    return Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(20.0, 1e-4))


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), "iterable data set"),
        (iter([1]), "a stream can be read once"),
        ({"a": 1}, "those of its names"),
        (DataLoader(data(), batch_size=4, shuffle=True), "shuffled batches"),
        (DataLoader(data(), sampler=torch.utils.data.WeightedRandomSampler([1.0] * SIZE, 5)), "weighted sampling"),
        (object(), "no length"),
    ],
)
def test_data_that_cannot_be_sampled_is_refused(dataset, message, book):
    with pytest.raises(InvalidInput, match=message):
        fit(dataset=dataset, ledger=book)
    with pytest.raises(InvalidInput, match=message):
        poisson_loader(dataset, plan())
    assert book.entries() == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "nonsense"}, "optimizer is 'nonsense'"),
        ({"optimizer": 3}, "optimizer is 3"),
        ({"optimizer": lambda p: 5}, "the optimizer is a int"),
        ({"optimizer": lambda p: torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)}, "are not the model's"),
        ({"optimizer_options": {"nonsense": 1}}, "optimizer_options"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"schedule": "nonsense"}, "schedule is 'nonsense'"),
        ({"average": "nonsense"}, "name is 'nonsense'"),
        ({"average": 3}, "average is 3"),
        ({"engine": "nonsense"}, "engine is 'nonsense'"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"free_step": True}, "without a momentum"),
        ({"amp": True, "low_memory": True}, "expected one"),
        ({"device": "cuda:99"}, "no such CUDA device is there"),
        ({"device": "nonsense"}, "device is 'nonsense'"),
        ({"groups": [["0.weight"]]}, "the rule is not layer-wise"),
        ({"checkpoint_every": 0, "checkpoint": "x"}, "checkpoint_every is 0"),
        ({"secret": "x"}, "secret is given without checkpoint"),
        ({"checkpoint": "x", "secret": "x/inside"}, "inside the run folder"),
    ],
)
def test_options_are_checked_before_anything_is_spent(options, message, book, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=message):
        fit(ledger=book, **options)
    assert book.entries() == ()


@pytest.mark.parametrize("groups", [[["0.weight"], ["0.bias"]], [["0.weight", "0.bias", "3.weight", "3.bias"], []]])
def test_groups_must_cover_the_parameters(groups):
    with pytest.raises(InvalidInput, match="every trained parameter in exactly one"):
        fit(plan=plan(clipping.get("constant", groups=2)), groups=groups)


def test_models_and_losses_are_checked_before_anything_is_spent(book):
    wrong = [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), LOSS, UnsupportedModel, "BatchNorm1d.*replace_batch_norm"),
        (model().requires_grad_(False), LOSS, UnsupportedModel, "no trainable parameter"),
        ("model", LOSS, InvalidInput, "model is a str"),
        (model(), nn.CrossEntropyLoss(), InvalidInput, 'Use reduction="none"'),
        (model(), "loss", InvalidInput, "loss_fn is a str"),
        (model(), lambda out, y: nn.functional.cross_entropy(out, y), InvalidInput, 'Use reduction="none"'),
        (nn.Linear(99, 2), LOSS, InvalidInput, "do not run on made-up records"),
        (model(), lambda out, y: out, InvalidInput, "one loss a sample"),
    ]
    for net, loss, kind, message in wrong:
        with pytest.raises(kind, match=message):
            Trainer(net, loss, plan(), ledger=book).fit(data())
    with pytest.raises(InvalidInput, match="plan is a str"):
        Trainer(model(), LOSS, "plan", ledger=book)
    assert book.entries() == ()


def test_a_scalar_loss_is_raised_not_nulled_where_only_a_record_shows_the_form(book):
    listed = list(zip(*records(), strict=True))
    with pytest.raises(InvalidInput, match='Use reduction="none"') as caught:
        Trainer(model(), lambda out, y: nn.functional.cross_entropy(out, y), plan(), ledger=book).fit(listed)
    assert [entry.state for entry in book.entries()] == ["reserved"]  # a record was read, so it stays spent
    assert "stays spent" in caught.value.__notes__[0]


def test_a_run_that_does_not_fit_the_ledger_is_refused_and_nothing_is_written(tmp_path):
    small = Ledger.open(tmp_path / "small", dataset="toy", budget=Budget(0.1, 1e-5))
    with pytest.raises(BudgetExceeded) as caught:
        fit(ledger=small)
    assert small.entries() == ()
    assert not getattr(caught.value, "__notes__", None)


def test_a_ledger_of_another_data_set_is_refused(book):
    with pytest.raises(LedgerError, match=r"'toy'.*'other'"):
        fit(ledger=book, data_id="other")
    assert len(fit(ledger=book, data_id="toy").record.steps) == 8


def test_a_plan_is_used_once_or_paid_twice(book):
    chosen = plan()
    fit(plan=chosen)
    with pytest.raises(InvalidInput, match="the plan was used already"):
        fit(plan=chosen)
    net = model()
    with pytest.raises(InvalidInput, match="the plan was used already"):
        PrivateStep(net, LOSS, torch.optim.SGD(net.parameters(), lr=1.0), chosen)
    before = book.spent().epsilon
    fit(plan=chosen, ledger=book)
    fit(plan=chosen, ledger=book)
    assert len(book.entries()) == 2
    assert book.spent().epsilon > before


def test_a_trainer_fits_once():
    trainer = Trainer(model(), LOSS, plan(), chunk_size=8)
    trainer.fit(data())
    with pytest.raises(InvalidInput, match="fit was called already"):
        trainer.fit(data())


def test_ctrl_c_leaves_the_price_spent_and_says_so(book):
    def stop(record):
        if record.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        fit(ledger=book, callback=stop)
    assert [entry.state for entry in book.entries()] == ["reserved"]
    assert "stays spent" in caught.value.__notes__[0]


def test_a_full_disk_is_clear_and_leaves_the_last_checkpoint(book, tmp_path, monkeypatch):
    written, real = [], os.replace

    def full(source, target):
        written.append(target)
        if len(written) > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(DpilotError, match=r"No space left on device.*stays spent"):
        fit(ledger=book, checkpoint=tmp_path / "run", checkpoint_every=1)
    monkeypatch.undo()
    assert [entry.state for entry in book.entries()] == ["reserved"]
    assert not list(tmp_path.rglob("*.new"))
    run = Trainer.resume(tmp_path / "run", model(), LOSS, data())
    assert [entry.state for entry in book.entries()] == ["committed"]
    assert len(run.record.steps) == 8


def test_memory_is_the_machines_trouble_and_stops_the_run(book):
    class Hungry(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 2), count()  # a number would be restored

        def forward(self, x):
            if next(self.calls) >= 20:
                raise MemoryError
            return self.layer(x)

    with pytest.raises(MemoryError):
        fit(net=Hungry(), ledger=book, engine="loop")
    assert [entry.state for entry in book.entries()] == ["reserved"]


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path):
    fit(checkpoint=tmp_path / "run")
    with pytest.raises(InvalidInput, match="holds a run"):
        fit(checkpoint=tmp_path / "run")
    (tmp_path / ".other.secret").write_text("")
    with pytest.raises(InvalidInput, match="the secret of another run"):
        fit(checkpoint=tmp_path / "other")
    with pytest.raises(InvalidInput, match="is not a folder"):
        fit(checkpoint=tmp_path / "third", secret=tmp_path / "nowhere" / "secret")


def test_labels_of_the_wrong_type_are_configuration():
    inputs, targets = records()
    with pytest.raises(InvalidInput, match="made-up records"):
        fit(dataset=TensorDataset(inputs, targets.float()))
