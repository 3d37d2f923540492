"""The step is the picture in the architecture: what is released, what divides it, when the optimizer moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from dpilot import clipping, engine
from dpilot.privacy.events import Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.train.step import StepContext, initial_state, private_step
from tests.train.helpers import LOSS, model, plan, records


class Silent:
    """Noise that is always the same (nothing, as a rule) and remembers what it was asked to cover."""

    stamp = "none: a test"

    def __init__(self, drawn=0.0):
        self.asked, self.drawn = [], drawn

    def gaussian(self, values, *, bound, noise_multiplier):
        self.asked.append((bound, noise_multiplier, [v.clone() for v in values]))
        return [v + self.drawn for v in values]


def setting(chosen, net, drawn=0.0, **more):
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    return StepContext(
        plan=chosen,
        model=net,
        per_sample=lambda chunk: engine.per_sample(net, LOSS, chunk),
        optimizer=optimizer,
        noise=Silent(drawn),
        receipt=Receipt(chosen.event),
        **more,
    )


def by_hand(net, inputs, targets, threshold):
    """Clipped gradients, one record at a time, by plain autograd."""
    total = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for x, y in zip(inputs, targets, strict=True):
        grads = torch.autograd.grad(LOSS(net(x[None]), y[None]).sum(), list(net.parameters()))
        norm = torch.sqrt(sum((g**2).sum() for g in grads))
        for (name, _), g in zip(net.named_parameters(), grads, strict=True):
            total[name] += g * min(1.0, threshold / float(norm))
    return total


@pytest.mark.parametrize("sizes", [[7], [3, 4], [1] * 7])
def test_the_model_moves_by_the_clipped_sum_over_the_expected_batch_size(sizes):
    chosen, net = plan(clipping.get("constant", threshold=0.3)), model()
    inputs, targets = (t[:7] for t in records())
    expected = by_hand(net, inputs, targets, 0.3)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    private_step(
        setting(chosen, net), initial_state(chosen, net), zip(inputs.split(sizes), targets.split(sizes), strict=True)
    )
    for name, parameter in net.named_parameters():
        moved = (before[name] - parameter.detach()) * chosen.expected_batch_size
        torch.testing.assert_close(moved, expected[name], rtol=1e-4, atol=1e-6)
        assert parameter.grad is None


def test_an_empty_batch_releases_noise_alone_and_draws_its_receipt():
    chosen, net = plan("slack", steps=1), model()
    made = setting(chosen, net)
    private_step(made, initial_state(chosen, net), [])
    ((bound, sigma, values),) = made.noise.asked
    assert (bound, sigma) == (1.0, chosen.noise_multiplier)
    assert all(not value.any() for value in values)
    with pytest.raises(Exception, match="not reserved, or was drawn already"):
        private_step(made, initial_state(chosen, net), [])


def test_every_chunk_is_clipped_with_the_state_from_before_the_step():
    chosen, net = plan("quantile"), model()
    inputs, targets = records()
    thresholds = []

    class Watching:
        def __getattr__(self, name):
            return getattr(clipping.get("quantile"), name)

        def clip(self, norms, state):
            thresholds.append(float(state.threshold))
            return clipping.get("quantile").clip(norms, state)

    object.__setattr__(chosen, "clipping", Watching())
    state = initial_state(chosen, net)
    after, _ = private_step(setting(chosen, net), state, zip(inputs.split(10), targets.split(10), strict=True))
    assert set(thresholds) == {float(state.threshold)}
    assert float(after.threshold) != float(state.threshold)


def test_sums_that_an_engine_handed_out_are_not_written_to():
    chosen, net, handed = plan(), model(), []

    def remembering(chunk):
        made = engine.per_sample(net, LOSS, chunk)

        def sum_with(weights, _=None):
            sums = made.sum_with(weights)
            handed.append([(t, t.clone()) for t in sums.values()])
            return sums

        return replace(made, sum_with=sum_with)

    inputs, targets = records()
    chunks = zip(inputs.split(10), targets.split(10), strict=True)
    private_step(replace(setting(chosen, net), per_sample=remembering), initial_state(chosen, net), chunks)
    assert len(handed) > 2
    assert all(torch.equal(now, before) for sums in handed for now, before in sums)


def test_the_optimizer_does_not_move_while_a_rule_measures():
    chosen, net = plan(clipping.get("one-shot", measure=2)), model()
    made, state = setting(chosen, net, drawn=1.0), initial_state(chosen, net)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    inputs, targets = records()
    for _ in range(2):
        state, _ = private_step(made, state, [(inputs, targets)])
        assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    private_step(made, state, [(inputs, targets)])
    assert not any(torch.equal(p, before[name]) for name, p in net.named_parameters())


def test_layer_wise_rules_clip_each_group_by_its_own_norm():
    net = nn.Linear(2, 2)
    chosen = plan(clipping.get("constant", threshold=1e-3, groups=2))
    made = setting(chosen, net, groups=[["weight"], ["bias"]])
    inputs, targets = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    private_step(made, initial_state(chosen, net), [(inputs, targets)])
    ((bound, _, values),) = made.noise.asked
    assert bound == pytest.approx(1e-3)
    for value in values[:2]:
        assert float(value.norm()) == pytest.approx(1e-3 / 2**0.5, rel=1e-3)


@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_sums_and_noise_are_float32_or_better_whatever_the_model(dtype, size):
    chosen, net = plan(), model().to(dtype)
    made = setting(chosen, net)
    inputs, targets = records()
    chunks = [(inputs[:size].to(dtype), targets[:size])] if size else []
    private_step(made, initial_state(chosen, net), chunks)
    ((_, _, values),) = made.noise.asked
    assert {v.dtype for v in values[:-1]} == {torch.float64 if dtype == torch.float64 else torch.float32}
    assert {p.dtype for p in net.parameters()} == {dtype}


def test_a_plan_costs_its_steps_whatever_the_rule():
    assert plan("slack").event == plan("histogram-e").event == Repeated(plan().step_event, plan().steps)


class Summed:
    """The gradients of a chunk of which only the clipped sum is known: ``length`` along one direction."""

    def __init__(self, net, length):
        self.norms = torch.zeros(1)
        size = sum(p.numel() for p in net.parameters())
        self._sum = {name: torch.full_like(p, length / size**0.5) for name, p in net.named_parameters()}

    def weighted_sum(self, weights, groups=None, names=None, grid=None):
        return self._sum


@pytest.mark.parametrize(("expected", "precise"), [(1_000_000, True), (100, False)])
def test_roundings_of_a_large_sum_do_not_outgrow_what_one_record_adds(expected, precise):
    net, sums = model(), []
    chosen = replace(plan(), size=expected, sample_rate=1.0)
    for lengths in ([0.0058, *[4096.7] * 244], [0.0, *[4096.7] * 244]):
        made = replace(setting(chosen, net), per_sample=lambda length: Summed(net, length))
        private_step(made, initial_state(chosen, net), lengths)
        sums.append(torch.cat([v.flatten().double() for v in made.noise.asked[0][2]]))
    moved = float((sums[0] - sums[1]).norm())
    assert (abs(moved - 0.0058) < 1e-6) == precise, "the second case shows that float32 would be seen"
