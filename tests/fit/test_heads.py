"""The autopilot of a table: parts and groups are kept apart, runs can be saved, what is bought is used."""

from __future__ import annotations

import numpy as np
import pytest
from dpilot.tables.table_run import load_table
from dpilot.tune.pilot.autopilot import draw_split
from dpilot.tune.pilot.autopilot_table import autopilot_table

from dpilot import Ledger
from dpilot.errors import InvalidInput
from dpilot.tune.defaults import AutopilotOptions
from dpilot.tune.task import HELD_OUT
from tests.tune.pilot_cases import SCHEMA, frame

TERMS = AutopilotOptions(held_out=0.5, epochs=20)


def run_with_turned(chosen):
    """An autopilot run on records whose held-out labels are turned where ``chosen`` says so of their sites."""
    data = frame(800)
    places = draw_split(0.5, 3).indices(800)[HELD_OUT]
    turned = places[chosen(data["site"][places])]
    data["outcome"][turned] = np.where(data["outcome"][turned] == "yes", "no", "yes")
    return autopilot_table(data, SCHEMA, epsilon=60.0, delta=1e-5, options=TERMS, test_seed=3).result


def test_held_out_records_are_scored_and_none_is_trained_on():
    """What the training part teaches is wrong of all held-out records; learned from both, it would be a draw."""
    assert run_with_turned(lambda sites: sites != "").metrics[0].value < 0.2


def test_records_are_scored_in_their_own_group():
    result = run_with_turned(lambda sites: sites == "south")
    found = {each.of: each.value for each in result.metrics if each.name == "group accuracy"}
    assert found["site = north"] > 0.85
    assert found["site = south"] < 0.15


def test_an_autopilot_run_is_saved_as_a_run_that_predicts_the_same(tmp_path):
    data = frame(300)
    fitted = autopilot_table(data, SCHEMA, epsilon=20.0, run_folder=tmp_path / "run")
    saved = fitted.table_run()
    saved.save(tmp_path / "run")
    back = load_table(tmp_path / "run")
    assert np.array_equal(back.predict_proba(data), saved.predict_proba(data))
    assert back.record.decisions == fitted.result.decisions
    assert Ledger.read(tmp_path / "run" / "ledger").spent().epsilon <= 20.0


def test_bought_bounds_are_those_of_the_encoder():
    fitted = autopilot_table(frame(2_000), SCHEMA, epsilon=20.0)
    lower, upper = fitted.encoder.schema.columns["pay"].interval
    assert -60 < lower < 40
    assert 60 < upper < 160
    assert "10.0% of mu^2 buys the bounds." in fitted.result.decisions


def test_a_numeric_target_is_refused():
    with pytest.raises(InvalidInput, match="numeric"):
        autopilot_table(frame(20), SCHEMA.__class__(_numeric()), epsilon=1.0)


def _numeric():
    from dpilot.data.schema import Column

    return {
        "pay": Column("pay", "numeric", bounds=(0.0, 1.0)),
        "age": Column("age", "numeric", bounds=(0.0, 100.0), role="target"),
    }
