"""The small parts: groups, time limits, chunk sizes, progress."""

from __future__ import annotations

import time
from queue import SimpleQueue

import pytest
import torch
from torch import nn

from dpilot import clipping, engine
from dpilot.cli import console
from dpilot.errors import InvalidInput
from dpilot.train.dry_run import largest_fast_size
from dpilot.train.gradients import by_shape
from dpilot.train.optimizers import lr_for_batch
from dpilot.train.options import Average, Schedule, groups_for, schedule
from dpilot.train.timing import steps_within
from tests.train.helpers import LOSS, fit, model

EXAMPLE = torch.zeros(1, 4), torch.zeros(1).long()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_groups_are_shared_out_from_names_alone(count):
    net = model()
    found = groups_for(clipping.get("slack", groups=count), net, None)
    assert len(found) == count
    assert [name for group in found for name in group] == [name for name, _ in net.named_parameters()]
    assert found == groups_for(clipping.get("slack", groups=count), model(seed=5), None)


def test_more_groups_than_parameters_are_refused():
    with pytest.raises(InvalidInput, match="expected 5 groups"):
        groups_for(clipping.get("slack", groups=5), model(), None)


class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.01)
        return super().forward(x)


def test_a_time_limit_becomes_a_number_of_steps():
    found = steps_within(2.0, Slow(4, 2), LOSS, EXAMPLE, batch_size=128, chunk_size=64)
    assert 5 <= found <= 100  # two chunks a step, each of them 10 ms and what the machine adds


def test_a_time_limit_is_found_on_made_up_records():
    seen = SimpleQueue()  # a list would be restored

    class Watching(nn.Linear):
        def forward(self, x):
            seen.put(x.detach().clone())
            return super().forward(x)

    public = torch.full((3, 4), 123.0), torch.zeros(3).long()
    steps_within(0.1, Watching(4, 2), LOSS, public, batch_size=8)
    assert not seen.empty()
    assert not any((seen.get() == 123.0).any() for _ in range(seen.qsize()))


@pytest.mark.parametrize(("seconds", "batch"), [(0.0, 8), (-1.0, 8), (1.0, 0)])
def test_a_time_limit_must_be_one(seconds, batch):
    with pytest.raises(InvalidInput):
        steps_within(seconds, model(), LOSS, EXAMPLE, batch_size=batch)


def test_the_largest_of_the_fast_chunks_is_taken():
    rates = {32: 1.0, 64: 1.5, 128: 1.49, 256: 1.2, 512: 1.1, 1024: 0.9, 2048: 0.8}

    def seconds(size):
        return size / rates[size]

    assert largest_fast_size(seconds, 1000.0, patience=1e9) == 128
    assert largest_fast_size(seconds, 20.0, patience=1e9) == 32
    assert largest_fast_size(seconds, 1000.0, patience=40.0) == 64  # a chunk that takes too long is the last
    assert largest_fast_size(lambda size: None, 1000.0) == 32
    assert largest_fast_size(lambda size: None, 0.5) == 1


def test_a_busy_moment_does_not_decide():
    calls = []

    def seconds(size):
        calls.append(size)
        return 10.0 if calls == [32, 64, 128] else 1.0  # 128 is slow the first time

    assert largest_fast_size(seconds, 100.0, patience=1e9) == 128


def test_a_model_that_refuses_made_up_values_takes_a_public_example():
    class Picky(nn.Linear):
        def forward(self, x):
            if not bool((x == x.round()).all()):
                raise ValueError("whole numbers only")
            return super().forward(x)

    from torch.utils.data import TensorDataset

    whole = TensorDataset(torch.ones(20, 4), torch.zeros(20).long())
    with pytest.raises(InvalidInput, match=r"whole numbers only.*example="):
        fit(net=Picky(4, 2), dataset=whole)
    run = fit(net=Picky(4, 2), dataset=whole, example=(torch.ones(2, 4), torch.zeros(2).long()), engine="loop")
    assert len(run.record.steps) == 8


def test_the_bar_shows_what_was_released(capfd):
    with console.training_bar() as progress:
        run = fit("slack", progress=progress)
    shown = capfd.readouterr().err
    assert "8/8" in shown
    assert f"epsilon {run.epsilon:.3g} spent, 0 left" in " ".join(shown.split())


def test_schedules_by_name():
    assert schedule("warm-up") == Schedule(warmup=0.1)
    assert [schedule("constant").factor(step, 3) for step in range(3)] == [1.0, 1.0, 1.0]
    assert schedule("cosine").factor(0, 10) == 1.0
    assert 0 < schedule("cosine").factor(9, 10) < 0.05
    assert Schedule("cosine", final=0.5).factor(9, 10) > 0.5


def test_averages_forget_the_start_first():
    ema = Average("ema", decay=0.99)
    assert ema.keep(0) == 0.0
    assert ema.keep(1) == pytest.approx(2 / 11)
    assert ema.keep(10_000) == 0.99


def test_step_sizes_scale_with_the_root_for_adam():
    assert lr_for_batch(0.1, tuned_at=100, batch_size=400, optimizer="adamw") == pytest.approx(0.2)
    assert lr_for_batch(0.1, tuned_at=100, batch_size=400, optimizer="momentum") == pytest.approx(0.4)


def test_records_of_other_shapes_are_computed_few_at_a_time():
    """How many records of a chunk have another shape is theirs: they never fill a whole chunk, nor lose their order."""
    net, seen = nn.Linear(3, 1), []

    def loss(out, y):
        return out.flatten(1).sum(1) * y

    def run(name):
        def gradients(chunk):
            seen.append((name, len(chunk[1])))
            return engine.per_sample(net, loss, chunk)

        return gradients

    form = torch.zeros(1, 2, 3), torch.zeros(1)
    chosen = by_shape(run("whole"), run("few"), 8, form, per_batch=False)
    longer = torch.randn(20, 5, 3), torch.arange(20.0)
    found, expected = chosen(longer), engine.per_sample(net, loss, longer)
    assert seen == [("few", 8), ("few", 8), ("few", 4)]
    assert torch.allclose(found.norms, expected.norms)
    assert torch.allclose(found.weighted_sum(torch.arange(20.0))["weight"],
                          expected.weighted_sum(torch.arange(20.0))["weight"])  # fmt: skip
    seen.clear()
    chosen((torch.randn(20, 2, 3), torch.arange(20.0)))
    assert seen == [("whole", 20)]
