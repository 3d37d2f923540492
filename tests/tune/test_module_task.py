"""Modules as tasks: each trial has its own batches and noise; scores count every held-out record once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpilot import Budget
from dpilot.data.splits import Split
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.privacy.events import Gaussian, PoissonSampled, Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.train.gradients import null_outside_classes
from dpilot.tune import Candidate, ModuleTask, SearchBox, autopilot, linear_scaling, stacked
from dpilot.tune.task import Outlay, Trial, fixed_noise
from tests.attacks.judge import places_in_order
from tests.thin import thin_product
from tests.tune.helpers import LOSS, arrays, dataset, seen
from tests.tune.test_scaling import pairs

RATE = 0.4


def net():
    return nn.Sequential(nn.Linear(3, 2))


def same_net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return net()


def module_task(train=None, held_out=None, **options):
    options = {"classes": 2, "sample_rate": RATE, "options": {"chunk_size": 64}, "clipping": "constant", **options}
    return ModuleTask(same_net, LOSS, dataset(train), dataset(held_out or arrays(30, 1)), 40, 30, **options)


def trial(steps=3, lr=0.5, sigma=2.0, rate=RATE):
    step = Gaussian(sigma) if rate == 1 else PoissonSampled(rate, Gaussian(sigma))
    return Trial(Candidate(lr, steps), sigma, Receipt(Repeated(step, steps)))


class Watched(torch.utils.data.Dataset):
    """Notes which records are read."""

    def __init__(self, size):
        self.read = []
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, place):
        self.read.append(place)
        return torch.zeros(3), torch.tensor(0)


def test_trials_at_a_rate_below_one_draw_batches_independently():
    """With one batch for both, both would hold a share of RATE of the records, not RATE^2."""
    size, batches = 2000, []
    data = Watched(size)
    form = dataset()[:1]
    task = ModuleTask(net, LOSS, data, dataset(), size, 30, 2, RATE, options={"chunk_size": 5000}, example=form)
    for _ in range(2):
        data.read.clear()
        with places_in_order():
            task.train([trial(steps=1), trial(steps=1)])
        read = np.array([place for place in data.read if place is not None])
        starts = np.flatnonzero(np.diff(read) < 0)
        batches += [set(part.tolist()) for part in np.split(read, starts + 1) if len(part) > size * RATE / 2]
    assert len(batches) == 4
    for one in range(4):
        for other in range(one):
            both = len(batches[one] & batches[other])
            assert abs(both - size * RATE**2) < 5 * math.sqrt(size * RATE**2)
    assert all(abs(len(batch) - size * RATE) < 5 * math.sqrt(size * RATE) for batch in batches)


def test_trials_have_noise_of_their_own():
    for noise in ({}, {"noise": fixed_noise(1)}):
        task = module_task(**noise, sample_rate=1.0)
        one, other = task.train([trial(rate=1.0, sigma=50.0), trial(rate=1.0, sigma=50.0)])
        gap = one[0].weight - other[0].weight
        assert gap.abs().min() > 1e-4


def test_a_fixed_seed_repeats_and_is_stamped():
    def weights():
        task = module_task(noise=fixed_noise(1), sample_rate=1.0)
        return task.train([trial(rate=1.0)])[0][0].weight

    assert torch.equal(weights(), weights())
    assert "not private" in module_task(noise=fixed_noise(1)).stamp


def test_each_trial_draws_every_step_from_its_own_receipt():
    one, other = trial(), trial()
    module_task().train([one, other])
    for each in (one, other):
        with pytest.raises(BudgetExceeded):
            each.receipt.draw(PoissonSampled(RATE, Gaussian(2.0)))


def test_only_the_paid_number_of_steps_goes_with_sampled_batches():
    outlay = Outlay(2.0, RATE, 3)
    with pytest.raises(InvalidInput, match="Only the step size"):
        outlay.trial(Candidate(1.0, 4), Receipt(outlay.event))


@pytest.mark.parametrize(("objective", "cells"), [("accuracy", 1), ("macro", 2), ("worst_group", 3)])
def test_tables_count_each_record_once(objective, cells):
    values, labels = arrays(30, 1)
    groups = np.arange(30) % 3
    labels[0], values[1] = -5, np.nan
    held_out = torch.utils.data.TensorDataset(*(torch.from_numpy(each) for each in (values, labels, groups)))
    task = ModuleTask(same_net, LOSS, dataset(), held_out, 40, 30, 2, group_count=3)
    model = task.untrained()
    exact = task.exact_table(model, objective)
    assert exact.shape == (cells, 2)
    assert exact.sum() in (28, 29)  # a label that is no class is null; what is not finite is wrong at best
    noisy = task.table(model, objective, noise_multiplier=0.01, receipt=Receipt(Gaussian(0.01)))
    assert np.abs(noisy - exact).max() < 0.1
    predicted = model(torch.from_numpy(values)).argmax(1).numpy()
    right = (predicted == labels)[2:].sum()
    assert right <= exact[:, 1].sum() <= right + 1


def test_a_model_that_is_not_finite_scores_worst_and_draws_nothing():
    task, receipt = module_task(), Receipt(Gaussian(1.0))
    model = task.untrained()
    model[0].weight.data[0, 0] = math.inf
    assert task.table(model, "accuracy", noise_multiplier=1.0, receipt=receipt) is None
    receipt.draw(Gaussian(1.0))


def test_of_splits_by_coins_and_names_the_split():
    split = Split.draw({"train": 0.7, "held-out": 0.3})
    task = ModuleTask.of(net, LOSS, dataset(), split, size=40, classes=2)
    assert len(task.train_data) + len(task.held_out) == 40
    assert (task.size, task.held_out_size, task.split) == (28.0, 12.0, split.id)


@pytest.mark.parametrize(("place", "pair"), thin_product(4, [1, 0], [0, 1]))
def test_sampled_linear_scaling_replays(place, pair, replay):
    def run(parts):
        task = module_task(*parts, sample_rate=0.5, together=place == 0)
        box = SearchBox.fixed((0.1, 10.0), 2)
        return seen(linear_scaling(task, Budget(3.0, 1e-5), box=box, trials=2, too_noisy=math.inf, shares=(0.1, 0.2)))

    replay(run, pairs=pairs(place)[pair : pair + 1])


def test_the_sampled_form_keeps_its_steps_and_its_budget():
    task = module_task(sample_rate=0.5)
    tuned = linear_scaling(
        task, Budget(3.0, 1e-5), box=SearchBox.fixed((0.1, 10.0), 2), trials=2, too_noisy=math.inf, shares=(0.1, 0.2)
    )
    assert {each.candidate.steps for each in tuned.trials} == {2} == {tuned.candidate.steps}
    assert 2.98 < tuned.spent.epsilon <= 3.0


def equal(one, other, tolerance):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, atol=tolerance, rtol=tolerance) for a, b in pairs)


@pytest.mark.parametrize("rule", ["constant", "bounded-slack", "quantile"])
def test_trials_together_are_the_trials_apart(rule):
    """Same noise, full batches: the same models, but for the engines' rounding. Different numbers of steps too."""
    made = []
    for together in (True, False):
        task = module_task(noise=fixed_noise(5), sample_rate=1.0, together=together, clipping=rule)
        made.append(task.train([trial(4, 0.5, rate=1.0), trial(2, 0.1, rate=1.0), trial(4, 2.0, rate=1.0)]))
    assert all(equal(one, other, 1e-5) for one, other in zip(*made, strict=True))
    assert not equal(made[0][0], made[0][2], 1e-3)


def test_a_record_that_breaks_the_pass_for_all_is_null_for_each():
    values, labels = arrays()
    labels[-1] = 7  # no class: the loss raises
    made = []
    for data in ((values, labels), (values[:-1], labels[:-1])):
        task = module_task(data, noise=fixed_noise(5), sample_rate=1.0, together=True)
        made.append(task.train([trial(3, rate=1.0), trial(3, rate=1.0)]))
    assert all(equal(one, other, 1e-5) for one, other in zip(*made, strict=True))


def test_on_a_gpu_such_a_record_breaks_nothing(monkeypatch):
    """There the kernel would end the process: the loss of trials together must not hand it that label."""

    def never(*args):
        raise AssertionError("the pass for all was broken")

    monkeypatch.setattr(
        stacked, "null_outside_classes", lambda loss, _: null_outside_classes(loss, torch.device("cuda"))
    )
    monkeypatch.setattr(stacked, "_compute_alone", never)
    values, labels = arrays()
    labels[-1] = 7
    made = []
    for data in ((values, labels), (values[:-1], labels[:-1])):
        task = module_task(data, noise=fixed_noise(5), sample_rate=1.0, together=True)
        made.append(task.train([trial(3, rate=1.0), trial(3, rate=1.0)]))
    assert all(equal(one, other, 1e-5) for one, other in zip(*made, strict=True))


class OneHot(nn.Module):
    """Starts at zero; a step moves the columns of the records that are in its batch."""

    def __init__(self, size):
        super().__init__()
        self.head = nn.Linear(size, 2, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, inputs):
        return self.head(inputs)


@pytest.mark.parametrize("together", [True, False])
def test_each_trials_sum_is_over_its_own_batch(together):
    size = 600
    data = torch.utils.data.TensorDataset(torch.eye(size), torch.zeros(size, dtype=torch.long))
    task = ModuleTask(
        lambda: OneHot(size), LOSS, data, dataset(), size, 30, 2, RATE, "constant", "sgd", together=together
    )
    quiet = [trial(steps=1, lr=float(size), sigma=1e-4) for _ in range(3)]
    batches = [set(np.flatnonzero(model.head.weight[0].detach().numpy() > 0.1)) for model in task.train(quiet)]
    for batch in batches:
        assert abs(len(batch) - size * RATE) < 5 * math.sqrt(size * RATE)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(len(batches[one] & batches[other]) - size * RATE**2) < 5 * math.sqrt(size * RATE**2)


@pytest.mark.parametrize(
    ("model_fn", "shape"),
    [
        (lambda: nn.Linear(3, 5), "(2, 5)"),
        (lambda: nn.Linear(3, 1), "(2, 1)"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Unflatten(1, (2, 1))), "(2, 2, 1)"),
    ],
    ids=["more", "one", "three dimensions"],
)
def test_outputs_that_are_not_one_a_class_are_refused_before_anything_is_paid(model_fn, shape, tmp_path):
    """They would be null, one and all, in every score and figure, and nobody would be told."""

    def loss(outputs, y):
        return LOSS(outputs.flatten(1).repeat(1, 2), y)

    fly = {"budget": Budget(1.0, 1e-5), "classes": 2, "epochs": 1, "loss_fn": loss, "ledger": tmp_path / "ledger"}
    with pytest.raises(InvalidInput, match=r"expected one output a record and class. End the module with 2") as refused:
        autopilot(model_fn, dataset(), **fly)
    assert shape in str(refused.value)
    assert not (tmp_path / "ledger").exists()


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        return {"scores": self.last(x)}


def test_a_module_whose_outputs_cannot_be_read_is_refused_when_the_task_is_made():
    with pytest.raises(InvalidInput, match="no outputs for made-up records"):
        ModuleTask(Named, lambda outputs, y: LOSS(outputs["scores"], y), dataset(), dataset(), 40, 30, 2)


def test_a_module_that_does_not_run_is_refused_when_the_task_is_made():
    with pytest.raises(InvalidInput, match="do not run on made-up records"):
        ModuleTask(lambda: nn.Linear(4, 2), LOSS, dataset(), dataset(), 40, 30, 2)
