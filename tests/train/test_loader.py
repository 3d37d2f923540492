"""The loader and the step for a loop of one's own: Poisson batches of this plan, once, in order, paid first."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils.data import DataLoader

from dpilot import Budget, Ledger, PrivateStep, poisson_loader
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.records import RunRecord
from tests.train.helpers import LOSS, STEPS, data, fit, model, plan, records, same


def step_of(chosen, net=None, **options):
    net = net or model()
    options = {"test_seed": 7, "chunk_size": 16, **options}
    return PrivateStep(net, LOSS, torch.optim.SGD(net.parameters(), lr=0.5), chosen, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_own_loop_is_the_trainer(workers):
    chosen, net = plan("slack"), model()
    loader = poisson_loader(data(), chosen, num_workers=workers)
    assert isinstance(loader, DataLoader)
    assert len(loader) == STEPS
    step = step_of(chosen, net)
    released = [step(batch) for batch in loader]
    expected = fit("slack")
    assert same(net, expected.model)
    assert tuple(released) == expected.record.steps == step.record.steps
    assert (step.epsilon, step.delta) == (expected.epsilon, expected.delta)
    assert [entry.state for entry in step.ledger.entries()] == ["committed"]
    assert RunRecord.from_json(step.record.to_json()) == step.record
    assert list(loader) == []


def test_nothing_is_read_before_it_is_paid():
    class Untouched(list):
        def __getitem__(self, i):
            raise AssertionError("read")

    loader = poisson_loader(Untouched([1]), plan())
    with pytest.raises(InvalidInput, match="before anything was paid"):
        iter(loader).__next__()


def test_batches_are_taken_once_in_order_and_from_the_own_plan():
    chosen, other = plan(), plan()
    loader, foreign = poisson_loader(data(), chosen), poisson_loader(data(), other)
    step, _ = step_of(chosen), step_of(other, test_seed=8)
    batches = iter(loader)
    first, second = next(batches), next(batches)
    with pytest.raises(InvalidInput, match="used early"):
        step(second)
    step(first)
    with pytest.raises(InvalidInput, match="used again"):
        step(first)
    with pytest.raises(InvalidInput, match="another sampler"):
        step(next(iter(foreign)))
    with pytest.raises(InvalidInput, match="expected one of poisson_loader"):
        step(records())
    assert str(first) == "LoadedBatch(step=0)"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_breaks_off_goes_on_with_the_batches_not_yet_taken(workers):
    chosen, net = plan(), model()
    loader, step = poisson_loader(data(), chosen, num_workers=workers), step_of(chosen, net)
    for batch in loader:
        if step(batch).step == 2:
            break
    for batch in loader:
        step(batch)
    assert same(net, fit().model)


def test_steps_beyond_the_plan_are_refused():
    chosen = plan()
    loader, step = poisson_loader(data(), chosen), step_of(chosen)
    for batch in loader:
        step(batch)
    with pytest.raises(InvalidInput, match="used again"):
        step(batch)


def test_finishing_early_keeps_the_planned_price_and_takes_no_more(tmp_path):
    book = Ledger.open(tmp_path / "l", dataset="toy", budget=Budget(20.0, 1e-4))
    chosen = plan()
    loader, step = poisson_loader(data(), chosen), step_of(chosen, ledger=book)
    batches = iter(loader)
    step(next(batches))
    step.finish()
    assert [entry.state for entry in book.entries()] == ["committed"]
    assert book.entries()[0].event == chosen.event
    with pytest.raises(BudgetExceeded):
        step(next(batches))


def test_empty_batches_are_yielded_and_are_steps():
    chosen = dataclasses.replace(plan(), sample_rate=1e-9)
    net = model()
    loader, step = poisson_loader(data(), chosen), step_of(chosen, net)
    for batch in loader:
        assert len(batch[0]) == 0
        step(batch)
    assert len(step.record.steps) == STEPS
    assert not same(net, model())


def test_a_collate_function_is_used():
    chosen, net = plan(), model()
    collate = lambda rows: tuple(torch.stack([row[k] for row in rows]) for k in (0, 1))  # noqa: E731
    step = step_of(chosen, net)
    for batch in poisson_loader(data(), chosen, collate_fn=collate):
        step(batch)
    assert same(net, fit().model)


def test_a_scalar_loss_is_raised_not_nulled():
    chosen, net = plan(), model()
    loader = poisson_loader(data(), chosen)
    loss = lambda out, y: torch.nn.functional.cross_entropy(out, y)  # noqa: E731
    step = PrivateStep(net, loss, torch.optim.SGD(net.parameters(), lr=0.5), chosen)
    with pytest.raises(InvalidInput, match='Use reduction="none"'):
        next(iter(loader))
    assert step.record.steps == ()
    example = torch.zeros(1, 4), torch.zeros(1).long()
    with pytest.raises(InvalidInput, match='Use reduction="none"'):
        PrivateStep(net, loss, torch.optim.SGD(net.parameters(), lr=0.5), plan(), example=example)


@pytest.mark.parametrize("option", ["batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"])
def test_samplers_of_its_own_are_refused(option):
    with pytest.raises(InvalidInput, match=f"{option} is given"):
        poisson_loader(data(), plan(), **{option: 1})


def test_the_loops_own_schedule_is_respected():
    chosen, net = plan(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    step = PrivateStep(net, LOSS, optimizer, chosen)
    batches = iter(poisson_loader(data(), chosen))
    step(next(batches))
    assert same(net, model())
    optimizer.param_groups[0]["lr"] = 1.0
    step(next(batches))
    assert not same(net, model())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_the_mapping_or_tuple_that_it_is(workers):
    rows = [{"x": torch.full((2,), float(i)), "y": torch.tensor(i)} for i in range(30)]
    chosen = dataclasses.replace(plan(), sample_rate=0.03, size=30)  # of which some batches are empty
    net = torch.nn.Linear(2, 30)
    loss = lambda model, batch: LOSS(model(batch["x"]), batch["y"])  # noqa: E731
    step = PrivateStep(net, loss, torch.optim.SGD(net.parameters(), lr=0.5), chosen, per_batch=True, test_seed=2)
    sizes = set()
    for batch in poisson_loader(rows, chosen, num_workers=workers):
        assert (list(batch), len(batch), list(batch.keys()), "x" in batch) == (["x", "y"], 2, ["x", "y"], True)
        assert torch.equal(batch["x"][:, 0].long(), batch["y"])
        assert net(dict(batch)["x"]).shape == (len(batch["y"]), 30)
        sizes.add(len(batch["y"]))
        step(batch)
    assert 0 in sizes
    assert len(sizes) > 1


def test_a_batch_of_pairs_unpacks_and_one_of_several_lengths_says_why_not():
    chosen = plan()
    step_of(chosen)
    x, y = next(iter(poisson_loader(data(), chosen)))
    assert (len(x), x.shape[1:]) == (len(y), data()[0][0].shape)
    uneven = [torch.zeros(1 + i % 2) for i in range(50)]
    chosen = plan()
    step_of(chosen)
    batch = next(iter(poisson_loader(uneven, chosen)))
    with pytest.raises(InvalidInput, match="several shapes"):
        len(batch)
    with pytest.raises(AttributeError, match="no 'shape'"):
        _ = batch.shape


def test_an_epoch_is_as_many_batches_as_it_is_said_to_be():
    chosen, net = plan("slack"), model()
    step, seen = step_of(chosen, net), []
    loader = poisson_loader(data(), chosen, epoch_steps=STEPS - 1)
    assert len(loader) == STEPS - 1
    for batch in loader:
        step(batch)
        seen.append(1)
        break
    for batch in loader:  # the rest of the epoch that was left
        step(batch)
        seen.append(2)
    for batch in loader:
        step(batch)
        seen.append(3)
    assert seen == [1] + [2] * (STEPS - 2) + [3]
    assert same(net, fit("slack").model)


def test_a_schedule_of_torch_moves_the_optimizer_of_the_step():
    chosen, net = plan(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    step = PrivateStep(net, LOSS, optimizer, chosen)
    seen = []
    for batch in poisson_loader(data(), chosen):
        before = [p.detach().clone() for p in net.parameters()]
        step(batch)
        schedule.step()
        seen.append(all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True)))
    assert seen == [False] + [True] * (STEPS - 1)
