"""Validation on records declared public: exact, kept and stamped, and the run ends bit for bit as without."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from dpilot import Trainer, audit, load
from dpilot.errors import InvalidInput
from dpilot.records import PUBLIC_VALIDATION, RunRecord
from tests.train.helpers import LOSS, STEPS, data, fit, model, plan, same
from tests.train.test_checkpoint import resumed, stopped

PUBLIC = TensorDataset(*(each[:40] for each in data(100).tensors))


class Restless(nn.Module):
    """Draws, drops, and counts its passes in a buffer and an attribute, in either mode."""

    def __init__(self):
        super().__init__()
        self.inside, self.drop, self.passes = model(), nn.Dropout(0.3), []
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.seen += 1
            self.passes.append(len(x))
            random.random()
            np.random.random()
            torch.rand(())
        return self.inside(self.drop(x))


class Drawing:
    """A data set that augments with the generators of the process."""

    def __len__(self):
        return len(PUBLIC)

    def __getitem__(self, place):
        x, y = PUBLIC[place]
        return x + 0.1 * torch.randn(4) + np.random.random() + random.random(), y


def generators():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("public", [PUBLIC, Drawing()], ids=["tensors", "drawing"])
@pytest.mark.parametrize("more", [{}, {"optimizer": "adam", "average": "ema"}], ids=["sgd", "averaged"])
def test_a_run_ends_bit_for_bit_as_without(public, more):
    ends = []
    for validation in (None, public):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        net = Restless()
        net.inside[3].eval()
        run = fit("slack", net=net, public_validation=validation, checkpoint_every=3, **more)
        modes = [each.training for each in net.modules()]
        ends.append((run, generators(), modes, net.passes))
    (without, *others), (found, *again) = ends
    assert same(without.model, found.model)
    assert others == again
    assert found.record.steps == without.record.steps


def test_figures_are_exact_and_stamped(tmp_path):
    models = {}

    def watch(record):
        models[record.step + 1] = {name: each.clone() for name, each in net.state_dict().items()}

    net = model(dropout=0.4)
    models[0] = {name: each.clone() for name, each in net.state_dict().items()}
    run = fit(net=net, public_validation=PUBLIC, checkpoint_every=3, callback=watch)
    assert [each.step for each in run.record.validation] == [0, 3, 6, STEPS]
    inputs, labels = PUBLIC.tensors
    net.eval()
    for each in run.record.validation:
        net.load_state_dict(models[each.step])
        assert each.loss == pytest.approx(LOSS(net(inputs), labels).mean().item())
        assert each.accuracy == pytest.approx(float((net(inputs).argmax(1) == labels).double().mean()))
        assert each.kind == "public, exact"
    assert PUBLIC_VALIDATION in run.record.stamps
    assert PUBLIC_VALIDATION not in fit().record.stamps
    assert load(run.save(tmp_path)).record == run.record == RunRecord.from_json(run.record.to_json())


def test_the_last_figure_is_of_the_model_that_is_handed_out():
    run = fit(average="swa", public_validation=PUBLIC)
    inputs, labels = PUBLIC.tensors
    assert run.record.validation[-1].loss == pytest.approx(LOSS(run.model(inputs), labels).mean().item())
    assert 8 <= len(run.record.validation) <= 22  # about twenty, and no more than steps


def test_targets_that_are_no_classes_have_a_loss_alone():
    inputs = torch.randn(40, 4)
    numbers = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    squares = lambda out, y: (out - y).square().mean(1)  # noqa: E731
    run = Trainer(nn.Linear(4, 1), squares, plan(), chunk_size=16, public_validation=numbers)
    for private in (numbers, Subset(numbers, range(20))):
        with pytest.raises(InvalidInput, match="which is private"):
            run.fit(private)
    run = run.fit(TensorDataset(*numbers.tensors))
    assert all(each.accuracy is None and each.loss is not None for each in run.record.validation)


@pytest.mark.parametrize("at", [1, 4, STEPS - 1])
def test_a_resumed_run_keeps_its_figures(at, tmp_path):
    stopped(tmp_path / "run", at, checkpoint_every=3, public_validation=PUBLIC)
    with pytest.raises(InvalidInput, match="was validated"):
        resumed(tmp_path / "run")
    found = resumed(tmp_path / "run", public_validation=PUBLIC)
    assert found.record == fit(checkpoint_every=3, public_validation=PUBLIC).record
    stopped(tmp_path / "other", at, checkpoint_every=3)
    with pytest.raises(InvalidInput, match="was not validated"):
        resumed(tmp_path / "other", public_validation=PUBLIC)


@pytest.mark.parametrize(
    ("public", "words"),
    [
        (TensorDataset(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)), "holds no record"),
        (TensorDataset(torch.zeros(3, 5), torch.zeros(3, dtype=torch.long)), "expected records as in training"),
        (torch.utils.data.DataLoader(PUBLIC), "DataLoader"),
    ],
    ids=["empty", "shapes", "loader"],
)
def test_what_cannot_be_scored_is_refused_before_anything_is_paid(public, words, tmp_path):
    with pytest.raises(InvalidInput, match=words):
        fit(public_validation=public, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_validated_runs_replay(replay):
    made = np.random.default_rng(0)
    arrays = made.normal(size=(12, 4)).astype(np.float32), made.integers(0, 2, 12)

    def run(arrays):
        dataset = TensorDataset(*(torch.from_numpy(np.array(array)) for array in arrays))
        trainer = Trainer(model(), LOSS, plan("slack", rate=0.5, steps=3), chunk_size=4, public_validation=PUBLIC)
        found = trainer.fit(dataset)
        return found.model, found.record, found.steps().to_json(), torch.rand(1)

    replay(run, pairs=audit.neighbours(arrays)[::4])
