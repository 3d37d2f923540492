"""Pictures through the one pipeline: folders, tables with names of files, frames; units, resume, predictions."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import dpilot
from dpilot import AutoClassifier, Ledger
from dpilot.audit.neighbours import Pair
from dpilot.cli.main import main
from dpilot.data import folders
from dpilot.data.files import Table
from dpilot.data.folders import declare_folder
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit import pipeline
from dpilot.fit.embeddings import embeddings_of, encoder_of
from dpilot.fit.table import fit_table
from dpilot.transfer.scattering import scatter
from tests.data.pictures import SIDE, encoded, folder_of, pixels, put_odd
from tests.thin import thin

pytestmark = pytest.mark.filterwarnings("ignore::dpilot.errors.PrivacyWarning")

EACH = 60
QUICK = {"epsilon": 8.0, "delta": 1e-5, "epochs": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("data") / "pics", EACH)


def schema_of(where, **more) -> Schema:
    columns = declare_folder(where, ["dark", "bright"])
    return Schema.from_dict(
        {"columns": {**columns, "picture": {"type": "image", "size": [SIDE, SIDE], "folder": ".", **more}}}
    )


def listed(folder) -> pd.DataFrame:
    """The same pictures as a table of names and classes, two of a patient."""
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*.png"))
    frame = pd.DataFrame({"picture": names, "class": [name.split("/")[0] for name in names]})
    return frame.assign(patient_id=[f"p{number // 2}" for number in range(len(names))])


def test_a_folder_needs_no_schema_and_says_that_its_classes_are_published(folder, tmp_path, monkeypatch, capsys):
    shutil.copytree(folder, tmp_path / "pics")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(folders._PICTURE, "size", [SIDE, SIDE])
    assert main(["fit", "pics", "--epsilon", "8", "--out", "run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert "the names of the class folders, which are the classes" in said["unprotected"]
    assert said["epsilon"] <= 8.0
    assert (tmp_path / "pics.ledger").exists()
    put_odd(tmp_path / "pics" / "dark", tmp_path / "elsewhere")
    capsys.readouterr()
    assert main(["predict", "run", "pics", "--out", "found.csv"]) == 0
    found = pd.read_csv("found.csv", index_col="picture")
    good = found.loc[[name for name in found.index if "/0" in name]]
    assert (good["class"] == good.index.str.split("/").str[0]).mean() > 0.9
    assert found["class"].isna()["dark/out.png"]
    assert found["probability dark"].isna().sum() == found["class"].isna().sum() == 14
    arguments = ["--epsilon", "1", "--classes", "dark,bright", "--dry-run", "--json"]
    assert main(["fit", "pics", *arguments]) == 0
    assert main(["fit", "pics", "--schema", "run/schema.toml", *arguments]) == 2
    assert main(["schema", "init", "pics", "--output", "pics.toml"]) == 0
    assert Schema.load("pics.toml") == Schema.load("run/schema.toml")


def test_classes_that_are_declared_are_not_published(folder, tmp_path, capsys):
    made = fit_table(folder, schema_of(folder), **QUICK)
    assert not any("class folders" in each for each in made.record.unprotected)


def test_pictures_of_another_mode_stop_the_fit_at_its_health_check(folder):
    with pytest.raises(dpilot.fit.pipeline.FitStopped, match="of another mode"):
        fit_table(folder, schema_of(folder, mode="L"), **QUICK)


def test_features_are_those_of_the_array_path(folder):
    schema = schema_of(folder, missing="null")
    (frame,) = Table.open(folder, schema).frames()
    rows = encoder_of(schema).encode_features(frame)
    numbers = [int(file.name[-8:-4]) for file in frame["picture"]]
    made = [pixels(2 * number + (place < EACH), bright=place < EACH) for place, number in enumerate(numbers)]
    expected = scatter(np.array(made).transpose(0, 3, 1, 2), white=255.0).numpy()
    assert np.array_equal(rows, expected)


def test_features_are_made_on_the_gpu_where_there_is_one(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = [embeddings_of(schema_of(folder), device)["picture"].device for device in (None, "cpu")]
    assert found == ["cuda", "cpu"]


def test_a_frame_with_names_of_files_and_units_is_fitted_saved_and_loaded(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    data = listed(folder)
    model = AutoClassifier(**QUICK, schema=schema_of(folder), unit="patient_id", rows_per_unit=2).fit(data)
    assert model.privacy_.unit.name == "patient_id"
    assert model.health_.usable.value > 0.7
    assert np.mean(model.predict(data) == data["class"]) > 0.9
    back = dpilot.load(model.save(tmp_path / "run"))
    assert np.array_equal(back.predict(data), model.predict(data))


def test_an_interrupted_fit_of_a_folder_goes_on_to_the_same_model_for_the_same_price(folder, tmp_path, monkeypatch):
    how = {**QUICK, "run_folder": tmp_path / "run", "ledger": tmp_path / "a.ledger", "test_seed": 1}
    whole = fit_table(folder, schema_of(folder), **{**how, "run_folder": None, "ledger": tmp_path / "b.ledger"})
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "softmax", lambda *_: pytest.fail("interrupted"))
        with pytest.raises(pytest.fail.Exception):
            fit_table(folder, schema_of(folder), **how)
    spent = Ledger.read(tmp_path / "a.ledger").spent()
    resumed = fit_table(folder, schema_of(folder), **how, resume=True)
    assert Ledger.read(tmp_path / "a.ledger").spent() == spent
    again, expected = (each.predictor.state()[1]["weights"] for each in (resumed, whole))
    assert again.equal(expected)


def test_how_many_were_read_is_told_only_where_it_is_public(folder, tmp_path):
    told = []
    for size, unit in (("public", None), (120, None), ("private", None), ("public", "patient_id")):
        path = folder.parent / "table.csv"
        listed(folder).to_csv(path, index=False)
        schema = Schema.from_dict(
            {**schema_of(folder, folder="pics").to_dict(), "defaults": {"others": "ignored"}},
        )
        fit_table(path, schema, **QUICK, size=size, unit=unit, reading=lambda *counts: told.append(counts))
    assert told == [(2 * EACH, 2 * EACH)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"size": [9, 8]}, "multiples of 4"),
        ({"size": [256, 256]}, "at most 65,536"),
        ({"backbone": "resnet-21"}, "column 'picture': backbone is 'resnet-21'"),
        ({"backbone": "minilm"}, "backbone is 'minilm'"),
        ({"backbone": "resnet-20", "mode": "L"}, 'mode is "L"'),
    ],
)
def test_what_no_backbone_can_read_is_told_before_anything_is_spent(folder, tmp_path, more, said):
    with pytest.raises(InvalidInput, match=said):
        fit_table(folder, schema_of(folder, **more), **QUICK, ledger=tmp_path / "a.ledger")
    assert not (tmp_path / "a.ledger").exists()


def test_a_backbone_by_path_is_an_image_model_as_transformers_saves_it(folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4
    )
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "vit")
    schema = schema_of(folder, backbone=str(tmp_path / "vit"))
    made = fit_table(folder, schema, **QUICK)
    (frame,) = Table.open(folder, schema.inputs_only()).frames()
    assert made.predictor.state()[1]["weights"].shape == (10, 2)  # eight, whether it is missing, and a constant
    again = dpilot.load(made.save(tmp_path / "run"))
    assert np.array_equal(again.predict_proba(frame), made.predict_proba(frame))
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidInput, match=r"config\.json"):
        fit_table(folder, schema_of(folder, backbone=str(tmp_path / "none")), **QUICK)


ODD = (
    "a bomb", "cut short", "grey", "a folder", "a link outside", "a pipe", "above the folder", "empty", "no picture",
    "bytes changed", "with alpha", "a device", "an absolute path", "a zero byte", "half a character", "a long name",
)  # fmt: skip


@pytest.mark.parametrize("what", thin(ODD, 3))
def test_a_picture_of_another_kind_moves_only_sums(replay, folder, tmp_path, what):
    shutil.copytree(folder, tmp_path / "pics")
    name = put_odd(tmp_path / "pics" / "dark", tmp_path / "elsewhere")[what]
    base = {column: list(values) for column, values in listed(folder)[["picture", "class"]].items()}
    more = {"picture": [*base["picture"], name if name.startswith("/") else f"dark/{name}"]}
    run = released(schema_of(folder, folder=str(tmp_path / "pics")))
    replay(run, pairs=[Pair(what, base, {**more, "class": [*base["class"], "dark"]})])


@pytest.mark.parametrize("content", thin([b"", encoded(pixels(1)), encoded(pixels(0))[:90]], 1))
def test_a_file_more_in_a_folder_moves_only_sums(replay, folder, tmp_path, content):
    shutil.copytree(folder, tmp_path / "pics")
    (tmp_path / "pics" / "dark" / "zz.png").write_bytes(content)
    replay(released(schema_of(folder, folder=None)), pairs=[Pair("a file", folder, tmp_path / "pics")])


def released(schema):
    def run(data):
        made = fit_table(data, schema, **QUICK, size=2 * EACH, stop_below=0.0)
        return made.record.metrics, made.record.plan, made.health, made.predictor.state()

    return run
