"""Tables of texts, vectors, dates and many categories, from a schema to predictions, through every entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpilot
from dpilot import AutoClassifier, AutoRegressor, Schema
from dpilot.cli.main import main
from dpilot.errors import InvalidInput
from dpilot.fit.declaration import declare_fit
from dpilot.fit.expansion import features_of
from dpilot.fit.pipeline import plan_fit
from dpilot.fit.rehearsal import rehearse
from dpilot.fit.table import fit_table

SIZE = 3000
SCHEMA = """
[columns.review]
type = "text"
features = 128
length = 60
[columns.title]
type = "text"
features = 32
length = 60
[columns.embedding]
type = "vector"
width = 8
[columns.age]
type = "numeric"
bounds = [0, 100]
[columns.bought]
type = "date"
range = ["2020-01-01", "2022-01-01"]
[columns.seen]
type = "datetime"
range = ["2020-01-01", "2022-01-01"]
[columns.city]
type = "categorical"
levels = "hash:32"
[columns.member]
type = "boolean"
[columns.size]
type = "categorical"
categories = ["S", "M", "L"]
ordered = true
[columns.good]
type = "boolean"
role = "target"
"""
DECLARED = Schema.parse(SCHEMA)


def frame(size: int = SIZE) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    good = rng.random(size) > 0.5
    words = np.array(["fine", "great", "lovely", "film", "poor", "dull", "awful"])
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, size), unit="D")
    return pd.DataFrame(
        {
            "review": [" ".join(rng.choice(words[:4] if each else words[3:], 5)) for each in good],
            "title": rng.choice(words, size),
            "embedding": [[round(x, 3) for x in row] for row in rng.normal(size=(size, 8)).tolist()],
            "age": rng.uniform(0, 100, size).round(1),
            "bought": days.strftime("%Y-%m-%d"),
            "seen": days + pd.to_timedelta(rng.integers(0, 86_400, size), unit="s"),
            "city": [f"city {each}" for each in rng.integers(500, size=size)],
            "member": rng.random(size) > 0.5,
            "size": rng.choice(["S", "M", "L"], size),
            "good": np.where(good, "yes", "no"),
        }
    )


def is_right(predicted: Any, table: pd.DataFrame) -> float:
    return float(np.mean(predicted == np.where(table["good"] == "yes", "True", "False")))


def test_a_frame_of_every_type_is_learnt_saved_and_loaded(tmp_path: Path) -> None:
    table = frame()
    model = AutoClassifier(epsilon=2.0, delta=1e-5, schema=DECLARED, random_state=0)
    with pytest.warns(UserWarning, match=r"random_state|ledger"):
        model.fit(table.drop(columns="good"), table["good"])
    assert model.score(table, table["good"]) > 0.9
    assert is_right(model.predict(table), table) > 0.9
    loaded = dpilot.load(model.save(tmp_path / "run"))
    assert np.array_equal(loaded.predict(table), model.predict(table))
    assert loaded.schema == DECLARED
    odd = table.head(4).assign(review=pd.Series(["", None, "x" * 30_000, "\ud800"], dtype=object))
    assert [each is None for each in loaded.predict(odd)] == [False, False, False, True]
    assert "texts as hashed words" in " ".join(model.record().decisions)


@pytest.mark.slow
def test_the_command_line_fits_and_predicts_csv_and_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = frame(1500)
    Path("schema.toml").write_text(SCHEMA)
    table.to_csv("table.csv", index=False)
    table.to_parquet("table.parquet")
    assert main(["schema", "check", "schema.toml", "--public-sample", "table.csv"]) == 0
    assert main(["fit", "table.csv", "--schema", "schema.toml", "--epsilon", "3", "--delta", "1e-5", "--dry-run"]) == 0
    for data in ("table.csv", "table.parquet"):
        run = f"run_{data[-3:]}"
        how = ["--schema", "schema.toml", "--epsilon", "3", "--delta", "1e-5", "--out", run, "--total", "9"]
        assert main(["fit", data, *how, "--ledger", f"{data}.ledger"]) == 0
        capsys.readouterr()
        assert main(["predict", run, data, "--out", "found.csv", "--public", "--json"]) == 0
        figures = {each["name"]: each["value"] for each in json.loads(capsys.readouterr().out)["metrics"]}
        assert figures["accuracy"] > 0.9
        assert is_right(pd.read_csv("found.csv")["good"].astype(str), table) > 0.9


def test_a_network_and_a_regression_take_every_type() -> None:
    table = frame(800)
    made = fit_table(table, DECLARED, epsilon=3.0, delta=1e-5, model="logistic", epochs=2, test_seed=0)
    assert is_right(made.predict(table), table) > 0.6
    numbers = Schema({name: column for name, column in DECLARED.columns.items() if name != "good"})
    with pytest.warns(UserWarning, match=r"random_state|ledger"):
        found = AutoRegressor(epsilon=3.0, delta=1e-5, schema=numbers, random_state=0).fit(
            table.drop(columns="good"), table["age"]
        )
    assert np.isfinite(found.predict(table.drop(columns="good"))).all()


@pytest.mark.slow
def test_a_rehearsal_makes_up_records_of_every_type() -> None:
    declared, _ = declare_fit(frame(50), DECLARED, epsilon=1.0, delta=1e-5, size=1000)
    assert rehearse(plan_fit(declared, "basic")).features == features_of(DECLARED.inputs_only()).encoder.width


def test_texts_and_vectors_weigh_as_much_as_the_other_columns_together() -> None:
    wide = features_of(DECLARED.inputs_only())
    rows = wide.widen(wide.encoder.encode_features(frame(20)))
    assert rows.shape[1] == wide.width
    lengths = np.linalg.norm(rows, axis=1)
    for name in ("review", "title", "embedding"):
        part = np.linalg.norm(rows[:, wide.encoder.places[name]], axis=1)
        assert np.allclose(part**2, 6)
    assert (lengths**2 < 2 * wide.mean_square).all()
    text = Schema.from_dict({"columns": {"review": {"type": "text", "features": 16}}})
    alone = features_of(text)
    assert alone.width == 18  # the missing one, and a constant
    assert alone.widen(alone.encoder.encode_features({"review": ["good film"]}))[0, -1] == np.float32(0.3)


# rows of unit length


def test_wide_rows_of_unit_length_buy_no_bounds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(SIZE, 40)) * rng.uniform(0.1, 1e3, size=(SIZE, 1))
    y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
    model = AutoClassifier(epsilon=2.0, delta=1e-5, classes=["no", "yes"], rows="unit", random_state=0)
    with pytest.warns(UserWarning, match=r"random_state|ledger"):
        model.fit(X, y)
    assert model.score(X, y) > 0.85
    assert "bounds" not in {entry.purpose for entry in model.privacy_.entries}
    loaded = dpilot.load(model.save(tmp_path / "run"))
    assert np.array_equal(loaded.predict(X), model.predict(X))
    assert np.array_equal(model.predict(1000 * X), model.predict(X))
    assert model.predict_proba([[np.nan] * 40]).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("given", [{"rows": "long"}, {"rows": "unit", "schema": DECLARED}])
def test_rows_are_unit_rows_of_numbers_alone(given: dict[str, Any]) -> None:
    classes = {} if "schema" in given else {"classes": [0, 1]}
    with pytest.raises(InvalidInput, match="rows is"):
        AutoClassifier(**given, **classes).fit(np.ones((10, 2)), np.zeros(10))
