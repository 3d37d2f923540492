"""What a fit of a table once told wrongly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dpilot.tables.table_run import load_table

import dpilot
from dpilot.data.schema import Schema
from dpilot.fit.table import fit_table
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema


def test_what_is_shown_and_saved_is_the_price_of_the_whole_fit(tmp_path):
    columns = {**SCHEMA.to_dict()["columns"], "signal": {"type": "numeric", "bounds": "buy"}}
    told = []
    fitted = fit_table(
        frame(200),
        Schema.from_dict({"columns": columns}),
        epsilon=1.0,
        delta=1e-5,
        size="private",
        epochs=1,
        run_folder=tmp_path / "run",
        progress=told.append,
    )
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    prices = [fitted.run.epsilon, fitted.run.record.epsilon, record["epsilon"], dpilot.load(tmp_path / "run").epsilon]
    prices += [load_table(tmp_path / "run").epsilon, *(update.epsilon for update in told)]
    assert 0.99 < fitted.epsilon <= 1.0
    assert set(prices) == {fitted.epsilon}
    assert {fitted.run.delta, record["delta"], *(update.delta for update in told)} == {fitted.delta}
    train = next(entry for entry in fitted.record.ledger if entry["part"] == "train")
    assert train["cost"]["epsilon"] < 0.99  # the stages that were bought are not in it


@pytest.mark.parametrize("value", [5e-324, 1e308])
def test_no_number_raises_though_the_caller_lets_numpy_raise(value):
    records = numeric_frame(60)
    records.loc[0, ["signal", "outcome"]] = str(value)
    with np.errstate(all="raise"):
        fitted = fit_table(records, numeric_schema(), epsilon=1.0, delta=1e-5, size=60, epochs=1)
    assert fitted.metrics
