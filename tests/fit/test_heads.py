"""The tuned head of a table: its cost by another accountant, parts and groups kept apart, what is bought is used."""

from __future__ import annotations

import numpy as np
import pytest

from dpilot import Ledger, Schema
from dpilot.fit.declaration import FitOptions, declare_fit
from dpilot.fit.expansion import features_of
from dpilot.fit.keys import FitKeys
from dpilot.fit.pipeline import plan_fit, run_fit
from dpilot.fit.table import fit_table
from dpilot.noise import seeded_noise
from dpilot.privacy import events as known_events
from dpilot.transfer import Features
from dpilot.tune import autopilot, pilot
from dpilot.tune.defaults import head_walk
from dpilot.tune.task import HELD_OUT, TRAIN
from tests.tune.pilot_cases import SCHEMA, frame, second_delta

LOUD = {"epsilon": 60.0, "delta": 1e-5, "held_out": 0.5, "epochs": 20, "test_seed": 3}


def turned_records(chosen):
    """Records whose held-out labels are turned where ``chosen`` says so of their sites, by the coins of seed 3."""
    data = frame(800)
    places = FitKeys.draw(3).split({TRAIN: 0.5, HELD_OUT: 0.5}).indices(800)[HELD_OUT]
    turned = places[chosen(data["site"][places])]
    data["outcome"][turned] = np.where(data["outcome"][turned] == "yes", "no", "yes")
    return data


def run_with_turned(chosen):
    return fit_table(turned_records(chosen), SCHEMA, **LOUD)


def test_held_out_records_are_scored_and_none_is_trained_on():
    """What the training part teaches is wrong of all held-out records; learned from both, it would be a draw."""
    assert run_with_turned(lambda sites: sites != "").metrics[0].value < 0.2


def test_records_are_scored_in_their_own_group():
    fitted = run_with_turned(lambda sites: sites == "south")
    found = {each.of: each.value for each in fitted.metrics if each.name == "group accuracy"}
    assert found["site = north"] > 0.85
    assert found["site = south"] < 0.15


@pytest.mark.parametrize("part", [TRAIN, HELD_OUT])
@pytest.mark.parametrize("size", ["public", "private", 50_000], ids=["bounds", "bounds and size", "bounds, trials"])
def test_receipts_of_each_part_are_the_total_by_a_second_accountant(size, part):
    fitted = fit_table(frame(), SCHEMA, epsilon=1.0, delta=1e-5, size=size, epochs=4)
    rows = fitted.record.ledger
    spent = [known_events.from_dict(entry["event"]) for entry in rows if entry["part"] in (None, part)]
    assert fitted.epsilon <= 1.0
    assert second_delta(spent, fitted.epsilon) == pytest.approx(1e-5, rel=2e-3)
    assert {entry["state"] for entry in rows} == {"committed"}
    assert len({entry["seq"] for entry in rows}) == 2, "health, then the rest"


def test_trials_score_records_in_their_own_group():
    """All held-out records of one group are turned: the worst group is near 0; of mixed groups none would be."""
    options = FitOptions("auto", 20, 0.5, "worst_group")
    data = turned_records(lambda sites: sites == "south")
    declared, source = declare_fit(data, SCHEMA, epsilon=60.0, delta=1e-5, options=options)
    result = run_fit(declared, source, keys=FitKeys.draw(3))
    trials = result.trained.details.search.trials
    assert len(trials) == 6
    assert all(each.score.value < 0.1 for each in trials)


def test_a_ledger_of_ones_own_is_saved_with_the_run(tmp_path):
    fitted = fit_table(frame(300), SCHEMA, epsilon=20.0, run_folder=tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger")
    assert book.spent().epsilon == fitted.epsilon <= 20.0
    assert not list(tmp_path.glob(".*secret*")), "a finished fit leaves no secret"


def test_bought_bounds_are_those_of_the_reader():
    fitted = fit_table(frame(2_000), SCHEMA, epsilon=20.0)
    lower, upper = fitted.reader.schema.columns["pay"].interval
    assert -60 < lower < 40
    assert 60 < upper < 160
    assert fitted.schema.columns["pay"].interval == (lower, upper)
    assert "10.0% of the budget buys the bounds." in fitted.record.decisions


def test_no_trials_where_the_size_is_bought():
    fitted = fit_table(frame(400), SCHEMA, epsilon=50.0, size="private")
    assert any("the size is bought" in each for each in fitted.record.decisions)
    data, plan = fitted.record.data, fitted.record.plan
    assert abs(data["size"] - 400) < 100
    (final,) = (each for each in fitted.record.ledger if each["purpose"] == "final run")
    mu = 1 / known_events.from_dict(final["event"]).noise_multiplier
    walk = head_walk(mu, (1 - data["held_out"]) * data["size"])
    assert plan["lr"] * plan["steps"] == pytest.approx(walk, rel=0.01)


def test_the_decisions_tell_the_run_in_short_then_the_health_check():
    fitted = fit_table(frame(300), SCHEMA, epsilon=20.0, epochs=4)
    first, second, *rest = fitted.record.decisions
    assert first.startswith("In short")
    assert "delta was not given" in second
    assert any(each.startswith("2 % of mu² went to the health check.") for each in rest)


def test_vectors_get_the_autopilots_head_at_what_the_health_check_leaves(monkeypatch):
    """With the same coins and noise: no other step of a fit costs them anything."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 3000)
    table = {"x": rng.normal(size=(3000, 6)) + np.eye(3, 6)[codes], "y": codes.astype(str)}
    target = {"type": "categorical", "categories": ["0", "1", "2"], "role": "target"}
    schema = Schema.from_dict({"columns": {"x": {"type": "vector", "width": 6}, "y": target}})
    declared, source = declare_fit(table, schema, epsilon=3.0, delta=1e-6)

    def keys():
        return FitKeys(FitKeys.draw(1).chain, seeded_noise(1))  # a stream of noise, not one by values

    ours = run_fit(declared, source, keys=keys()).trained.predictor.weights
    known, rest, theirs = keys(), plan_fit(declared, "gdp").rest, features_of(schema.inputs_only())
    _ = [known.noise.spawn() for _ in ("health", "size", "bounds")]
    monkeypatch.setattr(pilot, "draw_split", lambda share, _: known.split({TRAIN: 1 - share, HELD_OUT: share}))
    monkeypatch.setattr(pilot, "fixed_noise", lambda _: known.noise.spawn)
    rows = theirs.widen(theirs.encoder.encode_features({"x": table["x"]}))
    found = autopilot(Features.of(rows, codes, 3), None, rest, size=3000, test_seed=1)
    assert found.tuned.trials
    assert np.abs(found.model.numpy() - ours).max() < 1e-5 * np.abs(ours).max()
