"""Classes that nobody declared, bought by a fit: of tables, of folders of pictures, and what one record changes."""

from __future__ import annotations

import json
import os
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpilot
from dpilot import AutoClassifier, AutoRegressor, Budget, Ledger
from dpilot.audit.neighbours import Pair
from dpilot.cli.main import main
from dpilot.data import folders
from dpilot.data.cells import objects
from dpilot.data.column_types import type_of
from dpilot.data.folders import folder_schema
from dpilot.data.reading import codes
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit import pipeline
from dpilot.fit.pipeline import FitStopped
from dpilot.fit.table import fit_table
from tests.data.pictures import SIDE, encoded, folder_of, pixels
from tests.fit.helpers import SCHEMA, frame
from tests.fit.test_replay import GOOD, OPAQUE, run
from tests.thin import thin

pytestmark = pytest.mark.filterwarnings("ignore::dpilot.errors.PrivacyWarning")

QUICK = {"epsilon": 20.0, "delta": 1e-3, "epochs": 0.1}
TARGET = {"type": "categorical", "levels": "buy", "role": "target"}
BUYING = Schema.from_dict({"columns": {**SCHEMA.to_dict()["columns"], "outcome": TARGET}})
ODD = {
    "one class more": "maybe",
    "no text that a file holds": "\udcff",
    "missing": "",
    "a float nan": np.nan,
    "inf": "inf",
    "a list": ["yes"],
    "a huge text": "x" * 1_000_000,
    "a huge number": 2**60,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes, one of a single picture, one that no UTF-8 names."""
    root = folder_of(tmp_path_factory.mktemp("data") / "pics", 60)
    for name in (b"alone", b"no utf-8 \xff"):
        where = os.path.join(os.fsencode(root), name)
        os.mkdir(where)
        with open(os.path.join(where, b"0.png"), "wb") as file:
            file.write(encoded(pixels(7)))
    return root


def test_they_are_those_of_many_records_and_their_price_is_part_of_the_budget(tmp_path):
    data = frame().assign(outcome=lambda table: ["alone", *table["outcome"][1:]])
    book = Ledger.open(tmp_path / "a.ledger", dataset="a", budget=Budget(20.0, 1e-3))
    made = fit_table(data, BUYING, **QUICK, ledger=book, size="private")
    assert made.schema.target.categories == ("no", "yes")
    first, *others = made.record.ledger
    assert first["purpose"].startswith("classes of fit ")
    assert first["cost"]["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert made.epsilon == 20.0
    assert book.spent().epsilon <= 20.0
    assert book.spent().delta <= 1e-3
    assert first["cost"]["epsilon"] + sum(each["cost"]["epsilon"] for each in others if not each["part"]) < 20.0
    assert any("buys the classes" in each and "no, yes" in each for each in made.record.decisions)
    assert not any("class" in each for each in made.record.unprotected)
    assert dpilot.load(made.save(tmp_path / "run")).schema == made.schema


def test_a_fit_of_a_folder_reads_no_listing(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setitem(folders._PICTURE, "size", [SIDE, SIDE])
    words = ["fit", "pics", "--classes", "buy", "--size", "private", "--epsilon", "20", "--delta", "1e-3"]
    words += ["--epochs", "0.1"]
    assert main([*words, "--dry-run", "--json"]) == 0
    rehearsed = json.loads(capsys.readouterr().out)
    assert (rehearsed["epsilon"], rehearsed["stages"][0]["purpose"]) == (20.0, "classes")
    assert any("two are reckoned with" in each for each in rehearsed["reasons"])
    assert main([*words, "--out", str(tmp_path / "run"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["unprotected"] == ["running time and memory"]
    assert said["ledger"]["spent"]["epsilon"] <= 20.0
    assert dpilot.load(tmp_path / "run").classes == ("bright", "dark")
    assert main(["verify", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The purchase of the classes is paid first" in page


def test_names_of_files_in_a_csv_file(folder, tmp_path):
    names = [f"{kind}/{number:04}.png" for kind in ("dark", "bright") for number in range(60)]
    table = pd.DataFrame({"file": names, "kind": [name.split("/")[0] for name in names]})
    table.to_csv(folder / "table.csv", index=False)
    picture = {"type": "image", "size": [SIDE, SIDE]}
    schema = Schema.from_dict({"columns": {"file": picture, "kind": TARGET}})
    assert fit_table(folder / "table.csv", schema, **QUICK, size="private").classes == ("bright", "dark")


def test_fewer_than_two_stop_the_fit_before_anything_else_is_paid(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame(40).to_csv("few.csv", index=False)
    (tmp_path / "few.toml").write_text(BUYING.to_toml())
    words = ["fit", "few.csv", "--schema", "few.toml", "--epsilon", "1", "--delta", "1e-5", "--json"]
    assert main(words) == 4
    said = json.loads(capsys.readouterr().out)
    assert (said["stopped"], said["health"]) == (True, None)
    assert said["spent"]["epsilon"] == pytest.approx(0.1, rel=1e-3)
    assert said["left"]["epsilon"] == pytest.approx(0.9, rel=1e-3)


@pytest.mark.parametrize("bound", ["gdp", "rdp"])
def test_a_ledger_without_a_place_for_the_threshold_is_refused(tmp_path, bound):
    book = Ledger.open(tmp_path / "a.ledger", dataset="a", budget=Budget(20.0, 1e-3), bound=bound)
    with pytest.raises(InvalidInput, match='expected "basic"'):
        fit_table(frame(), BUYING, **QUICK, ledger=book)
    assert book.spent().epsilon == 0


@pytest.mark.parametrize("how", [{"class_weight": {"yes": 5}}, {"objective": "recall:yes", "epochs": None}], ids=str)
def test_what_names_a_class_is_refused_before_anything_is_paid(how):
    with pytest.raises(InvalidInput, match="still to be bought"):
        fit_table(frame(), BUYING, **{**QUICK, **how})


def test_a_regression_asks_for_numbers():
    with pytest.raises(InvalidInput, match="which is categorical"):
        AutoRegressor(schema=BUYING).fit(frame().drop(columns="outcome"), np.zeros(400))


def test_only_classes_of_a_target_are_bought():
    with pytest.raises(InvalidInput, match="only classes are bought"):
        Schema.from_dict({"columns": {"kind": {"type": "categorical", "levels": "buy"}}})


@pytest.mark.parametrize("kind", thin([[], ["--text", "number"]], 2), ids=str)
def test_on_the_command_line(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("t.csv", index=False)
    (tmp_path / "t.toml").write_text(BUYING.to_toml())
    given = [*kind, "--target", "outcome", "--classes", "buy"] if kind else ["--schema", "t.toml"]
    assert main(["fit", "t.csv", *given, "--epsilon", "20", "--delta", "1e-3", "--epochs", "0.1", "--out", "run"]) == 0
    assert dpilot.load("run").classes == ("no", "yes")


def test_of_persons_one_row_each_is_counted():
    """Twenty persons with thirty rows of one class are twenty, not six hundred."""
    data = pd.concat([frame(300), *[frame(300).iloc[:20].assign(outcome="rows")] * 30], ignore_index=True)
    data["who"] = [f"p{number}" for number in range(300)] + [f"q{number}" for number in range(20)] * 30
    tight = {**QUICK, "epsilon": 3.0, "delta": 1e-4}
    alone = Schema.from_dict({"columns": {**BUYING.to_dict()["columns"], "who": {"role": "ignored"}}})
    assert "rows" in fit_table(data, alone, **tight).classes
    assert "rows" not in fit_table(data, BUYING, **tight, unit="who", rows_per_unit=2).classes


def test_an_estimator_with_such_a_schema(tmp_path):
    data = frame()
    model = AutoClassifier(**QUICK, schema=BUYING).fit(data)
    assert model.classes_.tolist() == ["no", "yes"]
    assert 0 <= model.score(data, data["outcome"]) <= 1
    assert model.privacy_.entries[0].purpose.startswith("classes of fit")


def test_an_interrupted_fit_goes_on_to_the_same_classes_for_the_same_price(tmp_path, monkeypatch):
    how = {**QUICK, "run_folder": tmp_path / "run", "ledger": tmp_path / "a.ledger"}
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "softmax", lambda *_: pytest.fail("interrupted"))
        with pytest.raises(pytest.fail.Exception):
            fit_table(tmp_path_table(tmp_path), BUYING, **how)
    spent = Ledger.read(tmp_path / "a.ledger").spent()
    resumed = fit_table(tmp_path_table(tmp_path), BUYING, **how, resume=True)
    assert Ledger.read(tmp_path / "a.ledger").spent() == spent
    assert resumed.classes == ("no", "yes")


def tmp_path_table(folder):
    path = folder / "t.csv"
    if not path.exists():
        frame().to_csv(path, index=False)
    return path


@pytest.mark.parametrize("name", thin(list(ODD), 8))
def test_a_record_more_moves_only_what_is_released(replay, name):
    data = frame(120)
    more = pd.concat([data, pd.DataFrame([{**GOOD, "outcome": ODD[name]}], dtype=object)], ignore_index=True)
    replay(
        partial(run, schema=BUYING, epsilon=20.0, delta=1e-3, epochs=0.5),
        pairs=[Pair(name, data, more)],
        opaque=OPAQUE,
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.binary(), st.none()), min_size=1))
def test_whatever_is_found_can_be_declared_and_its_records_are_of_it(cells):
    """An error after the purchase would be a fit that costs and gives nothing."""
    column = BUYING.target
    found = type_of(column).read(objects(cells), column, ("", "NA")).values
    names = sorted({each for each in found.tolist() if each is not None})
    if len(names) < 2:
        return
    schema = BUYING.with_classes(names)
    assert Schema.parse(schema.to_toml()) == schema
    json.dumps(schema.to_dict(), ensure_ascii=False).encode("utf-8")
    expected = [-1 if each is None else names.index(each) for each in found.tolist()]
    assert np.maximum(codes(objects(cells), names, ("", "NA")), -1).tolist() == expected


def test_a_folder_that_is_no_utf_8_is_a_class_to_nobody(folder):
    with pytest.raises(InvalidInput, match="expected texts"):  # a listing is a fact of the container, and read by all
        folder_schema(folder)
    with pytest.raises(FitStopped, match="0 classes"):
        fit_table(folder, folder_schema(folder, "buy"), epsilon=0.5, delta=1e-6)
