"""One private run from the first check to the record."""

from __future__ import annotations

import dataclasses
import math
from queue import SimpleQueue

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from dpilot import Budget, Ledger, Plan, PrivateStep, Trainer, clipping, poisson_loader
from dpilot.errors import BudgetExceeded
from dpilot.privacy.events import Repeated
from dpilot.records import RunRecord, StepRecord
from dpilot.train import optimizers, options
from dpilot.train.options import Schedule
from tests.train.helpers import LOSS, SIZE, STEPS, data, fit, model, plan, records, same


class Listed(Dataset):
    """A data set that notes which records were read, and what was on disk when the first one was."""

    def __init__(self, ledger=None):
        self.inputs, self.targets = records()
        self.read, self.ledger, self.state = [], ledger, None

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        if not self.read and self.ledger is not None:
            self.state = [entry.state for entry in self.ledger.entries()]
        self.read.append(i)
        return self.inputs[i], self.targets[i]


def ledger(path, epsilon=20.0):
    return Ledger.open(path, dataset="toy", budget=Budget(epsilon, 1e-4))


FORMS = [clipping.get("slack", groups=2), clipping.get("quantile", normalized=True)]


@pytest.mark.parametrize("rule", [*clipping.names(), *FORMS], ids=str)
def test_every_rule_trains_and_leaves_a_record_of_public_numbers(rule):
    run = fit(rule)
    assert len(run.record.steps) == len(run.thresholds) == STEPS
    assert all(math.isfinite(step.bound) and step.bound > 0 for step in run.record.steps)
    assert run.record.plan["steps"] == STEPS
    assert 0 < run.epsilon <= 5.0
    assert run.delta == 1e-5
    assert RunRecord.from_json(run.record.to_json()) == run.record


@pytest.mark.parametrize("engine", ["single-backward", "vmap", "loop"])
def test_engines_agree(engine):
    expected, found = fit("slack"), fit("slack", engine=engine)
    for name, value in expected.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_chunks_change_nothing_but_rounding(size):
    expected, found = fit("slack"), fit("slack", chunk_size=size)
    for name, value in expected.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_a_run_learns():
    inputs, targets = records(2000)
    chosen = plan(rate=0.3, steps=40, epsilon=50.0)
    chosen = dataclasses.replace(chosen, size=2000)
    run = Trainer(model(), LOSS, chosen, optimizer="momentum", lr=1.0).fit(TensorDataset(inputs, targets))
    assert (run.predict(inputs).argmax(1) == targets).float().mean() > 0.9
    assert run.record.stamps == ("float noise, not hardened",)


def test_two_runs_share_no_noise():
    assert not same(fit(test_seed=None).model, fit(test_seed=None).model)
    assert same(fit().model, fit().model)
    assert fit().record.stamps == ("test noise (seed 7): not private",)


def test_the_price_is_on_disk_before_the_first_record_is_read(tmp_path):
    book = ledger(tmp_path / "ledger")
    dataset = Listed(book)
    fit(dataset=dataset, ledger=book)
    assert dataset.state == ["reserved"]
    assert [entry.state for entry in book.entries()] == ["committed"]
    assert book.entries()[0].event == plan().event


def test_only_the_batch_and_one_record_for_its_form_are_read():
    dataset = Listed()
    run = fit(dataset=dataset, plan=plan(rate=0.05, steps=1))
    assert dataset.read[0] == 0
    assert len(dataset.read) < SIZE / 2
    assert len(run.record.steps) == 1


def test_a_run_without_a_ledger_brings_its_own():
    run = fit()
    (entry,) = run.ledger.entries()
    assert (entry.event, entry.state, entry.cost.epsilon) == (plan().event, "committed", run.epsilon)
    assert run.ledger.mode == "precommitted"
    assert run.ledger.budget == plan().budget


def test_where_deltas_are_added_up_a_run_is_charged_the_delta_of_its_plan(tmp_path):
    """Not a share of what is left, which would be five times as much here, and another for each run."""
    book, chosen = ledger(tmp_path / "ledger"), plan().budget
    assert book.bound == "basic"
    for k in (1, 2):
        run = fit(ledger=book)
        assert (run.delta, book.spent().delta) == (chosen.delta, pytest.approx(k * chosen.delta))
        assert run.epsilon <= chosen.epsilon
    size = 30_000
    default = Budget.of_size(5.0, None, size)
    made = Plan.calibrate(default, size=size, sample_rate=0.3, steps=STEPS, clipping="constant")
    run = fit(plan=made, ledger=book)
    assert run.delta == default.delta == min(1e-5, 1 / (10 * size))


def test_a_plan_whose_delta_the_ledger_has_not_left_is_refused_with_a_remedy(tmp_path):
    book = Ledger.open(tmp_path / "l", dataset="toy", budget=Budget(20.0, 1.5e-5))
    fit(ledger=book)
    with pytest.raises(BudgetExceeded, match=r"at delta 2e-05.*ledger.extend") as caught:
        fit(ledger=book)
    assert len(book.entries()) == 1
    assert "smaller delta" in str(caught.value)


def test_a_commitment_may_stand_in_for_the_ledger(tmp_path):
    book = Ledger.open(tmp_path / "l", dataset="toy", budget=Budget(20.0, 1e-4), mode="precommitted")
    committed = book.commit([("first", plan().event), ("second", plan().event)])
    fit(ledger=committed, purpose="second")
    assert [entry.state for entry in book.entries()] == ["planned", "committed"]
    fit(ledger=book, purpose="first")
    assert [entry.state for entry in book.entries()] == ["committed", "committed"]


def _without_lengths(steps):
    """What a constant threshold leaves of a record: lengths are those of the released gradients."""
    return tuple(dataclasses.replace(step, length=None) for step in steps)


@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_data_set_of_another_length_is_accepted_in_silence(size, capfd):
    run = fit(dataset=data(size))
    assert run.record.plan["size"] == SIZE
    records = [dataclasses.replace(each.record, steps=_without_lengths(each.record.steps)) for each in (fit(), run)]
    assert records[0].to_json() == records[1].to_json()
    assert capfd.readouterr() == ("", "")


class Unreadable:
    def __len__(self):
        return 5

    def __getitem__(self, index):
        raise OSError("a broken file")


@pytest.mark.parametrize("records", [[], Unreadable()], ids=["none", "none that can be read"])
def test_records_of_which_none_shows_a_form_are_steps_of_noise_that_count(records):
    run = fit(dataset=records, chunk_size=None)
    assert len(run.record.steps) == STEPS
    assert not same(run.model, model())
    assert {entry.state for entry in run.ledger.entries()} == {"committed"}
    chosen, net = plan(), model()
    loader = poisson_loader(records, chosen)
    step = PrivateStep(net, LOSS, torch.optim.SGD(net.parameters(), lr=0.5), chosen, test_seed=7)
    for batch in loader:
        step(batch)
    assert same(run.model, net)


def test_empty_batches_are_steps_of_noise_that_count():
    rare = dataclasses.replace(plan(), sample_rate=1e-9)
    run = fit(plan=rare)
    assert len(run.record.steps) == STEPS
    assert not any(torch.equal(a, b) for a, b in zip(run.model.parameters(), model().parameters(), strict=True))
    assert run.ledger.entries()[0].event == Repeated(rare.step_event, STEPS)


def test_callback_and_progress_receive_released_values_only():
    heard, shown = [], []
    run = fit("slack", callback=heard.append, progress=shown.append)
    assert tuple(heard) == run.record.steps
    assert all(type(each) is StepRecord for each in heard)
    assert [update.record for update in shown] == heard
    assert {(update.epsilon, update.delta, update.epsilon_left) for update in shown} == {(run.epsilon, run.delta, 0.0)}
    assert [update.done for update in shown] == [False] * (STEPS - 1) + [True]
    assert shown[-1].seconds_left == 0.0


def test_nothing_is_left_on_the_model():
    net = model()
    hooks = sum(len(m._forward_hooks) + len(m._backward_hooks) for m in net.modules())
    run = fit(net=net)
    assert run.model is net
    assert all(p.grad is None for p in net.parameters())
    assert sum(len(m._forward_hooks) + len(m._backward_hooks) for m in net.modules()) == hooks
    assert set(net.state_dict()) == set(model().state_dict())


def test_global_generators_are_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    state = np.random.get_state()[1].copy()
    fit(net=model(dropout=0.5), chunk_size=None)
    assert torch.equal(torch.rand(3), expected)
    assert (np.random.get_state()[1] == state).all()


@pytest.mark.parametrize("name", [*optimizers.names(), lambda p: torch.optim.RMSprop(p, lr=0.01)])
def test_optimizers_move_the_model(name):
    run = fit(optimizer=name, lr=0.01)
    assert not same(run.model, model())
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_adam_is_torch_adam_on_the_noisy_mean():
    """The first step of Adam moves every coordinate by lr, up to eps."""
    run = fit(optimizer="adam", lr=0.01, plan=plan(steps=1))
    for moved, start in zip(run.model.parameters(), model().parameters(), strict=True):
        torch.testing.assert_close((moved - start).abs(), torch.full_like(start, 0.01), rtol=1e-3, atol=1e-6)


def test_the_schedule_sets_the_step_size():
    class Noting(torch.optim.SGD):
        seen = []  # noqa: RUF012

        def step(self, closure=None):
            self.seen.append(self.param_groups[0]["lr"])
            return super().step(closure)

    fit(optimizer=lambda p: Noting(p, lr=2.0), schedule=Schedule("cosine", warmup=0.25))
    factors = [Schedule("cosine", warmup=0.25).factor(step, STEPS) for step in range(STEPS)]
    assert Noting.seen == [2.0 * factor for factor in factors]
    assert factors[:3] == [0.5, 1.0, 1.0]
    assert factors[-1] < 0.1


def test_the_free_step_goes_along_the_momentum():
    plain, free = fit(optimizer="momentum"), fit(optimizer="momentum", free_step=True)
    assert plain.epsilon == free.epsilon
    assert not same(plain.model, free.model)
    net = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    net.weight.grad = torch.tensor([[2.0]])
    optimizer.step()
    before = net.weight.item()
    optimizers.free_step(optimizer)
    assert net.weight.item() == pytest.approx(before - 0.5 * 2.0)


def test_averages_are_what_they_say():
    iterates = []
    net = model()
    fit(net=net, callback=lambda record: iterates.append(net[0].weight.detach().clone()))
    swa = fit(average=options.Average("swa", start=0.5)).model[0].weight
    torch.testing.assert_close(swa, torch.stack(iterates[4:]).mean(0))
    mean = iterates[0]
    for taken, iterate in enumerate(iterates[1:], 1):
        keep = min(0.9, (1 + taken) / (10 + taken))
        mean = keep * mean + (1 - keep) * iterate
    torch.testing.assert_close(fit(average=options.Average("ema", decay=0.9)).model[0].weight, mean)


def test_automatic_chunks_are_found_without_reading_a_record():
    dataset, example = Listed(), (torch.zeros(1, 4), torch.zeros(1).long())
    run = Trainer(model(), LOSS, dataclasses.replace(plan(), sample_rate=1e-9), example=example).fit(dataset)
    assert dataset.read == []
    assert run.record.options["chunk_size"] >= 1


def test_amp_trains_in_bfloat16_and_sums_in_float32():
    seen = SimpleQueue()  # a list would be restored

    class Noting(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            seen.put(out.dtype)
            return out

    net = nn.Sequential(Noting(4, 5), nn.Tanh(), nn.Linear(5, 2))
    run = fit(net=net, amp=True)
    found = [seen.get() for _ in range(seen.qsize())]
    assert set(found[-STEPS:]) == {torch.bfloat16}  # the check on made-up samples may compute more precisely
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}


def test_frozen_parameters_stay():
    net = model()
    net[0].weight.requires_grad_(False)
    run = fit(net=net)
    assert torch.equal(run.model[0].weight, model()[0].weight)
    assert not torch.equal(run.model[3].weight, model()[3].weight)


def test_dict_batches_and_tuples_of_arguments_train():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, a, b):
            return self.layer(a + b)

    inputs, targets = records()
    listed = [({"a": x, "b": x}, y) for x, y in zip(inputs, targets, strict=True)]
    assert len(fit(net=Two(), dataset=listed).record.steps) == STEPS
    whole = [{"a": x, "b": x, "y": y} for x, y in zip(inputs, targets, strict=True)]
    run = Trainer(
        Two(), lambda net, batch: LOSS(net(batch["a"], batch["b"]), batch["y"]), plan(), per_batch=True, chunk_size=8
    ).fit(whole)
    assert len(run.record.steps) == STEPS
