"""Texts through the one pipeline: sentence encoders and fine-tuning, texts without a schema, vectors beside a table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpilot
from dpilot import AutoClassifier, Schema
from dpilot.cli.main import main
from dpilot.data.files import Table
from dpilot.data.sentences import shared_encoder
from dpilot.errors import InvalidInput
from dpilot.fit.arrays import class_schema
from dpilot.fit.declaration import declare_fit
from dpilot.fit.pipeline import plan_fit
from dpilot.fit.rehearsal import rehearse
from dpilot.fit.table import fit_table
from tests.contracts.test_readers import unmoved
from tests.encoders import save_encoder

SIZE = 600


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("encoder"))


def reviews(size: int = SIZE, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    good = rng.random(size) > 0.5
    words = np.array(["good", "fine", "great", "film", "poor", "dull", "bad"])
    return pd.DataFrame(
        {
            "review": [" ".join(rng.choice(words[:4] if each else words[3:], 6)) for each in good],
            "title": rng.choice(words, size),
            "stars": rng.integers(1, 6, size),
            "label": np.where(good, "pos", "neg"),
        }
    )


def schema(folder: Path, **more: Any) -> Schema:
    text = {"type": "text", "encoder": str(folder), "length": 16, **more}
    columns = {
        "review": text,
        "title": {"type": "text", "features": 32},
        "stars": {"type": "numeric", "bounds": [1, 5]},
        "label": {"type": "categorical", "categories": ["neg", "pos"], "role": "target"},
    }
    return Schema.from_dict({"columns": columns})


def only_reviews(folder: Path) -> Schema:
    declared = schema(folder).to_dict()["columns"]
    return Schema.from_dict({"columns": {name: declared[name] for name in ("review", "label")}})


def test_a_sentence_encoder_stands_beside_other_columns_and_is_kept_by_its_fingerprint(
    encoder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    table = reviews()
    model = fit_table(table, schema(folder), epsilon=3.0, delta=1e-5, test_seed=0)
    right = np.mean(model.predict(table) == table["label"])
    assert right > 0.85
    assert "a sentence encoder" in " ".join(model.record.decisions)
    saved = model.save(tmp_path / "run")
    assert not any(path.stat().st_size > 100_000 for path in saved.iterdir())
    assert np.array_equal(dpilot.load(saved).predict(table), model.predict(table))
    save_encoder(folder, seed=1)
    shared_encoder.cache_clear()  # as in a new process
    again = dpilot.load(saved)
    with pytest.raises(InvalidInput, match=r"has the fingerprint .* expected .* fitted with"):
        again.predict(table.head(3))
    shutil.rmtree(folder)
    with pytest.raises(InvalidInput, match=r"there is no config\.json"):
        dpilot.load(saved).predict(table.head(3))


def test_an_encoder_that_does_not_run_is_refused_before_anything_is_paid(encoder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    (broken / "model.safetensors").unlink()
    for declared in (schema(broken), schema(encoder, length=100)):
        with pytest.raises(InvalidInput, match=r"cannot be loaded|does not read a made-up text"):
            fit_table(reviews(), declared, epsilon=1.0, delta=1e-5, run_folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


ODD = ["good film " * 5_000, "\ud800", "a\0b", None, ["x"]]


@pytest.mark.parametrize("odd", ODD, ids=["long", "half a character", "NUL", "missing", "a list"])
def test_a_text_moves_an_encoded_table_only_by_its_own_record(encoder: Path, odd: Any) -> None:
    def run(table: Any) -> Any:
        made = AutoClassifier(epsilon=5.0, size=100, schema=only_reviews(encoder)).fit(table)
        return made.coef_, list(made.metrics_)

    base = {name: reviews(100)[name].to_numpy(dtype=object) for name in ("review", "label")}
    more = {name: np.fromiter([*base[name], odd if name == "review" else "pos"], dtype=object) for name in base}
    unmoved(run, base, more)


def test_a_rehearsal_reads_few_texts_by_an_encoder(encoder: Path) -> None:
    declared, _ = declare_fit(reviews(50), schema(encoder), epsilon=1.0, delta=1e-5, size=1000)
    assert rehearse(plan_fit(declared, "basic")).features == 8 + 1 + 32 + 1 + 2


# fine-tuning


@pytest.mark.slow
def test_a_fine_tuned_encoder_goes_through_the_pipeline(encoder: Path, tmp_path: Path) -> None:
    table = reviews(400)[["review", "label"]]
    how: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "model": "finetune", "epochs": 3.0, "test_seed": 0}
    model = fit_table(table, only_reviews(encoder), **how, run_folder=tmp_path / "run")
    assert np.mean(model.predict(table) == table["label"]) > 0.6
    assert {entry["purpose"].split(" of ")[0] for entry in model.record.ledger} == {
        "health", "training", "held-out metrics"
    }  # fmt: skip
    assert {"accuracy", "recall"} <= {metric.name for metric in model.metrics}
    from safetensors.torch import load_file

    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert all("lora" in name or "head" in name for name in kept)
    loaded = dpilot.load(tmp_path / "run")
    assert np.array_equal(loaded.predict_proba(table), model.predict_proba(table))
    odd = pd.DataFrame({"review": pd.Series([None, b"\xff", "good film", "good " * 500], dtype=object)})
    assert [each is None for each in loaded.predict(odd)] == [False, True, False, False]
    alone = loaded.predict_proba(odd.iloc[2:3])
    assert np.array_equal(alone, loaded.predict_proba(odd)[2:3])


def test_fine_tuning_moves_only_by_the_record_that_is_added(encoder: Path) -> None:
    def run(table: Any) -> Any:
        made = fit_table(table, only_reviews(encoder), epsilon=5.0, delta=1e-5, size=60, epochs=0.5, model="finetune")
        return made.predictor.state()[1], made.metrics

    base = {name: reviews(60)[name].to_numpy(dtype=object) for name in ("review", "label")}
    for odd in ("good " * 400, ["x"]):
        more = {name: np.fromiter([*base[name], odd if name == "review" else "pos"], dtype=object) for name in base}
        unmoved(run, base, more)


def test_fine_tuning_asks_for_one_text_with_an_encoder(encoder: Path) -> None:
    hashed = schema(encoder).to_dict()
    del hashed["columns"]["review"], hashed["columns"]["stars"]
    hashed["defaults"] = {"others": "ignored"}
    for declared in (schema(encoder), Schema.from_dict(hashed)):
        with pytest.raises(InvalidInput, match=r'expected one column of type = "text" with encoder'):
            fit_table(reviews(50), declared, epsilon=1.0, delta=1e-5, model="finetune")
    with pytest.raises(InvalidInput, match=r"model is 'finetune' and X are images"):
        AutoClassifier(model="finetune", classes=[0, 1]).fit(np.zeros((4, 8, 8)), [0, 1, 0, 1])


# without a schema


def test_an_estimator_takes_texts_without_a_schema(encoder: Path, tmp_path: Path) -> None:
    table = reviews(1000)
    X, y = table.drop(columns="label"), table["label"]
    with pytest.raises(InvalidInput, match=r'AutoClassifier\(text=\["review"\]\)'):
        AutoClassifier(classes=["neg", "pos"]).fit(X, y)
    model = AutoClassifier(epsilon=3.0, delta=1e-5, classes=["neg", "pos"], text=["review", "title"]).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.feature_names_in_.tolist() == ["review", "title", "stars"]
    loaded = dpilot.load(model.save(tmp_path / "run"))
    assert np.array_equal(loaded.predict(X), model.predict(X))
    read = AutoClassifier(epsilon=3.0, delta=1e-5, classes=["neg", "pos"], text={"review": str(encoder)}, model="auto")
    with pytest.raises(InvalidInput, match=r"does not read a made-up text of 256 tokens"):
        read.fit(X[["review"]], y)
    with pytest.raises(InvalidInput, match="text is 'reviw': expected a column"):
        AutoClassifier(classes=["neg", "pos"], text="reviw").fit(X, y)
    with pytest.raises(InvalidInput, match="title is a column of text: expected numbers"):
        AutoClassifier(classes=["neg", "pos"], text="review").fit(X, y)


def test_the_command_line_takes_texts_without_a_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = reviews(1000)
    table.to_csv("reviews.csv", index=False)
    base = ["fit", "reviews.csv", "--target", "label", "--epsilon", "3"]
    assert main(base) == 2
    assert "--text COLUMN --target COLUMN --classes" in capsys.readouterr().err
    assert main([*base, "--text", "review"]) == 2
    assert main([*base, "--text", "review", "--classes", "neg,pos", "--out", "run", "--json"]) == 0
    capsys.readouterr()
    assert main(["predict", "run", "reviews.csv", "--out", "found.csv", "--public", "--json"]) == 0
    figures = {each["name"]: each["value"] for each in json.loads(capsys.readouterr().out)["metrics"]}
    assert figures["accuracy"] > 0.9


def test_many_columns_whose_bounds_are_bought_are_told_of_vectors() -> None:
    for columns, told in ((100, False), (101, True)):
        schema = class_schema([f"x{place}" for place in range(columns)], 2)
        table = {name: [0.0] for name in schema.columns}
        reasons = plan_fit(declare_fit(table, schema, epsilon=3.0, size=1000)[0], "basic").purchases.reasons
        assert any('rows="unit"' in each for each in reasons) == told


# vectors beside a table


def vector_schema(**more: Any) -> Schema:
    vector = {"type": "vector", "width": 5, "file": "{table}.npy", **more}
    target = {"type": "categorical", "categories": ["neg", "pos"], "role": "target"}
    return Schema.from_dict({"columns": {"v": vector, "label": target}, "defaults": {"others": "ignored"}})


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_vectors_lie_in_a_file_beside_the_table(ending: str, tmp_path: Path) -> None:
    table = reviews(1200)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1200, 5)).astype(np.float32)
    rows[:, 0] += np.where(table["label"] == "pos", 2, -2)
    rows[7, 2] = np.nan
    path = tmp_path / f"t.{ending}"
    table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
    np.save(tmp_path / "t.npy", rows)
    model = fit_table(path, vector_schema(), epsilon=3.0, delta=1e-5, test_seed=0)
    inside = fit_table({"v": rows, "label": table["label"]}, vector_schema(), epsilon=3.0, delta=1e-5, test_seed=0)
    assert np.array_equal(model.predictor.state()[1]["weights"], inside.predictor.state()[1]["weights"])
    whole = np.concatenate([model.predict(each) for each in Table.open(path, vector_schema()).frames(500)])
    assert whole[7] is None
    assert np.mean(whole == table["label"]) > 0.9


def test_a_range_of_columns_is_fitted_saved_and_predicted_as_the_rows_it_holds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1200, 5))
    label = np.where(rows[:, 0] > 0, "pos", "neg")
    rows[7, 2] = np.nan
    table = pd.DataFrame(rows, columns=[f"e{place}" for place in range(5)]).assign(label=label)
    table.to_csv(tmp_path / "t.csv", index=False)
    target = {"type": "categorical", "categories": ["neg", "pos"], "role": "target"}
    schema = Schema.from_dict({"columns": {"v": {"type": "vector", "columns": "e0..e4"}, "label": target}})
    how = {"epsilon": 3.0, "delta": 1e-5, "test_seed": 0}
    model = fit_table(tmp_path / "t.csv", schema, **how)
    inside = fit_table({"v": rows, "label": label}, vector_schema(file=None), **how)
    weights = model.predictor.state()[1]["weights"]
    assert np.array_equal(weights, inside.predictor.state()[1]["weights"])
    model.save(tmp_path / "run")
    found = dpilot.load(tmp_path / "run").predict(table.iloc[:, ::-1])
    assert found[7] is None
    assert np.mean(found == label) > 0.9
    age = {"type": "numeric", "bounds": [0, 1]}  # beside other columns, whose effect is told
    schema = Schema.from_dict({"columns": {"v": {"type": "vector", "columns": "e0..e4"}, "age": age, "label": target}})
    table["age"] = rng.random(1200)
    fitted = AutoClassifier(epsilon=3.0, schema=schema).fit(table.drop(columns="label"), label)
    assert [each.column for each in fitted.record_.influences] == ["age"]
    assert fitted.predict(table.drop(columns="label")).shape == (1200,)
    plan = plan_fit(declare_fit(table, schema, epsilon=3.0, delta=1e-5)[0], "basic")
    assert rehearse(plan).features == 8


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (np.ones((9, 5)), "rows of 5 numbers, or not as many rows"),
        (np.ones((10, 4)), "rows of 4 numbers"),
        (np.ones(10), "no rows of numbers"),
        (np.full((10, 5), "x"), "no rows of numbers"),
        (np.full((10, 5), None), "no whole array of numbers"),
        (None, "expected a readable .npy file"),
    ],
)
def test_an_array_of_another_form_is_a_fact_of_the_files(made: Any, message: str, tmp_path: Path) -> None:
    reviews(10).to_csv(tmp_path / "t.csv", index=False)
    if made is not None:
        np.save(tmp_path / "t.npy", made, allow_pickle=True)
    with pytest.raises(InvalidInput, match=message):
        fit_table(tmp_path / "t.csv", vector_schema(), epsilon=1.0, delta=1e-5, run_folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidInput, match=r"file is 'x\.csv'"):
        vector_schema(file="x.csv")
