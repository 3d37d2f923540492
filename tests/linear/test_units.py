"""A unit with all its rows moves a release by no more than a record may, and nothing else at all."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone

import dpilot.linear
from dpilot import AutoClassifier, AutoRegressor, Budget, Ledger
from dpilot.audit.replay import replay
from dpilot.data import disk, units
from dpilot.data.units import UnitRows, UnitTableBuilder, group_rows
from dpilot.errors import InvalidInput
from dpilot.fit.estimators import AutoEstimator
from dpilot.keys import KEY_BYTES
from dpilot.linear import LinearRegression, LogisticRegression, PrivateStandardScaler, row_gradients, streaming
from dpilot.linear.gram_matrix import GramPlan, _lengths, gram
from dpilot.linear.methods import METHODS
from dpilot.linear.parameters import PrivateEstimator
from dpilot.linear.row_gradients import GridRows, HistogramClip, UnitGradients, gradient_step, linear_residual
from dpilot.linear.rows import MemoryRows, UnitChunk, finite_rows
from dpilot.linear.streaming import group_parquet, parquet_rows
from dpilot.mechanism import SYSTEM
from dpilot.privacy.unit import PrivacyUnit
from dpilot.tape import tape
from tests.linear.helpers import EXTREMES, released, table
from tests.statistics.helpers import Anything
from tests.tapes import NoiseFree, exact_sum
from tests.thin import thin_product

KEY = bytes(range(KEY_BYTES))
CAP = 4
UNIT = PrivacyUnit("person", CAP)
COUNTS = (1, CAP, 1000)


def persons(rows, seed=0):
    """Rows of persons with 1 to 9 rows each, in any order: ids, one a row."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(rows), rng.integers(1, 10, rows))[:rows]
    return rng.permutation(ids)


ROWS, IDS = table(300, 2), persons(300)


def regression(**options):
    return LinearRegression(**{"unit": "person", "rows_per_unit": CAP, "size": 100, **options})


def moved(make, data, neighbour, labels=lambda target: target):
    """Replay a fit of ``make()`` on (rows, ids) and on a neighbour."""

    def run(both):
        rows, ids = both
        return released(make().fit(rows[:, :-1], labels(rows[:, -1]), units=ids))

    return replay(run, data, neighbour)


def hostile(record, count):
    """The rows of one unit: all the same extreme, or each another."""
    if record == "each":
        kinds = [EXTREMES[name] for name in EXTREMES]
        values = np.array([kinds[place % len(kinds)] for place in range(count)])
    else:
        values = np.tile(EXTREMES[record], (count, 1))
    return np.column_stack([values[:, [0]], values])


def with_unit(rows, ids, more, name, at=None):
    """The table with one unit more: its rows last, or anywhere."""
    if at is None:
        return np.concatenate([rows, more]), np.append(ids, [name] * len(more))
    places = np.random.default_rng(at).integers(0, len(rows), len(more))
    return np.insert(rows, places, more, axis=0), np.insert(ids, places, name)


@pytest.mark.parametrize(("record", "count", "method"), thin_product(5, ["huge", "far", "each"], COUNTS, METHODS))
def test_one_more_unit_moves_releases_within_their_bounds_and_nothing_else(method, count, record):
    more = with_unit(ROWS, IDS, hostile(record, count), 999)
    found = moved(lambda: regression(method=method), (ROWS, IDS), more)
    assert found.differences == ()
    assert found.releases > 0


@pytest.mark.parametrize(
    ("count", "method"),
    thin_product(2, COUNTS, [name for name in METHODS if name != "tukey"]),  # whose coins go by place
)
def test_the_rows_of_a_unit_may_lie_anywhere(method, count):
    more = with_unit(ROWS, IDS, hostile("each", count), 999, at=3)
    for pair in (((ROWS, IDS), more), (more, (ROWS, IDS))):  # added, and removed
        assert moved(lambda: regression(method=method), *pair).differences == ()


@pytest.mark.parametrize(
    "options", [{"bounds": "standardised"}, {"fit_intercept": False}, {"size": "private"}], ids=str
)
@pytest.mark.parametrize("method", METHODS)
def test_options_keep_the_bounds_too(options, method):
    more = with_unit(ROWS, IDS, hostile("far", 1000), 999)
    assert moved(lambda: regression(method=method, **options), (ROWS, IDS), more).differences == ()


@pytest.mark.parametrize("size", [30, 70, 300])
def test_one_value_for_all_keeps_its_bounds(size):
    more = with_unit(ROWS, IDS, hostile("each", 1000), 999)
    assert moved(lambda: regression(size=size), (ROWS, IDS), more).differences == ()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("record", ["huge", "each"])
def test_a_unit_moves_a_classifier_within_its_bounds(classes, count, record):
    def labels(target):
        return np.digitize(target, [0.0, 0.5][: classes - 1])

    more = with_unit(ROWS, IDS, hostile(record, count), 999)
    make = lambda: LogisticRegression(  # noqa: E731
        unit="person", rows_per_unit=CAP, size=100, classes=list(range(classes))
    )
    found = moved(make, (ROWS, IDS), more, labels)
    assert found.differences == ()
    assert found.releases > 0


@pytest.mark.parametrize(("count", "method"), thin_product(3, COUNTS, METHODS))
def test_with_a_public_size_a_unit_may_be_replaced_by_an_empty_one(method, count):
    rows, ids = with_unit(ROWS, IDS, hostile("far", count), 999)
    null = rows.copy()
    null[ids == 999, 0] = np.nan
    empty = with_unit(ROWS, IDS, np.full((1, 3), np.nan), 999)
    for neighbour in ((null, ids), empty):
        assert moved(lambda: regression(method=method, size="public"), (rows, ids), neighbour).differences == ()


@pytest.mark.parametrize("count", COUNTS)
def test_some_unit_comes_close_to_the_bound_however_many_rows_it_has(count):
    more = with_unit(ROWS, IDS, hostile("far", count), 999)
    assert moved(regression, (ROWS, IDS), more).largest > 0.9


TYPED = {
    "int": lambda ids: ids.astype(np.int32),
    "whole floats": lambda ids: ids.astype(np.float64),
    "text": lambda ids: ids.astype(str),
    "objects": lambda ids: ids.astype(object),
    "list": lambda ids: ids.tolist(),
    "categories": lambda ids: pd.Series(ids).astype("category"),
    "nullable": lambda ids: pd.Series(ids, dtype="Int64"),
    "arrow": lambda ids: pa.array(ids),
    "polars": lambda ids: pl.Series(ids),
}
NEW = [999, 999.0, 0.5, "x", b"x", True, None, np.nan, 2**60, (1, 2), pd.Timestamp("2020-01-01")]


@pytest.mark.parametrize("kind", TYPED)
def test_ids_of_every_type_name_the_same_units(kind):
    X, y = ROWS[:, :-1], ROWS[:, -1]
    with pytest.warns(UserWarning, match="random_state"):
        plain = regression(random_state=0).fit(X, y, units=IDS)
    with pytest.warns(UserWarning, match="random_state"):
        same = regression(random_state=0).fit(X, y, units=TYPED[kind](IDS))
    assert np.array_equal(plain.coef_, same.coef_)


@pytest.mark.parametrize("missing", ["null", "row"])
@pytest.mark.parametrize("name", NEW, ids=str)
def test_an_id_of_another_type_leaves_the_others_alone(name, missing):
    more = np.concatenate([ROWS, hostile("each", 1)])
    ids = (IDS + 2).tolist()  # True is 1, who is nobody else
    found = moved(lambda: regression(missing_unit=missing), (ROWS, ids), (more, [*ids, name]))
    assert found.differences == ()


@pytest.mark.parametrize("method", [name for name in METHODS if name != "tukey"])
def test_units_of_one_row_give_the_sums_of_records(method):
    X, y = ROWS[:, :-1], ROWS[:, -1]
    records, alone = NoiseFree(), NoiseFree()
    with tape(records):
        LinearRegression(method=method).fit(X, y)
    with tape(alone):
        LinearRegression(method=method, unit="person").fit(X, y, units=np.arange(300))
    assert len(records.entries) == len(alone.entries) > 0
    for one, other in zip(records.entries, alone.entries, strict=True):
        assert all(np.allclose(*pair, rtol=1e-4, atol=1e-3) for pair in zip(one.inputs, other.inputs, strict=True))
        assert (one.bound, one.event) == (other.bound, other.event)


def by_hand(rows, send, most):
    """The sum over units of the mean of what their rows send, each unit's no longer than ``most``."""
    grouped = group_rows(IDS, UNIT, key=KEY)
    each = [rows[grouped.places[grouped.units == unit]] for unit in range(grouped.count)]
    means = [np.mean([send(row) for row in unit], axis=0) for unit in each]
    lengths = np.array(list(map(np.linalg.norm, means)))
    assert 0.1 < np.mean(lengths > most) < 0.9
    factors = np.minimum(1.0, most / lengths)
    return MemoryRows.of(rows, grouped), sum(f * mean for f, mean in zip(factors, means, strict=True)), lengths


def test_moments_are_those_of_the_means_of_units():
    radius = 1.2 * np.sqrt(3)
    rows, expected, _ = by_hand(1.5 * ROWS, lambda row: np.outer(row, row), radius**2)
    with tape(NoiseFree()):
        found = gram(rows, GramPlan(None, 1.0), size=1.0, receipt=Anything(), noise=SYSTEM)
    assert np.allclose(found.moments, expected, rtol=1e-3)


@pytest.mark.parametrize("entries", [1 << 21, 16])
def test_steps_are_those_of_the_means_of_units(entries):
    weights, level = np.array([0.3, -0.2]), 0.5

    def send(row):
        return row[:-1] * (row[-1] - row[:-1] @ weights)

    rows, expected, lengths = by_hand(ROWS, send, level)
    state = HistogramClip(level, 0.25)
    paid = {"noise_multiplier": 1.0, "receipt": Anything(), "noise": SYSTEM, "entries": entries}
    sums = exact_sum(gradient_step, GridRows.of(rows), weights[:, None], state, **paid)
    assert np.allclose(sums[:2], expected / level, rtol=1e-4)
    counts = np.bincount(np.searchsorted(row_gradients.EDGES, lengths / level), minlength=10)
    assert np.allclose(sums[2:], 0.25 * counts)


def test_a_unit_whose_gradient_overflows_adds_nothing():
    rows, two = np.array([[1e200, 1e200], [1.0, 1.0]]), UnitRows(np.arange(2), np.arange(2), 2)
    paid = {"noise_multiplier": 1.0, "receipt": Anything(), "noise": SYSTEM}
    with np.errstate(all="ignore"):
        sums = exact_sum(
            gradient_step, GridRows.of(MemoryRows.of(rows, two)), np.zeros((1, 1)), HistogramClip(0.5, 0.25), **paid
        )
    assert sums.tolist() == pytest.approx([1.0, *[0.0] * 6, 0.25, 0.0, 0.0, 0.0])


def test_a_bound_of_rows_bounds_their_mean():
    """Features of length 2 at most; pulls that cancel leave a gradient where features do not."""
    chunk = UnitChunk(np.array([[2.0, 0.0, 1.0], [0.0, 2.0, -1.0]]), np.array([0]))
    found = UnitGradients(chunk, np.zeros((2, 1)), linear_residual, longest=2.0)
    assert found.norms.tolist() == [2.0]
    assert np.linalg.norm(found.weighted_sum(np.ones(1))) <= 2.0


@pytest.mark.parametrize("size", [1, 2, 8, 60])
@pytest.mark.parametrize("columns", [1, 3, 40])
def test_the_length_of_a_unit_is_no_less_than_it_is_and_hardly_more(size, columns):
    rng = np.random.default_rng(size)
    values = rng.normal(size=(50 * size, columns)) * 10.0 ** rng.integers(-3, 3, (50 * size, 1))
    found = _lengths(UnitChunk(values, np.arange(0, 50 * size, size)))
    exact = values.reshape(50, size, columns).astype(np.longdouble)
    moments = np.einsum("umi,umj->uij", exact, exact) / size
    lengths = np.sqrt(np.sqrt((moments**2).sum(axis=(1, 2))))
    assert (found >= (lengths * (1 - 4e-16) if size == 1 else lengths)).all()
    assert (found <= lengths * (1 + 1e-10)).all()


def test_a_chunk_is_split_between_units():
    grouped = group_rows(IDS, UNIT, key=KEY)
    (whole,) = MemoryRows.of(ROWS, grouped).unit_chunks()
    for rows in (1, 7, 100, 1000):
        parts = list(whole.split(rows))
        assert np.array_equal(np.concatenate([part.values for part in parts]), whole.values)
        assert np.array_equal(np.concatenate([part.sizes for part in parts]), whole.sizes)
        assert np.array_equal(np.concatenate([part.drawn for part in parts]), whole.drawn)
        assert max(len(part.values) for part in parts) < rows + CAP


def test_a_method_that_knows_nothing_of_units_sees_one_row_of_each():
    grouped = group_rows(IDS, UNIT, key=KEY)
    numbered = MemoryRows.of(np.column_stack([ROWS, IDS]), grouped).map(lambda values: values[:, -1:], 1)
    (seen,) = numbered.chunks()
    assert sorted(seen[:, 0].tolist()) == sorted(set(IDS.tolist()))


def test_only_moments_and_steps_ask_for_all_rows():
    folder = Path(dpilot.linear.__file__).parent
    called = re.compile(r"unit_(chunks|total)")
    asking = {path.stem for path in folder.glob("*.py") if called.search(path.read_text())}
    assert asking == {"rows", "streaming", "partitions", "gram_matrix", "row_gradients"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("missing", ["null", "row"])
@pytest.mark.parametrize("kind", [np.int64, str, object])
def test_rows_grouped_on_disk_are_those_grouped_in_memory(seed, missing, kind, monkeypatch):
    monkeypatch.setattr(units, "_PART", 64)
    rng = np.random.default_rng(seed)
    ids = np.where(rng.random(700) < 0.4, 7, rng.integers(0, 90, 700)).astype(kind)  # one of them with most rows
    if kind is object:
        ids[::7] = None
    values = np.column_stack([np.where(rng.random(700) < 0.8, 1.0, np.nan), np.arange(700.0)])
    unit = PrivacyUnit("person", CAP, missing)
    grouped = group_rows(ids, unit, key=KEY, usable=finite_rows(values))
    (memory,) = MemoryRows.of(values, grouped).unit_chunks()
    builder = UnitTableBuilder(unit, KEY, 700, 2)
    for start in range(0, 700, 99):
        builder.add(ids[start : start + 99], values[start : start + 99])
    table = builder.build()
    parts = [UnitChunk(*table.read(part)) for part in range(table.parts)]
    assert sorted(row for part in parts for row in by_unit(part)) == sorted(by_unit(memory))
    assert table.count == grouped.count


def by_unit(chunk):
    return [tuple(part[:, 1]) for part in np.split(chunk.values, chunk.starts[1:])]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "BATCH", 70)
    monkeypatch.setattr(units, "_PART", 64)
    rows = ROWS.copy()
    rows[::17, 1] = np.nan
    frame = pd.DataFrame(rows, columns=["a", "b", "y"]).assign(person=[f"p{number}" for number in IDS])
    frame.loc[5:8, "person"] = None
    frame[:200].to_parquet(tmp_path / "part1.parquet")
    frame[200:].to_parquet(tmp_path / "part2.parquet")
    return tmp_path, frame


@pytest.mark.filterwarnings("ignore:random_state")
@pytest.mark.parametrize("missing", ["null", "row"])
@pytest.mark.parametrize("method", ["auto", "dpgd", "adassp", "boosted", "bsgs", "adaclip"])
def test_files_give_the_model_of_the_table(method, missing, files):
    folder, frame = files
    made = {"epsilon": 30.0, "method": method, "random_state": 3, "size": "public", "missing_unit": missing}
    memory = regression(**made).fit(frame.drop(columns="y"), frame["y"])
    for model in (
        regression(**made).fit_parquet(folder, target="y"),
        regression(**made, unit=None).fit_parquet(folder, target="y", unit="person"),
    ):
        assert model.coef_ == pytest.approx(memory.coef_, rel=1e-6)
        assert np.abs(model.coef_).max() > 0.01  # which a fit lost in noise would not tell from another
        assert model.feature_names_in_.tolist() == ["a", "b"]
        assert model.privacy_.unit == memory.privacy_.unit == PrivacyUnit("person", CAP, missing)
        assert np.array_equal(model.predict(frame[["a", "b"]]), model.predict(frame[["person", "a", "b"]]))


@pytest.mark.parametrize(("count", "method"), thin_product(3, COUNTS, ["auto", "boosted", "bsgs", "adaclip"]))
def test_a_unit_in_files_moves_releases_within_their_bounds(method, count, tmp_path, monkeypatch):
    monkeypatch.setattr(units, "_PART", 64)
    more = with_unit(ROWS, IDS, hostile("each", count), 999, at=5)
    for name, (rows, ids) in (("before", (ROWS, IDS)), ("after", more)):
        pd.DataFrame(rows, columns=["a", "b", "y"]).assign(person=ids).to_parquet(tmp_path / f"{name}.parquet")
    found = replay(
        lambda name: released(regression(method=method).fit_parquet(tmp_path / f"{name}.parquet", "y")),
        "before",
        "after",
    )
    assert found.differences == ()
    assert found.releases > 0


def test_ids_are_not_written_and_nothing_is_left_behind(files, tmp_path, monkeypatch):
    folder, _ = files
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, written = set(tmp_path.iterdir()), []
    original = disk._write

    def write(file, rows):
        written.append(rows.tobytes())
        assert set(tmp_path.iterdir()) == before, "a file has a name, and would outlive a kill"
        original(file, rows)

    monkeypatch.setattr(disk, "_write", write)
    rows, length, _ = parquet_rows(folder, "y", "person")
    assert group_parquet(rows, length, UNIT, KEY)[1] > 10
    assert len(written) > 2
    assert not any(f"p{number}".encode() in data for number in range(10, 90) for data in written)


def test_a_file_may_have_ids_of_any_type_but_lists(tmp_path):
    columns = {"a": np.arange(6.0), "y": np.arange(6.0)}
    large = 2**60
    for kind, ids in {
        "int": [large, large + 1, large, 3, None, 3],
        "text": ["x", "y", "x", "z", None, "z"],
        "float": [1.0, 2.0, 1.0, 0.5, None, 0.5],
        "dictionary": pa.array(["x", "y", "x", "z", None, "z"]).dictionary_encode(),
    }.items():
        path = tmp_path / f"{kind}.parquet"
        pa.parquet.write_table(pa.table({**columns, "person": ids}), path)
        rows, length, names = parquet_rows(path, "y", "person")
        grouped, count = group_parquet(rows, length, UNIT, KEY)
        assert (count, names) == (3, ("a",))
        assert sorted(np.concatenate([chunk.sizes for chunk in grouped.unit_chunks()])) == [1, 2, 2]
    pa.parquet.write_table(pa.table({**columns, "person": [[1]] * 6}), tmp_path / "list.parquet")
    with pytest.raises(InvalidInput, match="lists"):
        LinearRegression(unit="person").fit_parquet(tmp_path / "list.parquet", "y")


MEMORY = """
import sys, tracemalloc
from dpilot.data import disk, units
from dpilot.linear import streaming
from dpilot.privacy.unit import PrivacyUnit

streaming.BATCH = units._PART = 1 << 14
rows, length, _ = streaming.parquet_rows(sys.argv[1], "y", "person")
tracemalloc.start()
grouped, count = streaming.group_parquet(rows, length, PrivacyUnit("person"), bytes(32))
kept = sum(len(chunk.values) for chunk in grouped.unit_chunks())
print(tracemalloc.get_traced_memory()[1], count, kept)
"""


@pytest.mark.slow
def test_memory_stays_flat_in_the_number_of_rows(tmp_path):
    rng = np.random.default_rng(0)
    peaks = []
    for rows in (200_000, 1_000_000):
        frame = pd.DataFrame(rng.normal(size=(rows, 3)), columns=["a", "b", "y"])
        ids = np.where(rng.random(rows) < 0.5, 0, rng.integers(0, rows // 5, rows))  # half of them one person's
        frame.assign(person=ids).to_parquet(tmp_path / f"{rows}.parquet", row_group_size=20_000)
        command = [sys.executable, "-c", MEMORY, str(tmp_path / f"{rows}.parquet")]
        made = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(made.stdout.split()[0]))
    assert peaks[1] < 1.2 * peaks[0]


def frame_of(kind):
    data = {"a": ROWS[:, 0], "person": [f"p{number}" for number in IDS], "b": ROWS[:, 1]}
    return {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}[kind](data)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize("make", [regression, lambda: LogisticRegression(unit="person", classes=[0, 1])])
def test_a_column_of_ids_is_no_feature(kind, make):
    frame = frame_of(kind)
    model = make().fit(frame, ROWS[:, -1] > 0)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert np.array_equal(model.predict(frame), model.predict(frame[["a", "b"]]))
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(frame), model.predict(frame))
    assert clone(model).get_params()["unit"] == "person"


def test_what_is_said_of_units_is_checked():
    X, y = ROWS[:, :-1], ROWS[:, -1]
    frame = frame_of("pandas")
    for make, arguments, said in (
        (regression, (X, y), "nowhere"),
        (regression, (frame[["a", "b"]], y), "nowhere"),
        (regression, (frame, y, IDS), "twice"),
        (regression, (X, y, IDS[1:]), "inconsistent"),
        (regression, (X, y, IDS[:, None]), "one id for each row"),
        (regression, (X, y, "person"), "one id for each row"),
        (regression, (pd.concat([frame, frame["person"]], axis=1), y), "more than once"),
        (lambda: regression(rows_per_unit=0), (X, y, IDS), "rows_per_unit"),
        (lambda: regression(missing_unit="drop"), (X, y, IDS), "missing_unit"),
        (lambda: LinearRegression(missing_unit="row"), (X, y), "missing_unit"),
    ):
        table, target, *ids = arguments
        with pytest.raises(InvalidInput, match=said):
            make().fit(table, target, units=ids[0] if ids else None)


def test_what_is_said_of_units_in_files_is_checked(files):
    folder, _ = files
    for make, options, said in (
        (regression, {"unit": "patient"}, "name it once"),
        (LinearRegression, {"unit": "patient"}, "expected a column"),
        (LinearRegression, {"unit": "y"}, "both 'y'"),
    ):
        with pytest.raises(InvalidInput, match=said):
            make().fit_parquet(folder, "y", **options)


def test_the_unit_is_named_in_what_a_fit_cost(tmp_path):
    X, y = ROWS[:, :-1], ROWS[:, -1]
    path = tmp_path / "persons.ledger"
    model = regression(ledger=path, size="public").fit(X, y, units=IDS)
    assert model.privacy_.unit == UNIT
    assert "one person with all their rows (at most 4 count)" in str(model.privacy_)
    assert "number of units" in str(model.privacy_)
    assert Ledger.read(path).unit == "person"


def test_a_ledger_of_records_takes_no_fit_of_units_and_the_reverse(tmp_path):
    X, y = ROWS[:, :-1], ROWS[:, -1]
    for unit, fit in (
        (None, lambda ledger: regression(ledger=ledger).fit(X, y, units=IDS)),
        ("person", lambda ledger: LinearRegression(ledger=ledger).fit(X, y)),
    ):
        ledger = Ledger.open(tmp_path / f"{unit}.ledger", dataset="d", budget=Budget(5.0, 1e-4), unit=unit)
        with pytest.raises(InvalidInput, match="unit"):
            fit(ledger)
        assert ledger.spent().epsilon == 0.0


def test_the_size_is_the_number_of_units():
    X, y = ROWS[:, :-1], ROWS[:, -1]
    listener = NoiseFree()
    with tape(listener):
        regression(size="private", method="adassp").fit(X, y, units=IDS)
    assert float(np.asarray(listener.entries[0].inputs[0])) == len(set(IDS.tolist()))
    nobody = regression(size="public").fit(X, y, units=[None] * len(X))
    assert np.isfinite(nobody.coef_).all()


def test_the_choice_of_rows_is_drawn_anew_for_each_fit():
    seen = [regression()._rows(ROWS, IDS, UNIT)[0].chunk.values for _ in range(2)]
    assert not np.array_equal(*seen)


@pytest.mark.parametrize("usable", [True, False])
def test_a_unit_is_the_mean_of_its_rows_that_are_not_null(usable):
    ids, rows = np.zeros(4, dtype=int), table(4, 2)
    rows[:2, 0] = np.nan
    grouped = group_rows(ids, UNIT, key=KEY, usable=finite_rows(rows) if usable else None)
    (found,) = MemoryRows.of(rows, grouped).unit_chunks()
    assert np.allclose(found.means(found.values), rows[2:].mean(axis=0))
    assert len(found.drawn) == 1


def scaler(**options):
    return PrivateStandardScaler(**{"unit": "person", "rows_per_unit": CAP, "size": 100, **options})


@pytest.mark.parametrize("record", ["huge", "each"])
@pytest.mark.parametrize("count", COUNTS)
def test_a_unit_moves_a_scaler_within_its_bounds(count, record):
    found = moved(scaler, (ROWS, IDS), with_unit(ROWS, IDS, hostile(record, count), 999))
    assert found.differences == ()
    assert found.releases > 0


def test_a_scaler_is_paid_for_units_and_scales_no_ids(tmp_path):
    frame = frame_of("pandas")
    made = scaler(ledger=tmp_path / "a.ledger").fit(frame)
    assert made.privacy_.unit == UNIT
    assert Ledger.read(tmp_path / "a.ledger").unit == "person"
    assert made.feature_names_in_.tolist() == ["a", "b"]
    assert np.array_equal(made.transform(frame), made.transform(frame[["a", "b"]]))
    assert scaler().fit_transform(frame).shape == (len(ROWS), 2)
    with pytest.raises(InvalidInput, match="nowhere"):
        scaler().fit(ROWS)


def test_every_estimator_with_a_unit_takes_ids():
    """One that has the parameter, and fits rows, would say that it protects persons and not do so."""
    kinds = {*PrivateEstimator.__subclasses__(), *AutoEstimator.__subclasses__()} - {AutoEstimator}
    assert kinds >= {PrivateStandardScaler, AutoClassifier, AutoRegressor}
    for each in kinds:
        units = inspect.signature(each.fit).parameters["units"]
        assert units.kind is units.KEYWORD_ONLY, "what stands third in scikit-learn is a weight"
