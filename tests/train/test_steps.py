"""What a run's rule released is kept, step by step: all of it, nothing from before the noise, in a small file."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partialmethod

import numpy as np
import pytest
import torch

from dpilot import PrivateStep, clipping, load, poisson_loader, read_steps
from dpilot.errors import InvalidInput
from dpilot.records import RunRecord, _round_mantissas
from dpilot.tape import tape
from dpilot.train.run import steps_frame
from dpilot.train.step import Released, initial_state, record_step
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
    lengths = [np.linalg.norm(np.concatenate([each.ravel() for each in released[:-1]])) for released in keeper.outputs]
    assert [step.length for step in run.record.steps] == pytest.approx(lengths)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_thresholds_and_bounds_of_every_layer_follow_from_what_is_kept(rule):
    """The rule, fed with nothing but the record, goes the way the run went."""
    chosen, net = plan(rule), model()
    run = fit(plan=chosen, net=net)
    state = initial_state(chosen, model())
    for step in run.record.steps:
        released = Released(torch.tensor(step.released), torch.tensor(step.length, dtype=torch.float64))
        assert record_step(step.step, state, released) == step
        state = clipping.update_from_release(chosen.clipping, state, released.extras, released.length)


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
    assert columns[5:] == [
        *(f"released_{layer}_{slot}" for layer in range(2) for slot in range(3)),
        *("thresholds_0", "thresholds_1", "bounds_0", "bounds_1"),
    ]
    assert list(steps_frame(()).columns) == ["step", "threshold", "bound", "measuring", "length"]


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
    old = replace(record, steps=tuple(replace(each, length=None) for each in record.steps))
    assert RunRecord.from_json(json.dumps({**json.loads(record.to_json()), "steps": steps})) == old
    assert RunRecord.from_json(old.to_json()) == old


def test_a_loop_of_ones_own_keeps_the_same():
    chosen, net = plan("slack"), model()
    loader = poisson_loader(data(), chosen)
    step = PrivateStep(net, LOSS, torch.optim.SGD(net.parameters(), lr=0.1), chosen, chunk_size=16)
    heard = [step(batch) for batch in loader]
    assert tuple(heard) == step.record.steps
    assert all(each.released for each in heard)


@pytest.mark.parametrize(
    ("layers", "slots", "most"),
    [(20, None, 0.0), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((20, 31, 2**-6), (62, 31, 2**-3)))],
)
def test_ten_thousand_layer_wise_steps_take_less_than_20_mb(layers, slots, most, tmp_path):
    """With a batch of 512 and a noise multiplier of 1; ``most``: how many deviations of noise a number may move."""
    rule = clipping.get("slack", groups=layers, slots=slots)
    state = rule.init(noise_multiplier=1.0, expected_batch_size=512, dimension=100_000)
    count = rule.clip(torch.ones(1, layers), state)[1].shape[1]
    step = record_step(0, state, Released(torch.zeros(count), torch.tensor(0.1)))
    drawn = 100 * torch.rand(count).numpy() + torch.randn(10_000, count).numpy()
    steps = tuple(replace(step, step=place, released=tuple(row.tolist())) for place, row in enumerate(drawn))
    made = replace(fit().record, plan={"noise_multiplier": 1.0}, steps=steps)
    text = made.to_json()
    assert len(text) < 20e6
    again = RunRecord.from_json(text)
    found = np.array([each.released for each in again.steps])
    assert np.abs(found - drawn).max() <= most * step.bound * (1 + 1e-3)
    assert RunRecord.from_json(again.to_json()) == again
    assert [each.length for each in again.steps] == [each.length for each in made.steps]


@pytest.mark.parametrize("rule", [RULES[-4], "one-shot", "histogram-e", "constant"], ids=str)
def test_rounded_steps_are_near_those_of_the_run_whatever_the_rule(rule):
    run = fit(rule)
    again = RunRecord.from_json(run.record.to_json(exact=-1))
    assert RunRecord.from_json(again.to_json(exact=-1)) == again
    for kept, step in zip(again.steps, run.record.steps, strict=True):
        grid = step.bound * run.record.plan["noise_multiplier"] / 32
        assert kept.released == pytest.approx(step.released, abs=grid / 2 * (1 + 1e-5))
        assert kept.thresholds == pytest.approx(step.thresholds, rel=2**-13)
        assert kept.memory == pytest.approx(step.memory, rel=2**-13)
        assert (kept.threshold, kept.bound, kept.length) == (step.threshold, step.bound, step.length)


def test_a_sum_that_is_not_finite_is_kept_beside_rounded_ones():
    record = fit("slack").record
    strange = replace(record.steps[1], released=(float("inf"), *record.steps[1].released[1:]))
    again = RunRecord.from_json(replace(record, steps=(record.steps[0], strange)).to_json(exact=-1))
    assert again.steps[1].released == pytest.approx(strange.released, rel=2**-13)


def test_a_rounded_record_is_saved_twice_and_another_run_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(RunRecord, "to_json", partialmethod(RunRecord.to_json, exact=-1))
    run, other = fit("slack"), fit("slack")
    run.save(tmp_path)
    stored = RunRecord.from_json((tmp_path / "record.json").read_text())
    assert stored != run.record
    run.save(tmp_path)
    load(tmp_path, model=model()).save(tmp_path)
    assert RunRecord.from_json((tmp_path / "record.json").read_text()) == stored
    with pytest.raises(InvalidInput, match="another run"):
        replace(other, record=replace(other.record, epsilon=0.5)).save(tmp_path)


def test_rounding_leaves_what_is_not_finite_and_small():
    values = np.array([np.inf, -np.inf, np.nan, np.finfo(np.float32).max, 0.0, -0.0, 1e-45, 1.0], dtype=np.float32)
    assert _round_mantissas(values, 8)[[0, 1, 2, 4, 5, 7]].tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(_round_mantissas(values, 8)[2])
    assert np.isfinite(_round_mantissas(values, 8)[3:]).all()
