"""Paid figures of a run on private records: one release that one record moves by its bound, and nothing else moves."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from dpilot import Budget, Ledger, Trainer, audit
from dpilot.errors import InvalidInput, PrivacyWarning
from dpilot.tape import tape
from tests.tapes import NoiseFree, Recorder
from tests.train.helpers import LOSS, fit, model, plan

SIZE = 300
INPUTS = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(1))
LABELS = (INPUTS.sum(1) > 0.5).long()
DATA = TensorDataset(INPUTS, LABELS)
GROUPS = ["b" if each > 0 else "a" for each in INPUTS[:, 1].tolist()]
RUN = fit("slack")


def exact(run=RUN, data=DATA, **more):
    """The figures before noise, and what went to the door."""
    recorder = NoiseFree()
    with tape(recorder):
        found = run.evaluate(data, epsilon=1.0, **more)
    return found.metrics, recorder.entries


def right(run=RUN, inputs=INPUTS, labels=LABELS):
    return (run.predict(inputs).argmax(1) == labels).double()


def test_figures_are_those_of_the_records():
    metrics, (entry,) = exact(groups=GROUPS, group_names=["a", "b"])
    assert metrics["accuracy"].value == pytest.approx(float(right().mean()))
    of = {each.of: each.value for each in metrics if each.name == "group accuracy"}
    for name in "ab":
        mine = [each == name for each in GROUPS]
        assert of[f"group = {name}"] == pytest.approx(float(right()[mine].mean()))
    assert {"AUC", "demographic parity", "worst-group accuracy", "confusion"} <= {each.name for each in metrics}
    assert entry.bound == pytest.approx(1.0)


def test_figures_cost_what_was_asked_and_carry_noise():
    recorder = Recorder()
    with tape(recorder):
        found = RUN.evaluate(DATA, epsilon=0.5)
    assert found.cost.epsilon <= 0.5
    assert found.cost.delta == RUN.delta
    assert len(recorder.entries) == 1
    assert not any(each.exact for each in found.metrics)


class Broken:
    """Some records cannot be read, one has no class, and one is of another shape."""

    def __len__(self):
        return SIZE

    def __getitem__(self, place):
        if place % 7 == 3:
            raise OSError("no such file")
        if place == 1:
            return INPUTS[place, :2], LABELS[place]
        return INPUTS[place], torch.tensor(99) if place == 2 else LABELS[place]


def test_a_record_that_cannot_be_read_is_null():
    places = [place for place in range(SIZE) if place % 7 != 3 and place not in (1, 2)]
    metrics, _ = exact(data=Broken())
    assert metrics["accuracy"].value == pytest.approx(float(right()[places].mean()))
    subset, _ = exact(data=Subset(DATA, places))
    assert [each.value for each in subset] == pytest.approx([each.value for each in metrics])


@pytest.mark.parametrize("odd", [None, "c", 3, [1]])
def test_a_group_that_is_not_named_makes_its_record_null(odd):
    metrics, _ = exact(groups=[odd, *GROUPS[1:]], group_names=("a", "b"))
    assert metrics["accuracy"].value == pytest.approx(float(right()[1:].mean()))


def test_groups_are_declared():
    with pytest.raises(InvalidInput, match="group_names"):
        RUN.evaluate(DATA, epsilon=1.0, groups=GROUPS)
    with pytest.raises(InvalidInput, match="one group a record"):
        RUN.evaluate(DATA, epsilon=1.0, groups=GROUPS[1:], group_names=["a", "b"])
    with pytest.raises(InvalidInput, match="told apart"):
        RUN.evaluate(DATA, epsilon=1.0, groups=GROUPS, group_names=[1, "1"])
    named = [each.value for each in exact(groups=GROUPS, group_names=["a", "b"])[0]]
    for groups in (pd.Categorical(GROUPS), pd.Series(GROUPS, dtype="category"), pd.Series(GROUPS)):
        assert [each.value for each in exact(groups=groups, group_names=["a", "b"])[0]] == named
    second = np.array(GROUPS) == "b"
    for groups in (second, torch.from_numpy(second), pd.Series(second)):
        metrics = exact(groups=groups)[0]
        assert [each.value for each in metrics] == named
        assert "group = True" in {each.of for each in metrics}


def test_groups_and_classes_are_called_as_their_owner_calls_them():
    found, _ = exact(groups=pd.Series(GROUPS, name="ward"), group_names=["a", "b"], class_names=["well", "ill"])
    assert {"ward = a", "ward = b"} == {each.of for each in found if each.name == "group accuracy"}
    assert {"well", "ill"} == {each.of for each in found if each.name == "recall"}
    with pytest.raises(InvalidInput, match="expected 2 that differ"):
        RUN.evaluate(DATA, epsilon=1.0, class_names=["well"])


def test_other_forms_of_records_and_outputs():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, values):
            return self.layer(values)

    net = Words()
    loss = lambda out, y: nn.functional.binary_cross_entropy_with_logits(out[:, 0], y.float(), reduction="none")  # noqa: E731
    run = Trainer(net, loss, plan(), chunk_size=16).fit(TensorDataset(INPUTS[:60], LABELS[:60]))
    rows = [{"values": each, "labels": int(label)} for each, label in zip(INPUTS, LABELS, strict=True)]
    metrics, _ = exact(run, rows)
    found = (net(INPUTS)[:, 0] > 0).long() == LABELS
    assert metrics["accuracy"].value == pytest.approx(float(found.double().mean()))
    collate = lambda records: {"values": records[0][0][None], "labels": torch.tensor([records[0][1]])}  # noqa: E731
    pairs = list(zip(INPUTS, LABELS.tolist(), strict=True))
    assert [each.value for each in exact(run, pairs, collate_fn=collate)[0]] == [each.value for each in metrics]


def test_what_is_no_classifier_is_refused_before_anything_is_paid(tmp_path):
    run = fit(net=nn.Sequential(nn.Linear(4, 2)))
    book = Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(2.0, 1e-4))
    with pytest.raises(InvalidInput, match="one output a class"):
        run.evaluate(TensorDataset(torch.zeros(5, 3), torch.zeros(5)), epsilon=1.0, ledger=book)
    assert not book.entries()


def test_figures_are_charged(tmp_path):
    book = Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(20.0, 1e-4))
    run = fit(ledger=book)
    for options in ({}, {"ledger": book}, {"ledger": tmp_path / "ledger"}):
        run.evaluate(DATA, epsilon=1.0, **options)
    assert [entry.purpose for entry in book.entries()] == ["training", *["evaluation"] * 3]
    assert all(entry.state == "committed" for entry in book.entries())
    with pytest.warns(PrivacyWarning):
        RUN.evaluate(DATA, epsilon=1.0)


def test_a_page_and_a_folder_show_the_last_figures_that_were_released(tmp_path):
    run = fit()
    assert run.fit_record().privacy["epsilon"] == run.epsilon
    with pytest.warns(PrivacyWarning):
        first = run.evaluate(DATA, epsilon=0.25)
    with pytest.warns(PrivacyWarning):
        run.evaluate(DATA, epsilon=0.5)
    with pytest.warns(PrivacyWarning, match="2 evaluations"):
        folder = run.save(tmp_path / "run")
    stated = json.loads((folder / "statement.json").read_text())["statement"]
    assert stated["epsilon"] == pytest.approx(run.epsilon + 0.5)
    assert run.fit_record(first).privacy["epsilon"] == pytest.approx(run.epsilon + 0.25)


def test_figures_of_a_held_out_part_are_charged_to_it(tmp_path):
    book = Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(7.0, 1e-4))
    run = fit(ledger=book, part="train", split="main")
    run.evaluate(DATA, epsilon=5.0, part="test", split="main")
    assert [entry.part for entry in book.entries()] == ["train", "test"]
    page = run.report(tmp_path / "report.html").read_text()
    assert "measured on another part of the records than training used" in page
    assert "What follows holds if" not in page
    assert book.spent().epsilon < 7.0


def test_figures_of_units_are_charged_to_their_ledger(tmp_path):
    book = Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(20.0, 1e-4), unit="unit")
    ids = np.arange(SIZE) // 5
    fit(dataset=DATA, units=ids, rows_per_unit=5, ledger=book).evaluate(DATA, epsilon=1.0, units=ids)
    assert [entry.purpose for entry in book.entries()] == ["training", "evaluation"]


def test_one_row_of_each_unit_counts():
    with pytest.raises(InvalidInput, match="one id for each row"):
        fit(dataset=DATA, units=np.arange(SIZE) // 5, rows_per_unit=5).evaluate(DATA, epsilon=1.0)
    run = fit(dataset=DATA, units=np.arange(SIZE) // 5, rows_per_unit=5)
    _, (entry,) = exact(run, units=np.zeros(SIZE))
    assert np.abs(np.concatenate([part.ravel() for part in entry.inputs])).sum() == pytest.approx(2**0.5)


def test_nothing_of_the_model_or_the_generators_moves():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            if not self.training:
                self.seen += 1
            return self.layer(x) + 0 * torch.rand(())

    run = fit(net=Counting())
    before, coins = run.model.seen.clone(), torch.get_rng_state()
    run.evaluate(DATA, epsilon=1.0)
    assert torch.equal(run.model.seen, before)
    assert torch.equal(torch.get_rng_state(), coins)
    assert run.model.training


def test_evaluations_replay(replay):
    made = np.random.default_rng(0)
    arrays = made.normal(size=(12, 4)).astype(np.float32), made.integers(0, 2, 12)

    def run(arrays):
        trained = Trainer(model(), LOSS, plan(steps=1), chunk_size=16).fit(TensorDataset(INPUTS[:60], LABELS[:60]))
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]
        groups = np.where(tensors[1] == 1, "a", "b")
        return str(trained.evaluate(TensorDataset(*tensors), epsilon=1.0, groups=groups, group_names="ab").metrics)

    replay(run, pairs=audit.neighbours(arrays)[::3])
