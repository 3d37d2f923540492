"""One record more, whatever it holds, moves only the inputs of releases, and those by no more than their bound."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest

from dpilot.audit.neighbours import Pair
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.fit.keys import FitKeys
from dpilot.fit.table import fit_table
from dpilot.tune.task import HELD_OUT, TRAIN
from tests.fit.helpers import SCHEMA, frame
from tests.thin import thin
from tests.tune import pilot_cases
from tests.tune.pilot_cases import key_that_puts

GOOD = {"number": "77", "signal": "0.5", "kind": "a", "site": "north", "outcome": "yes"}
ODD = {
    "an ordinary record": {},
    "nan": {"signal": "nan"},
    "a float nan": {"signal": math.nan},
    "inf": {"number": "inf"},
    "out of range": {"number": "-1e300"},
    "an unseen label": {"outcome": "maybe"},
    "an unseen category": {"kind": "z"},
    "an empty text": {"signal": "", "outcome": ""},
    "a huge text": {"kind": "x" * 1_000_000},
    "no text at all": {"signal": object()},
    "an unseen group": {"site": "east"},
    "all null": dict.fromkeys(GOOD),
}


def neighbours(size: int, names=tuple(ODD)) -> list[Pair]:
    data = frame(size)
    added = {name: pd.DataFrame([{**GOOD, **ODD[name]}], dtype=object) for name in names}
    return [Pair(name, data, pd.concat([data, row], ignore_index=True)) for name, row in added.items()]


def run(data: pd.DataFrame, schema: Schema = SCHEMA, **options):
    """A fit as a caller has it; the time of day in the ledger's rows is taken out, as it is nobody's secret."""
    options = {"epsilon": 2.0, "delta": 1e-5, "size": 200, "epochs": 5, "model": "logistic", **options}
    fitted = fit_table(data, schema, run_folder="run", **options)
    rows = [{key: cell for key, cell in entry.items() if key != "time"} for entry in fitted.record.ledger]
    facts = fitted.record
    privacy = {key: value for key, value in facts.privacy.items() if key != "head"}
    plain = privacy, facts.data, facts.plan, facts.decisions, facts.metrics, facts.thresholds, facts.unprotected
    return rows, plain, facts.curves, facts.health, fitted.predictor.state()


OPAQUE = ("ledger*", "fit.json", ".ledger*", "statement.json")


@pytest.mark.parametrize("pair", thin(neighbours(120), 3), ids=lambda pair: pair.name)
def test_a_record_more_moves_only_what_is_released(replay, pair):
    replay(run, pairs=[pair], opaque=OPAQUE)


ROWS = {
    "ordinary": {},
    "null": {"age": math.nan, "pay": math.inf},
    "far out": {"age": 1e300, "pay": 1e300},
    "of no class": {"outcome": "maybe"},
    "of no group": {"site": "east"},
}
USUAL = {"age": 70.0, "pay": 40.0, "kind": "a", "site": "north", "outcome": "yes"}


@pytest.mark.parametrize(("name", "part"), [*((name, HELD_OUT) for name in ROWS), ("far out", TRAIN)])
def test_a_record_more_moves_only_what_a_tuned_fit_releases(replay, monkeypatch, name, part):
    monkeypatch.setattr(FitKeys, "split", lambda self, shares: Split(shares, key_that_puts(60, part, shares)))
    data, row = pilot_cases.frame(60), {**USUAL, **ROWS[name]}
    more = {column: np.append(cells, np.array([row[column]], dtype=cells.dtype)) for column, cells in data.items()}
    tuned = partial(run, schema=pilot_cases.SCHEMA, model="auto", epsilon=1.0, epochs=3, size=50_000)
    (result,) = replay(tuned, pairs=[Pair(name, data, more)], opaque=OPAQUE)
    assert result.releases > 1 + 2 * 3 + 6 + 3 + 1  # and those of the bounds


@pytest.mark.slow
def test_an_ordinary_record_is_seen_by_the_releases(replay):
    often = partial(run, epochs=30)  # so that no batch takes it once in e^30 runs
    (result,) = replay(often, pairs=neighbours(120)[:1], opaque=OPAQUE)
    assert result.releases > 20
    assert 0.05 < result.largest <= 1 + 1e-6


@pytest.mark.slow
def test_bought_bounds_and_size_move_only_what_is_released(replay):
    columns = SCHEMA.to_dict()["columns"]
    columns["signal"]["bounds"] = "buy"
    schema = Schema.from_dict({"columns": columns})
    for pair in neighbours(120, ("an ordinary record", "inf", "all null")):
        replay(lambda data: run(data, schema, size="private", epochs=2), pairs=[pair], opaque=OPAQUE)


def test_the_first_record_of_an_empty_table(replay):
    empty = frame(120).iloc[:0]
    replay(run, pairs=[Pair("the first", empty, pd.DataFrame([GOOD], dtype=object))], opaque=OPAQUE)


@pytest.mark.parametrize("model", ["auto", "linear"])
@pytest.mark.parametrize("value", thin(["0.5", "1", "2", "nan", ""], 3))
def test_a_numeric_target(replay, value, model):
    columns = {**SCHEMA.to_dict()["columns"], "outcome": {"type": "numeric", "bounds": [0, 1], "role": "target"}}
    schema = Schema.from_dict({"columns": columns})
    data = frame(120).assign(outcome=np.linspace(0, 1, 120).astype(str))
    more = pd.concat([data, pd.DataFrame([{**GOOD, "outcome": value}], dtype=object)], ignore_index=True)
    given = {"model": model, "epochs": None if model == "auto" else 5}
    replay(lambda table: run(table, schema, **given), pairs=[Pair(value, data, more)], opaque=OPAQUE)
