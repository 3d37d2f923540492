"""A fitted model is saved as data and loaded again: whatever trained it, it predicts the same."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import dpilot
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit.classifier import AutoClassifier
from dpilot.fit.expansion import features_of
from dpilot.fit.learners.networks import NetworkPredictor, build
from dpilot.fit.model import FittedModel
from dpilot.fit.regressor import AutoRegressor
from dpilot.fit.table import fit_table
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema
from tests.thin import thin

TOTAL = {"epsilon": 5.0, "delta": 1e-4}
BOUGHT = Schema.from_dict(
    {"columns": {**SCHEMA.to_dict()["columns"], "signal": {"type": "numeric", "bounds": "buy"}}}
)  # fmt: skip
FITS = {
    "auto, classes": (frame, SCHEMA, {"model": "auto", "epochs": 3}),
    "auto, bounds bought": (frame, BOUGHT, {"model": "auto", "epochs": 3}),
    "auto, numbers": (numeric_frame, numeric_schema(), {"model": "auto"}),
    "grids, classes": (frame, BOUGHT, {"model": "grids", "epochs": 3}),
    "grids, numbers": (numeric_frame, numeric_schema(), {"model": "grids", "epochs": 3}),
    "additive": (frame, SCHEMA, {"model": "additive", "epochs": 3, "size": 5_000}),
    "logistic": (frame, SCHEMA, {"model": "logistic", "epochs": 0.1}),
    "linear": (numeric_frame, numeric_schema(), {"model": "linear", "epochs": 0.1}),
    "mlp, classes": (frame, BOUGHT, {"model": "mlp", "epochs": 0.1}),
    "mlp, numbers": (numeric_frame, numeric_schema(), {"model": "mlp", "epochs": 0.1}),
}


LABELS = [["no", "yes"], [3, 7], [0.5, 1.5], [False, True]]


def same(one, other, records):
    assert isinstance(other, FittedModel)
    assert other.record == one.record
    assert other.schema == one.schema
    assert np.array_equal(other.outputs(records), one.outputs(records), equal_nan=True)
    assert other.predict(records).tolist() == one.predict(records).tolist()


@pytest.mark.parametrize("name", FITS)
def test_every_learner_predicts_the_same_when_it_is_loaded(name, tmp_path):
    made, schema, options = FITS[name]
    fitted = fit_table(made(120), schema, **TOTAL, **options)
    records = made(40)
    records.loc[3, "kind"] = "of no kind"
    records.loc[4, "signal"] = None
    again = dpilot.load(fitted.save(tmp_path / "run"))
    same(fitted, again, records)
    assert again.predict(records)[3] is None
    assert again.score_public(made(40)) == fitted.score_public(made(40))
    if fitted.task.numeric:
        with pytest.raises(InvalidInput, match="numeric"):
            again.predict_proba(records)
    else:
        assert np.array_equal(again.predict_proba(records), fitted.predict_proba(records), equal_nan=True)


def test_a_run_folder_holds_data_alone(tmp_path):
    where = fit_table(frame(120), SCHEMA, **TOTAL, epochs=3).save(tmp_path / "run")
    names = {"model.safetensors", "encoder.json", "schema.toml", "plan.json", "ledger.json", "ledger", "fit.json"}
    names |= {"statement.json"}
    assert {path.name for path in where.iterdir()} == names
    described = json.loads((where / "encoder.json").read_text())
    assert described["predictor"] == "head"
    assert described["labels"] is None


def test_a_folder_with_another_fit_is_not_written_over(tmp_path):
    one, other = (fit_table(frame(60), SCHEMA, **TOTAL, epochs=1) for _ in range(2))
    where = one.save(tmp_path / "run")
    one.save(where)
    with pytest.raises(InvalidInput, match="another fit"):
        other.save(where)
    same(one, dpilot.load(where), frame(10))


@pytest.mark.parametrize("broken", ["fit.json", "encoder.json", "schema.toml", "model.safetensors"])
def test_a_folder_that_lacks_something_is_refused(broken, tmp_path):
    where = fit_table(numeric_frame(60), numeric_schema(), **TOTAL).save(tmp_path / "run")
    (where / broken).unlink()
    with pytest.raises(InvalidInput):
        dpilot.load(where)


@pytest.mark.parametrize(
    ("columns", "labels"),
    [*((2, labels) for labels in LABELS), *thin(((70, labels) for labels in LABELS), len(LABELS))],
    ids=str,
)
def test_arrays_and_their_labels_are_saved(labels, columns, tmp_path):
    X = np.random.default_rng(0).normal(size=(100, columns))
    y = np.asarray(labels)[(X[:, 0] > 0).astype(int)]
    model = AutoClassifier(**TOTAL, classes=labels, epochs=2).fit(X, y)
    again = dpilot.load(model.save(tmp_path / "run"))
    same(model.fitted_, again, X)
    assert again.predict(X).tolist() == model.predict(X).tolist()
    assert {type(each) for each in again.predict(X)} == {type(labels[0])}


def test_one_class_alone_is_saved(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = AutoClassifier(**TOTAL, classes=["only"], epochs=2).fit(X, np.full(60, "only"))
    assert set(dpilot.load(model.save(tmp_path / "run")).predict(X)) == {"only"}


@pytest.mark.parametrize("columns", [2, 70])
def test_a_regression_of_an_array_is_saved(columns, tmp_path):
    X = np.random.default_rng(0).normal(size=(100, columns))
    model = AutoRegressor(**TOTAL).fit(X, X[:, 0])
    again = dpilot.load(model.save(tmp_path / "run"))
    same(model.fitted_, again, X)
    assert np.array_equal(again.predict(X).astype(float), model.predict(X))


def test_a_regression_of_a_frame_is_saved(tmp_path):
    records = numeric_frame(100)
    y = records.pop("outcome").astype(float)
    model = AutoRegressor(**TOTAL, schema=numeric_schema()).fit(records, y)
    again = dpilot.load(model.save(tmp_path / "run"))
    assert np.array_equal(again.predict(records).astype(float), model.predict(records))


@pytest.mark.parametrize("model", ["auto", "logistic"])
def test_a_table_of_more_than_64_numbers_is_saved(model, tmp_path):
    columns = {f"x{place}": {"type": "numeric", "bounds": [0, 1]} for place in range(65)}
    target = {"type": "categorical", "categories": ["no", "yes"], "role": "target"}
    wide = Schema.from_dict({"columns": {**columns, "y": target}})
    records = pd.DataFrame({**{name: np.linspace(0, 1, 50) for name in columns}, "y": ["no", "yes"] * 25})
    epochs = 1 if model == "auto" else 0.1
    fitted = fit_table(records, wide, **TOTAL, epochs=epochs, model=model, run_folder=tmp_path / "run")
    same(fitted, dpilot.load(tmp_path / "run"), records)


def test_a_ledger_that_was_given_stays_where_it_is(tmp_path):
    fitted = fit_table(frame(60), SCHEMA, **TOTAL, epochs=1, ledger=tmp_path / "book")
    where = fitted.save(tmp_path / "run")
    assert not (where / "ledger").exists()
    assert len(json.loads((where / "ledger.json").read_text())) == len(fitted.record.ledger)


@pytest.mark.parametrize("layers", ["linear", "mlp"])
@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_what_a_network_says_of_a_record_is_the_same_wherever_it_stands(layers, outputs):
    """Held-out records are counted by it: in float32 equal rows had up to four different outputs."""
    numeric = {f"x{place}": {"type": "numeric", "bounds": [-1, 1], "missing": "null"} for place in range(9)}
    rows = features_of(Schema.from_dict({"columns": numeric}))
    module = build(layers, rows.width, outputs)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    record = np.random.default_rng(0).uniform(-1, 1, size=(1, 9)).astype(np.float32)
    found = NetworkPredictor(module, rows, None).outputs(record.repeat(1100, 0))
    assert len(np.unique(found, axis=0)) == 1
    assert found[0] == pytest.approx(module(torch.from_numpy(rows.widen(record)))[0].tolist(), abs=1e-4)
