"""A replayed rule sends what the rule itself sends. On the CPU the work is run again instead of replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from dpilot import clipping
from dpilot.engine.replay import capture
from dpilot.errors import InvalidInput
from dpilot.numerics.devices import use_policy
from dpilot.train.graphed_clip import GraphedClip
from tests.contracts.zoo import DEVICE
from tests.devices import recording

ROWS = 7
NORMS = [0.0, 0.02, 0.9, 1.0, 30.0, float("nan"), float("inf")]
ALONE = [{}, {"normalized": True}]
IN_GROUPS = [{"groups": 3}, {"groups": 3, "normalized": True}]
RULES = [
    *((name, form) for name in clipping.names() for form in ALONE),
    *((name, form) for name in ("constant", "auto-s", "auto-v", "psac", "quantile", "slack") for form in IN_GROUPS),
]


class InPlace:
    """Work that is done again, what it makes written where it was: what a replay must amount to."""

    def __init__(self, work):
        self.work, self.made = work, work()

    def replay(self):
        for own, new in zip(self.made, self.work(), strict=True):
            own.copy_(new)
        return self.made


@pytest.fixture(autouse=True)
def graphs():
    """Replays anywhere; what was captured."""
    found = []

    def note(work, pool=None):
        found.append(InPlace(work) if DEVICE.type == "cpu" else capture.record_graph(work, pool))
        return found[-1]

    with use_policy(**recording(note)):
        yield found


def begun(rule, steps=None):
    return rule.init(noise_multiplier=1.0, expected_batch_size=8, dimension=50, steps=steps, device=DEVICE)


def drawn(form, step, dtype=torch.float32):
    """Norms of one step: fewer records than rows, now and then as many, null ones among them."""
    n, made = (3, ROWS, 1)[step % 3], torch.Generator().manual_seed(step)
    norms = torch.tensor(NORMS, dtype=dtype)[torch.randperm(ROWS, generator=made)][:n]
    if "groups" in form:
        norms = norms[:, None] * torch.rand(n, form["groups"], generator=made).to(dtype)
    return norms.to(DEVICE)


def equal(found, expected):
    return all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("name", "form"), RULES, ids=str)
def test_a_replayed_rule_sends_what_the_rule_sends_while_its_state_moves(name, form, graphs):
    rule = clipping.get(name, **form)
    clips, state = GraphedClip(rule, ROWS), begun(rule, steps=200)
    for step in range(8):
        norms = drawn(form, step)
        expected = rule.clip(norms, state)
        assert equal(clips(norms, state), expected)
        state = rule.update(state, expected[1].sum(0) + 0.1 * step)
    assert len(graphs) == (2 if "one-shot" in name else 1)


def test_double_precision_has_a_graph_of_its_own(graphs):
    rule = clipping.get("slack")
    clips, state = GraphedClip(rule, ROWS), begun(rule)
    for dtype in (torch.float32, torch.float64):
        norms = drawn({}, 1, dtype)
        assert equal(clips(norms, state), rule.clip(norms, state))
    assert len(graphs) == 2


def test_what_was_handed_out_keeps_its_values():
    rule = clipping.get("slack")
    clips, state = GraphedClip(rule, ROWS), begun(rule)
    first = clips(drawn({}, 0), state)
    kept = [t.clone() for t in first]
    clips(drawn({}, 1), replace(state, threshold=state.threshold * 0.1, bound=state.bound * 0.1))
    assert equal(first, kept)


def test_no_record_and_too_many_are_launched(graphs):
    rule = clipping.get("quantile")
    clips, state = GraphedClip(rule, 2), begun(rule)
    for norms in (drawn({}, 0)[:0], drawn({}, 1)):
        assert equal(clips(norms, state), rule.clip(norms, state))
    assert not graphs


def test_a_fifth_form_is_launched(graphs):
    rule = clipping.get("constant")
    clips, state = GraphedClip(rule, ROWS), begun(rule)
    for size in range(1, 7):
        other = replace(state, dimension=size)
        norms = drawn({}, size)
        assert equal(clips(norms, other), rule.clip(norms, other))
    assert len(graphs) == 4


def test_a_state_of_another_rule_is_refused():
    rule = clipping.get("constant", threshold=2.0)
    clips = GraphedClip(rule, ROWS)
    clips(drawn({}, 0), begun(rule))
    with pytest.raises(InvalidInput, match="clip state was made by"):
        clips(drawn({}, 0), begun(clipping.get("constant", threshold=1.0)))


@dataclass(frozen=True)
class Alternating:
    """A rule of one's own, which goes by the number of the step."""

    inside: clipping.Clipping

    def init(self, **public):
        return self.inside.init(**public)

    def clip(self, norms, state):
        weights, extras = self.inside.clip(norms, state)
        return weights * (state.step % 2), extras

    def update(self, state, released):
        return self.inside.update(state, released)


@pytest.mark.parametrize("inside", [False, True])
def test_a_rule_of_ones_own_is_launched(inside, graphs):
    own = Alternating(clipping.get("constant"))
    rule = clipping.Normalized(own) if inside else own
    clips, state = GraphedClip(rule, ROWS), begun(own)
    norms = torch.ones(2, device=DEVICE)
    for step in range(2):
        now = replace(state, step=step)
        now = (
            now
            if not inside
            else replace(rule.init(noise_multiplier=1, expected_batch_size=8, dimension=50), inner=now)
        )
        assert equal(clips(norms, now), rule.clip(norms, now.to(DEVICE)))
    assert not graphs


def test_a_rule_that_cannot_be_captured_is_launched_from_then_on():
    tries = []

    def fails(work, pool=None):
        tries.append(work)
        raise RuntimeError("no graphs today")

    rule = clipping.get("slack")
    clips, state = GraphedClip(rule, ROWS), begun(rule)
    with use_policy(**recording(fails)):
        for step in range(3):
            assert equal(clips(drawn({}, step), state), rule.clip(drawn({}, step), state))
    assert len(tries) == 1


def test_a_step_that_measures_has_a_graph_of_its_own(graphs):
    rule = clipping.get("one-shot")
    clips, measuring = GraphedClip(rule, ROWS), begun(rule)
    for state in (measuring, replace(measuring, measuring=0)):
        norms = drawn({}, 1)
        assert equal(clips(norms, state), rule.clip(norms, state))
    assert len(graphs) == 2


def test_a_run_in_inference_mode_is_replayed(graphs):
    rule = clipping.get("slack")
    clips, state = GraphedClip(rule, ROWS), begun(rule)
    norms = drawn({}, 1)
    with torch.inference_mode():
        assert equal(clips(norms.clone(), state), rule.clip(norms, state))
    assert equal(clips(norms, state), rule.clip(norms, state))
    assert len(graphs) == 1
