"""Texts through the one pipeline: sentence encoders and fine-tuning, texts without a schema, vectors beside a table."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpilot
from dpilot import AutoClassifier, Schema
from dpilot.data.sentences import shared_encoder
from dpilot.errors import InvalidInput
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
        return made.coef_, dict(made.metrics_)

    base = {name: reviews(100)[name].to_numpy(dtype=object) for name in ("review", "label")}
    more = {name: np.fromiter([*base[name], odd if name == "review" else "pos"], dtype=object) for name in base}
    unmoved(run, base, more)


def test_a_rehearsal_reads_few_texts_by_an_encoder(encoder: Path) -> None:
    declared, _ = declare_fit(reviews(50), schema(encoder), epsilon=1.0, delta=1e-5, size=1000)
    assert rehearse(plan_fit(declared, "basic")).features == 8 + 1 + 32 + 1 + 2
