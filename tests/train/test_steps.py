"""What a run's rule released is kept, step by step: all of it, nothing from before the noise, in a small file."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpilot import PrivateStep, clipping, load, poisson_loader, read_steps
from dpilot.records import RunRecord
from dpilot.tape import tape
from dpilot.train.run import steps_frame
from dpilot.train.step import initial_state, record_step
from tests.tapes import Recorder
from tests.train.helpers import LOSS, STEPS, data, fit, model, plan
from tests.train.test_checkpoint import resumed, stopped

RULES = [
    *clipping.names(),
    clipping.get("slack", groups=2, slots=3),
    clipping.get("quantile", groups=4),
    clipping.get("histogram-e", normalized=True),
    clipping.get("slack", groups=2, normalized=True),
]


class Keeper(Recorder):
    """Keeps what came out of the door, too."""

    def __init__(self):
        super().__init__()
        self.outputs = []

    def release(self, entry, outputs):
        self.outputs.append(super().release(entry, outputs))
        return self.outputs[-1]


def numbers(values):
    return tuple(np.asarray(values, dtype=np.float32).ravel().tolist())


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_is_kept_is_what_was_released(rule):
    keeper = Keeper()
    with tape(keeper):
        run = fit(rule)
    kept = [step.released for step in run.record.steps]
    assert kept == [numbers(released[-1]) for released in keeper.outputs]
    exact = [numbers(entry.inputs[-1]) for entry in keeper.entries]
    assert not any(set(noisy) & set(true) for noisy, true in zip(kept, exact, strict=True))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_thresholds_and_bounds_of_every_layer_follow_from_what_is_kept(rule):
    """The rule, fed with nothing but the record, goes the way the run went."""
    chosen, net = plan(rule), model()
    run = fit(plan=chosen, net=net)
    state = initial_state(chosen, model())
    for step in run.record.steps:
        released = torch.tensor(step.released)
        assert record_step(step.step, state, released) == step
        state = chosen.clipping.update(state, released)


@pytest.mark.parametrize("rule", [RULES[-4], "one-shot", "constant", "mse"], ids=str)
def test_a_frame_has_one_row_a_step_wherever_it_comes_from(rule, tmp_path):
    run = fit(rule)
    frame = run.steps()
    assert len(frame) == STEPS
    assert frame["threshold"].tolist() == list(run.thresholds)
    assert RunRecord.from_json(run.record.to_json()) == run.record
    run.save(tmp_path)
    for again in (load(tmp_path).steps(), read_steps(tmp_path)):
        assert again.equals(frame)
    for place, step in enumerate(run.record.steps):
        row = frame.iloc[place].filter(regex="^released_").astype(float).dropna()
        assert tuple(row) == step.released


def test_columns_name_the_layer():
    columns = list(fit(clipping.get("slack", groups=2, slots=3)).steps().columns)
    assert columns[4:] == [
        *(f"released_{layer}_{slot}" for layer in range(2) for slot in range(3)),
        *("thresholds_0", "thresholds_1", "bounds_0", "bounds_1"),
    ]
    assert list(steps_frame(()).columns) == ["step", "threshold", "bound", "measuring"]


@pytest.mark.parametrize("rule", [RULES[-4], "one-shot", "bounded"], ids=str)
def test_a_stopped_run_shows_its_steps_and_goes_on(rule, tmp_path):
    stopped(tmp_path / "run", 4, plan=plan(rule), checkpoint_every=2)
    whole = fit(rule).steps()
    assert read_steps(tmp_path / "run").equals(whole[:4].dropna(axis=1, how="all"))
    assert resumed(tmp_path / "run").steps().equals(whole)
    assert read_steps(tmp_path / "run").equals(whole)


def test_records_of_steps_that_were_written_one_by_one_are_read():
    record = fit().record
    plain = ("step", "threshold", "bound", "measuring")
    steps = [{name: getattr(each, name) for name in plain} for each in record.steps]
    assert RunRecord.from_json(json.dumps({**json.loads(record.to_json()), "steps": steps})) == record


def test_a_loop_of_ones_own_keeps_the_same():
    chosen, net = plan("slack"), model()
    loader = poisson_loader(data(), chosen)
    step = PrivateStep(net, LOSS, torch.optim.SGD(net.parameters(), lr=0.1), chosen, chunk_size=16)
    heard = [step(batch) for batch in loader]
    assert tuple(heard) == step.record.steps
    assert all(each.released for each in heard)


def test_ten_thousand_layer_wise_steps_take_less_than_20_mb():
    """Twenty layers at the number of slots that a batch of 512 and a noise multiplier of 1 have."""
    rule = clipping.get("slack", groups=20)
    state = rule.init(noise_multiplier=1.0, expected_batch_size=512, dimension=100_000)
    slots = rule.clip(torch.ones(1, 20), state)[1].shape[1]
    assert slots > 100
    drawn = torch.randn(10_000, slots)
    steps = tuple(record_step(place, state, noisy) for place, noisy in enumerate(drawn))
    made = replace(fit().record, steps=steps)
    text = made.to_json()
    assert len(text) < 20e6
    assert RunRecord.from_json(text) == made
