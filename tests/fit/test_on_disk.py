"""Tables that do not fit in memory: the same fit, bit for bit, with rows in files without names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest

from dpilot.audit.neighbours import Pair
from dpilot.cli.main import main
from dpilot.data import disk, units
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit import on_disk, pipeline, population
from dpilot.fit.grids import training
from dpilot.fit.learners import networks
from dpilot.fit.source import TableSource
from dpilot.fit.table import fit_table
from dpilot.metrics import counts, regression
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema
from tests.fit.test_replay import GOOD, OPAQUE, run
from tests.fit.test_units import NEWCOMERS, UNIT, joined, persons


@pytest.fixture
def small_pieces(monkeypatch):
    """Blocks and buckets of a few rows, so that all that lies between them is met."""
    for module, name in (
        (units, "_PART"), (population, "_ROWS"), (networks, "_ROWS"), (disk, "_PIECE"), (disk, "_BUCKET"),
        (population, "_SCORED"), (counts, "_ROWS"), (regression, "_ROWS"), (training, "_ROWS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 37)


@pytest.fixture
def to_disk(monkeypatch, small_pieces):
    for module in (on_disk, pipeline):
        monkeypatch.setattr(module, "is_too_large", lambda source: True)


def both(source, schema, monkeypatch, **options):
    """The released record and model of a fit in memory, and of the same on disk."""
    made = []
    for large in (False, True):
        for module in (on_disk, pipeline):
            monkeypatch.setattr(module, "is_too_large", lambda source, large=large: large)
        made.append(fit_table(source, schema, test_seed=3, **options))
    return made


CASES = [
    ("additive", UNIT, frame, SCHEMA),
    ("auto", UNIT, numeric_frame, numeric_schema()),
]
MORE = [
    ("additive", {}, frame, SCHEMA),
    ("grids", UNIT, frame, SCHEMA),
    ("logistic", {"class_weight": "balanced"}, frame, SCHEMA),
    ("logistic", {**UNIT, "missing_unit": "row"}, frame, SCHEMA),
    ("mlp", {**UNIT, "rows_per_unit": "buy"}, frame, SCHEMA),
    ("auto", {}, numeric_frame, numeric_schema()),
    ("linear", UNIT, numeric_frame, numeric_schema()),
    ("grids", {}, numeric_frame, numeric_schema()),
]


def slow(*cases):
    return [pytest.param(*each, marks=pytest.mark.slow) for each in cases]


@pytest.mark.parametrize(("model", "options", "make", "schema"), [*CASES, *slow(*MORE)])
@pytest.mark.filterwarnings("ignore:.*outside")
def test_a_fit_on_disk_is_that_in_memory(model, options, make, schema, tmp_path, monkeypatch, small_pieces):
    data = persons(400, 90, make)
    data.loc[::23, "patient_id"] = None
    if "kind" in data:
        data.loc[5::31, "kind"] = "not declared"  # null rows, of persons who have others
    data = data if options.get("unit") else data.drop(columns="patient_id")
    path = tmp_path / "table.csv"
    data.to_csv(path, index=False)
    monkeypatch.setattr(pipeline, "find_influences", lambda model: ())
    given = {"epsilon": 30.0, "delta": 1e-4, "model": model, "epochs": None if model != "mlp" else 3, **options}
    memory, stored = both(path, schema, monkeypatch, **given)
    assert np.array_equal(memory.outputs(data), stored.outputs(data), equal_nan=True)
    assert np.ptp(memory.outputs(data)[np.isfinite(memory.outputs(data)).all(axis=1)], axis=0).max() > 0
    assert plain(memory) == plain(stored)


def plain(fitted):
    """The record, but for the time of day in the ledger and its hash."""
    facts = json.loads(fitted.record.to_json())
    del facts["privacy"]["head"]
    for entry in facts["ledger"]:
        del entry["time"]
    return facts


@pytest.mark.parametrize("name", ["hostile rows", *slow(*((name,) for name in NEWCOMERS if name != "hostile rows"))])
@pytest.mark.parametrize("model", ["additive", *slow(("grids",), ("logistic",))])
def test_a_whole_unit_more_moves_releases_on_disk_by_no_more_than_one_bound(to_disk, replay, name, model):
    pair = Pair(name, persons(), joined(persons(), NEWCOMERS[name]))
    replay(partial(run, model=model, epochs=3 if model == "logistic" else 5, **UNIT), pairs=[pair], opaque=OPAQUE)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["new", 7, 7.0, 2**60, b"x", None, float("nan"), "", object(), [1]])
def test_ids_of_every_type_move_nothing_else_on_disk(to_disk, replay, who):
    pair = Pair(str(who), persons(), joined(persons(), [GOOD] * 4, who))
    replay(partial(run, model="logistic", epochs=2, **UNIT), pairs=[pair], opaque=OPAQUE)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["additive", "logistic"])
def test_a_record_more_moves_releases_on_disk_by_no_more_than_a_bound(to_disk, replay, model):
    data = frame(120)
    for odd in ({}, {"signal": "inf"}, dict.fromkeys(GOOD)):
        more = pd.concat([data, pd.DataFrame([{**GOOD, **odd}], dtype=object)], ignore_index=True)
        replay(partial(run, model=model, epochs=3), pairs=[Pair(str(odd), data, more)], opaque=OPAQUE)


def test_only_large_tables_in_files_go_to_disk(tmp_path, monkeypatch):
    frame(50).to_csv(tmp_path / "table.csv", index=False)
    source = TableSource.of(tmp_path / "table.csv", SCHEMA)
    assert not on_disk.is_too_large(source)
    monkeypatch.setattr(on_disk, "_VALUES", 100)
    assert on_disk.is_too_large(source)
    assert not on_disk.is_too_large(TableSource.of(frame(50), SCHEMA))


def test_a_kill_leaves_nothing_behind(tmp_path):
    """Files have no names, so there is nothing to delete."""
    child = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert child.returncode == -9
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, numpy as np
from dpilot.data.disk import DiskArrayBuilder
rows = DiskArrayBuilder(np.float64)
rows.append(np.arange(1000.0))
assert rows.build()[999] == 999
os.kill(os.getpid(), 9)
"""


def test_a_full_disk_says_so(monkeypatch):
    rows = disk.DiskArrayBuilder(np.float64)

    def write(data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rows._file, "write", write)
    with pytest.raises(InvalidInput, match="TMPDIR"):
        rows.append(np.zeros(3))


@pytest.mark.parametrize("crowd", [300, 20, 1], ids=["everywhere", "into few buckets", "into one number"])
def test_rows_are_sorted_as_in_memory(crowd, small_pieces):
    rng = np.random.default_rng(crowd)
    keys, rows = rng.integers(0, crowd, 1000), np.arange(1000)
    keys[::50] = rng.integers(0, 300, 20)
    sort = disk.DiskSort(300, rows=1000, dtype=np.dtype(np.int64))
    for start in range(0, 1000, 111):
        sort.add(keys[start : start + 111], rows[start : start + 111])
    chunks = list(sort.chunks())
    found = [(key, row) for some in chunks for key, row in zip(*map(np.ndarray.tolist, some), strict=True)]
    order = np.argsort(keys, kind="stable")
    assert found == list(zip(keys[order].tolist(), order.tolist(), strict=True))
    assert sort._buckets.count > 10
    assert all(len(set(numbers)) == 1 or 16 * len(numbers) <= 2 * disk._BUCKET for numbers, _ in chunks)


@pytest.mark.slow
def test_a_fit_that_was_stopped_goes_on_from_the_table(to_disk, tmp_path, monkeypatch):
    """Files without names are gone: they are written again, the same, so nothing is paid or drawn anew."""
    monkeypatch.chdir(tmp_path)
    persons(300, 80).to_csv("table.csv", index=False)
    given = {"epsilon": 5.0, "delta": 1e-4, "model": "additive", "test_seed": 4, **UNIT}
    expected = fit_table("table.csv", SCHEMA, run_folder="whole", **given)

    class Stopped(Exception):
        pass

    def stop(text):
        if "final run" in text:
            raise Stopped

    with pytest.raises(Stopped):
        fit_table("table.csv", SCHEMA, run_folder="run", tell=stop, **given)
    found = fit_table("table.csv", SCHEMA, run_folder="run", resume=True, **given)
    data = persons(300, 80)
    assert np.array_equal(found.outputs(data), expected.outputs(data))
    assert found.record.privacy["epsilon"] == expected.record.privacy["epsilon"]


@pytest.mark.parametrize("named", ["visits", *slow(("visits/*.parquet",))])
def test_parquet_in_pieces_is_one_table(named, to_disk, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = persons(300, 80)
    (tmp_path / "visits").mkdir()
    data[:130].to_parquet("visits/a.parquet")
    data[130:].to_parquet("visits/b.parquet")
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    data.to_csv("table.csv", index=False)
    whole = fit_table("table.csv", SCHEMA, epsilon=3.0, delta=1e-4, model="additive", test_seed=3, **UNIT)
    pieces = fit_table(named, SCHEMA, epsilon=3.0, delta=1e-4, model="additive", test_seed=3, **UNIT)
    assert np.array_equal(whole.outputs(data), pieces.outputs(data))
    how = [
        "--schema",
        "schema.toml",
        "--epsilon",
        "3",
        "--delta",
        "1e-4",
        "--unit",
        "patient_id",
        "--model",
        "additive",
    ]
    assert main(["fit", named, *how, "--out", "run", "--json"]) == 0
    assert "patient_id" in json.loads(capsys.readouterr().out)["unit"]
    assert [path.name for path in tmp_path.glob("*.ledger")] == ["visits.ledger"]
    rows = SCHEMA.to_dict()
    rows["columns"]["patient_id"] = {"role": "ignored"}
    (tmp_path / "rows.toml").write_text(Schema.from_dict(rows).to_toml())
    assert main(["fit", named, "--schema", "rows.toml", *how[2:6], "--out", "rows"]) == 2
    assert "patient_id" in capsys.readouterr().err, "the ledger is one of persons"
    assert main(["predict", "run", named, "--out", "found.csv"]) == 0
    assert len(pd.read_csv("found.csv")) == 300


def test_pieces_of_other_columns_or_types_are_refused(tmp_path):
    frame(20).to_parquet(tmp_path / "a.parquet")
    frame(20).drop(columns="kind").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(InvalidInput, match="other columns"):
        TableSource.of(tmp_path, SCHEMA)
    (tmp_path / "b.parquet").write_text("number\n1\n")
    with pytest.raises(InvalidInput, match="no parquet file"):
        TableSource.of(tmp_path / "*.parquet", SCHEMA)
