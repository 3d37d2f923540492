"""What one record holds never changes how another is read: every entry that takes records, every container.

A neighbour is made as users make one, by np.append, np.concatenate, pd.concat, pl.concat, pa.concat_tables or torch.cat
with a record of another type, width or kind of missing. Where the whole run is short it is replayed (every release
frozen) and nothing may move but the inputs of releases, by their bounds; where it is long, the rows that enter the
releases are compared bit for bit.
"""

from __future__ import annotations

import datetime
import warnings
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from dpilot import AutoRegressor, Budget, Ledger, Plan, PrivateStep, Trainer, poisson_loader
from dpilot.audit import replay
from dpilot.data.encoder import Encoder
from dpilot.data.files import Table
from dpilot.data.parquet import ParquetDataset
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit.table import fit_table
from dpilot.linear import LinearRegression, LogisticRegression
from dpilot.linear.classifier import codes
from dpilot.linear.inputs import features_and_target, target_cells, whole_table
from dpilot.train.batches.reader import Reader
from dpilot.transfer.features import Features
from dpilot.transfer.pixels import as_pixels
from dpilot.transfer.probing import fit_probe
from dpilot.transfer.scattering import scattered
from dpilot.tune import AutoClassifier, PrivateSearchCV
from tests.thin import thin_product

SIZE = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(SIZE, 2)).round(3)
Y = (X @ [1.0, 2.0] + RNG.normal(size=SIZE)).round(3)
LABELS = (Y > 0).astype(np.int64)

CELLS: dict[str, Any] = {
    "a fraction": 0.5,
    "a whole number": 3,
    "a truth value": True,
    "a text": "x",
    "a text of a number": "1.5",
    "bytes": b"x",
    "nothing": None,
    "not a number": float("nan"),
    "NaT": pd.NaT,
    "NA": pd.NA,
    "a complex number": 2j,
    "a real complex number": 2 + 0j,
    "a huge number": 10**400,
    "a large number": 2**63,
    "a decimal": Decimal("1.5"),
    "a numpy number": np.float16(1.5),
    "a long double": np.longdouble(1.5),
    "a date": datetime.date(2020, 1, 1),
    "a time": pd.Timestamp("2020-01-01 03:00"),
    "a time with a zone": datetime.datetime(2020, 1, 1, 3, tzinfo=datetime.UTC),
    "a numpy hour": np.datetime64("2020-01-01T03", "h"),
    "a duration": np.timedelta64(3, "s"),
    "a list": [1.0],
    "an array": np.ones(2),
    "a mapping": {"a": 1},
}
every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=list(CELLS))


def boxed(cell: Any) -> Any:
    """An array of one cell, as numpy types it; of objects where numpy would look inside or cannot hold it."""
    if isinstance(cell, list | dict | np.ndarray):
        return np.fromiter([cell], dtype=object)
    return np.array([cell])


def appended(column: Any, cell: Any) -> Any:
    """By np.append; None where numpy itself refuses to join the two types, and there is no such neighbour."""
    try:
        return np.append(column, boxed(cell))
    except (TypeError, ValueError, OverflowError):
        return None


def concatenated(column: Any, cell: Any) -> pd.Series:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pd.concat([pd.Series(column), pd.Series(np.fromiter([cell], dtype=object)).infer_objects()])


def relaxed(column: Any, cell: Any, how: str) -> Any:
    """By pl.concat; None where polars has no type for the cell, or for both."""
    try:
        return pl.concat([pl.DataFrame({"a": column}), pl.DataFrame({"a": [cell]})], how=how)["a"]
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        return None


def promoted(column: Any, cell: Any) -> Any:
    """By pa.concat_tables; None where arrow has no type for both, or for the cell."""
    try:
        return pa.concat_tables(
            [pa.table({"a": column}), pa.table({"a": pa.array([cell])})], promote_options="permissive"
        )["a"]
    except (pa.ArrowException, OverflowError, ValueError):
        return None


def neighbours(column: Any, cell: Any) -> dict[str, Any]:
    """The column and one cell more, in every container that can hold both."""
    made = {
        "list": [*column.tolist(), cell],
        "numpy": appended(column, cell),
        "objects": np.fromiter([*column.tolist(), cell], dtype=object),
        "pandas": concatenated(column, cell),
        "polars": relaxed(column, cell, "vertical_relaxed"),
        "polars diagonal": relaxed(column, cell, "diagonal_relaxed"),
        "arrow": promoted(column, cell),
    }
    return {name: each for name, each in made.items() if each is not None and not rewritten(column, each)}


def rewritten(column: Any, neighbour: Any) -> bool:
    """Whether a library made other values of all records, which nobody can read back (docs/privacy.md).

    Numpy makes durations of numbers, polars numbers of dates and records of numbers. The first and the last are
    refused, as types that a column cannot have (test_types_that_hold_no_values_are_refused).
    """
    if isinstance(neighbour, pl.Series):
        return neighbour.dtype.is_nested() or (column.dtype.kind == "M" and neighbour.dtype.is_numeric())
    return isinstance(neighbour, np.ndarray) and neighbour.dtype.kind == "m"


def test_types_that_hold_no_values_are_refused():
    structs = pl.concat([pl.DataFrame({"a": LABELS}), pl.DataFrame({"a": [{"a": 1}]})], how="vertical_relaxed")["a"]
    durations = np.append(LABELS, np.timedelta64(3, "s"))
    assert structs.dtype.is_nested()
    assert durations.dtype.kind == "m"
    for labels in (structs, durations):
        with pytest.raises(InvalidInput, match=r"durations|lists or records"):
            LogisticRegression(classes=[0, 1]).fit(np.concatenate([X, ROW]), labels)
        with pytest.raises(InvalidInput, match=r"durations|lists or records"):
            Features.of(np.concatenate([X, ROW]), labels, 2)
        with pytest.raises(InvalidInput, match=r"durations|lists or records"):
            encoded_same({**{name: np.append(each, each[:1]) for name, each in TABLE.items()}, "kind": labels})


def test_containers_that_hold_both_are_there():
    assert len(neighbours(LABELS, 0.5)) == len(neighbours(LABELS, None)) == 7
    assert len(neighbours(LABELS, "x")) == 6  # arrow joins no text to numbers
    assert neighbours(LABELS, "x")["numpy"].dtype.kind == "U"
    assert neighbours(LABELS, 2j)["numpy"].dtype.kind == "c"


# labels and classes

CLASSES = {
    "numbers": (LABELS, [0, 1]),
    "floats": (LABELS.astype(float), [0, 1]),
    "truth values": (LABELS.astype(bool), [0, 1]),
    "truth classes": (LABELS, [False, True]),
    "texts of numbers": (LABELS.astype(str), [0, 1]),
    "numbers as texts": (LABELS, ["0", "1"]),
    "fractions": (np.where(LABELS, 0.1, 0.7), [0.7, 0.1]),
    "single fractions": (np.where(LABELS, 0.1, 0.7).astype(np.float32), [0.7, 0.1]),
    "words": (np.where(LABELS, "yes", "no"), ["no", "yes"]),
    "days": (np.where(LABELS, "2020-01-02", "2020-01-01").astype("M8[D]"), ["2020-01-01", "2020-01-02"]),
    "complex": (LABELS.astype(complex), [0, 1]),
    "milliseconds": (np.where(LABELS, "2020-01-02", "2020-01-01").astype("M8[ms]"), ["2020-01-01", "2020-01-02"]),
}


@every_cell
@pytest.mark.parametrize("kind", CLASSES)
def test_a_label_of_another_type_changes_no_other(kind, cell):
    labels, classes = CLASSES[kind]
    known = np.unique(np.asarray(classes))
    expected = codes(labels, known)
    assert np.isfinite(expected).all()
    assert np.unique(expected).size == 2
    for name, neighbour in neighbours(labels, cell).items():
        assert np.array_equal(codes(target_cells(neighbour), known)[:SIZE], expected), name


@pytest.mark.parametrize("odd", [pl.Series(["x"]), pl.Series([datetime.datetime(2020, 1, 3, tzinfo=datetime.UTC)])])
def test_times_with_a_zone_are_read_alike_beside_texts_and_days(odd):
    known = np.array(["2020-01-01", "2020-01-02"])
    days = pl.Series(["2020-01-01", "2020-01-02"]).str.to_date()
    for column in (days, days.cast(pl.Datetime("us", "UTC"))):
        neighbour = pl.concat([pl.DataFrame({"a": column}), pl.DataFrame({"a": odd})], how="vertical_relaxed")["a"]
        assert codes(target_cells(neighbour), known)[:2].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("cell", [np.array([0x7FA00000], "u4").view("f4"), np.array([1e400], np.longdouble)])
def test_no_number_of_a_record_raises_or_warns(cell, tmp_path):
    """A nan of another payload and a number beyond float64, whatever the caller set; by the entries that cast."""
    table = np.concatenate([X.astype(cell.dtype), np.broadcast_to(cell, (1, 2))])
    parquet.write_table(pa.table({"x": [1.0, 1e300], "y": pa.array([2**63 - 1, 0])}), tmp_path / "t.parquet")
    with np.errstate(all="raise"):
        assert np.isfinite(rows_of(table)[:SIZE]).all()
        assert np.isfinite(target_cells(table[:, 0]).astype(object)[:SIZE].astype(float)).all()
        assert Features.of(table, np.zeros(SIZE + 1), 2).labels[:SIZE].eq(0).all()
        assert Features.of(list(table), np.zeros(SIZE + 1), 2).labels[:SIZE].eq(0).all()
        assert as_pixels(list(table[:, None])).isfinite()[:SIZE].all()
        ParquetDataset(tmp_path / "t.parquet", target="y").save(tmp_path / "saved")


@pytest.mark.filterwarnings("ignore:A column-vector y")
def test_a_column_of_one_target_is_read_cell_by_cell():
    column = np.concatenate([LABELS[:-1, None], [[2 + 0j]]])
    assert np.isfinite(codes(target_cells(column[:-1]), np.array([0, 1]))).all()


def test_a_list_of_rows_of_several_widths_is_searched():
    assert whole_table([*X.tolist(), [1.0]]).shape[1] == 2


def test_classes_that_some_container_confuses_are_refused():
    for classes in (["1", "1.0"], ["True", "1"], [2**53, 1], ["2020-01-01", "2020-01-01T00:00"]):
        with pytest.raises(InvalidInput, match="that differ as values"):
            LogisticRegression(classes=classes).fit(X, LABELS)


# features without a schema


class Reading(LinearRegression):
    """The reading of an estimator alone."""

    def read(self, table: Any, target: Any) -> Any:
        return features_and_target(self, table, target)[0]


def rows_of(table: Any, records: int = SIZE + 1) -> Any:
    return Reading(size=SIZE).read(table, np.zeros(records))


NUMBERS = {"floats": X, "singles": X.astype(np.float32), "whole": (10 * X).astype(np.int64), "truth": X > 0}


@every_cell
@pytest.mark.parametrize("kind", NUMBERS)
def test_a_cell_of_another_type_changes_no_other(kind, cell):
    table = NUMBERS[kind]
    expected = rows_of(table, SIZE)
    held = {name: pd.DataFrame({"a": concatenated(table[:, 0], cell), "b": np.append(table[:, 1], 0)}) for name in "p"}
    held["list"] = [*table.tolist(), [cell, 0]]
    held["objects"] = np.array([*table.tolist(), [None, 0]], dtype=object)
    held["objects"][-1, 0] = cell
    joined = appended(table.ravel(), cell)
    if joined is not None:
        held["numpy"] = np.append(joined, joined[-1:]).reshape(-1, 2)
    for name, column in (
        ("polars", relaxed(table[:, 0], cell, "vertical_relaxed")),
        ("arrow", promoted(table[:, 0], cell)),
    ):
        if column is not None:
            other = np.append(table[:, 1], table[:1, 1])
            held[name] = (
                pl.DataFrame({"a": column, "b": other}) if name == "polars" else pa.table([column, other], "ab")
            )
    for name, made in held.items():
        if is_refused(made):
            with pytest.raises(InvalidInput, match=r"is a column of (text|dates|lists).*[Dd]eclare it, as \[columns\."):
                rows_of(made)
        else:
            assert np.array_equal(rows_of(made)[:SIZE], expected), name


def is_refused(table: Any) -> bool:
    """Whether a whole column is text or dates by its type: a fact of the container, not protected (docs/privacy.md)."""
    if isinstance(table, pl.DataFrame):
        return table["a"].dtype == pl.String or table["a"].dtype.is_nested()
    return isinstance(table, np.ndarray) and table.dtype.kind in "USMm"


@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame({"a": X[:, 0], "city": ["Ulm"] * SIZE}),
        lambda: pd.DataFrame({"a": X[:, 0], "city": pd.Categorical(["Ulm"] * SIZE)}),
        lambda: pd.DataFrame({"a": X[:, 0], "city": pd.Timestamp("2020-01-01")}),
        lambda: pl.DataFrame({"a": X[:, 0], "city": ["Ulm"] * SIZE}),
        lambda: pa.table({"a": X[:, 0], "city": pa.array(["Ulm"] * SIZE).dictionary_encode()}),
    ],
)
@pytest.mark.parametrize("kind", [LinearRegression, LogisticRegression, AutoRegressor, AutoClassifier])
def test_a_column_of_text_without_a_schema_is_refused_before_anything_is_spent(kind, make, tmp_path):
    ledger = Ledger.open(tmp_path / "own.ledger", dataset="own", budget=Budget(9.0, 1e-3))
    classes = {} if kind in (LinearRegression, AutoRegressor) else {"classes": [0, 1]}
    with pytest.raises(InvalidInput, match=r"city is a column of .*\[columns\.city\]"):
        kind(ledger=ledger, **classes).fit(make(), LABELS)
    assert ledger.entries() == () or not list(ledger.entries())


@pytest.mark.parametrize("row", [[1.0], [1.0] * 3, [], None, 4.0, "ab", {}], ids=repr)
def test_a_row_of_another_width_changes_no_other(row):
    expected = rows_of(X, SIZE)
    assert np.array_equal(rows_of([*X.tolist(), row])[:SIZE], expected)
    assert np.array_equal(rows_of(np.fromiter([*X.tolist(), row], dtype=object))[:SIZE], expected)


# tables with a schema

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "number": {"type": "numeric", "bounds": [-100, 100]},
            "kind": {"type": "categorical", "categories": ["0", "1", "2"]},
            "day": {"type": "categorical", "categories": ["2020-01-01", "2020-01-02"]},
            "outcome": {"type": "categorical", "categories": ["0", "1"], "role": "target"},
        },
        "missing_values": ["", "-9"],
    }
)
TABLE = {
    "number": (10 * X[:, 0]).astype(np.int64),
    "kind": RNG.integers(3, size=SIZE),
    "day": np.where(LABELS, "2020-01-02", "2020-01-01").astype("M8[D]"),
    "outcome": LABELS,
}
EXPECTED = Encoder(SCHEMA).encode(TABLE)


def encoded_same(table: Any) -> bool:
    rows = Encoder(SCHEMA).encode(table)
    pairs = (rows.features, EXPECTED.features), (rows.target, EXPECTED.target)
    return all(np.array_equal(found[:SIZE], before, equal_nan=True) for found, before in pairs)


@every_cell
@pytest.mark.parametrize("name", TABLE)
def test_a_declared_column_is_read_cell_by_cell(name, cell):
    assert np.isfinite(EXPECTED.features).all()
    for container, column in neighbours(TABLE[name], cell).items():
        others = {other: np.append(values, values[-1:]) for other, values in TABLE.items() if other != name}
        assert encoded_same({**others, name: column}), container


@pytest.mark.parametrize("name", ["number", "kind"])
@pytest.mark.parametrize("typed", [float, np.float32, str, complex, object])
def test_missing_numbers_and_texts_are_read_alike_in_every_type(name, typed):
    values = np.array([-9, 0, 1])
    table = {other: column[:3] for other, column in TABLE.items()}
    expected = Encoder(SCHEMA).encode({**table, name: values}).features
    assert np.array_equal(Encoder(SCHEMA).encode({**table, name: values.astype(typed)}).features, expected)
    absent = np.array([np.nan, 0, 1])
    expected = Encoder(SCHEMA).encode({**table, name: absent}).features
    assert np.array_equal(Encoder(SCHEMA).encode({**table, name: absent.astype(typed)}).features, expected)


@pytest.mark.parametrize("line", ["x,1,2020-01-01,1", ",,,", "1,1", '"1,1', "1e400,2.0,2020-01-01 00:00,True", "\0,,,"])
def test_a_line_of_csv_changes_no_other(line, tmp_path):
    lines = ["number,kind,day,outcome", *(",".join(map(str, row)) for row in zip(*TABLE.values(), strict=True)), line]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    (frame,) = Table.open(path, SCHEMA).frames()
    assert encoded_same(frame)


@every_cell
def test_a_row_of_parquet_changes_no_other(cell, tmp_path):
    for name in ("number", "kind"):
        column = promoted(TABLE[name], cell)
        if column is None or pa.types.is_nested(column.type):
            continue
        others = {other: np.append(values, values[-1:]) for other, values in TABLE.items() if other != name}
        parquet.write_table(pa.table({**others, name: column}), tmp_path / "t.parquet")
        (frame,) = Table.open(tmp_path / "t.parquet", SCHEMA).frames()
        assert encoded_same(frame), name


# whole runs, replayed


def unmoved(run: Any, data: Any, neighbour: Any, opaque: Any = ("ledger*", "fit.json", ".ledger*", "*.ledger")) -> None:
    result = replay(run, data, neighbour, opaque=opaque)
    assert result.differences == ()
    assert result.releases > 0
    assert result.ending == "returned"


def linear(data):
    made = LinearRegression(epsilon=5.0, size=SIZE).fit(*data)
    return made.coef_, made.intercept_, made.privacy_.spent


def logistic(data):
    made = LogisticRegression(epsilon=5.0, size=SIZE, classes=[0, 1]).fit(*data)
    return made.coef_, made.intercept_, made.privacy_.spent


def searched(data):
    made = PrivateSearchCV(
        LogisticRegression(classes=[0, 1]), {"fit_intercept": [True]}, epsilon=5.0, size=SIZE, mode="composed", trials=1
    ).fit(*data)
    return made.best_score_, made.best_estimator_.coef_


def auto_regressor(data):
    made = AutoRegressor(epsilon=5.0, size=SIZE).fit(*data)
    return made.coef_, made.metrics_, made.privacy_.spent


def auto_classifier(data):
    made = AutoClassifier(epsilon=5.0, size=SIZE, epochs=8, classes=[0, 1]).fit(*data)
    return made.coef_, list(made.metrics_), made.privacy_.spent


def declared_classifier(data):
    made = AutoClassifier(epsilon=5.0, size=SIZE, epochs=8, schema=SCHEMA).fit(data)
    return made.coef_, list(made.metrics_), made.privacy_.spent


def declared_table(data):
    made = fit_table(data, SCHEMA, epsilon=5.0, delta=1e-5, size=SIZE, epochs=1)
    return made.predictor.state(), made.record.metrics


ROW = np.array([[1.0, 2.0]])
ODD_ROWS = {
    "another": np.concatenate([X, ROW]),
    "complex": np.concatenate([X, ROW * 1j]),
    "objects": np.concatenate([X, np.array([["x", None]], dtype=object)]),
    "a frame": pd.concat([pd.DataFrame(X), pd.DataFrame({0: ["x"], 1: [pd.NaT]})]),
}
ODD_LABELS = {
    "a text": np.append(LABELS, "x"),
    "a fraction": np.append(LABELS, 0.5),
    "complex": np.append(LABELS, 1j),
    "an object": np.append(LABELS.astype(object), np.fromiter([[1]], dtype=object)),
    "pandas": pd.concat([pd.Series(LABELS), pd.Series(["x"])]),
}


@pytest.mark.parametrize("odd", ODD_ROWS)
@pytest.mark.parametrize("run", [linear, logistic, auto_regressor, auto_classifier], ids=lambda run: run.__name__)
def test_a_row_of_another_type_moves_only_its_own_part_of_a_fit(run, odd):
    target = LABELS if run in (logistic, auto_classifier) else Y
    base = pd.DataFrame(X) if odd == "a frame" else X
    unmoved(run, (base, target), (ODD_ROWS[odd], np.append(target, target[:1])))


@pytest.mark.parametrize("odd", ODD_LABELS)
@pytest.mark.parametrize("run", [linear, logistic, auto_regressor, auto_classifier], ids=lambda run: run.__name__)
def test_a_label_of_another_type_moves_only_its_own_part_of_a_fit(run, odd):
    unmoved(run, (X, LABELS), (np.concatenate([X, ROW]), ODD_LABELS[odd]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("odd", ["a text", "complex"])
def test_a_label_of_another_type_moves_only_its_own_part_of_a_search(odd):
    unmoved(searched, (X, LABELS), (np.concatenate([X, ROW]), ODD_LABELS[odd]))


@pytest.mark.parametrize("container", [pd.DataFrame, pl.DataFrame, pa.table, dict], ids=lambda made: made.__name__)
@pytest.mark.parametrize("run", [declared_classifier, declared_table], ids=lambda run: run.__name__)
def test_a_declared_table_moves_only_by_its_own_record(run, container):
    day = TABLE["day"].astype("M8[us]") if container is pa.table else TABLE["day"].astype("M8[ms]")
    base = {**TABLE, "day": day}
    more = {name: np.append(values, values[-1:]) for name, values in base.items()}
    more |= {"number": np.append(base["number"], 0.5), "outcome": np.append(LABELS, 0.5)}
    if container is not pa.table:
        more |= {"kind": np.append(base["kind"], "x").astype(object)}
    unmoved(run, container(base), container(more))


@pytest.mark.parametrize("name", ["number", "kind", "outcome"])
def test_a_csv_moves_only_by_its_own_line(name, tmp_path):
    paths = []
    for file, cell in (("one.csv", None), ("two.csv", "x")):
        values = {key: list(map(str, column)) for key, column in TABLE.items()}
        if cell is not None:
            values = {key: [*column, cell if key == name else column[0]] for key, column in values.items()}
        (tmp_path / file[:3]).mkdir()
        paths.append(tmp_path / file[:3] / "t.csv")
        pd.DataFrame(values).to_csv(paths[-1], index=False)
    unmoved(declared_table, *paths)


@pytest.mark.parametrize("cell", [0.5, None, float("nan"), 10**15, True], ids=repr)
def test_a_parquet_fit_moves_only_by_its_own_row(cell, tmp_path):
    whole = (10 * X).astype(np.int64)
    base = pa.table({"a": whole[:, 0], "b": whole[:, 1], "y": Y})
    row = pa.table({"a": pa.array([cell]), "b": pa.array([1]), "y": pa.array([1.0])})
    paths = []
    for name, table in {"one": [base], "two": [base, row]}.items():
        try:
            joined = pa.concat_tables(table, promote_options="permissive")
        except pa.ArrowException:  # arrow joins no truth values to numbers: the row is a file of its own
            (tmp_path / name).mkdir()
            for place, part in enumerate(table):
                parquet.write_table(part, tmp_path / name / f"{place}.parquet")
        else:
            (tmp_path / name).mkdir()
            parquet.write_table(joined, tmp_path / name / "0.parquet")
        paths.append(tmp_path / name)

    def run(path):
        return LinearRegression(epsilon=5.0, size=SIZE).fit_parquet(path, target="y").coef_

    unmoved(run, *paths)


# tensors, data sets and collate functions

T = 12
INPUTS = torch.from_numpy(X).float()[:40]
TARGETS = torch.from_numpy(LABELS)[:40]
EXAMPLE = (torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
LOSS = nn.CrossEntropyLoss(reduction="none")


def plan() -> Plan:
    return Plan.calibrate(Budget(5.0, 1e-5), size=40, batch_size=40, steps=1, clipping="constant")


def net(width: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(width, 2)


def by_trainer(dataset, loss=LOSS, model=None, **options):
    options = {"example": EXAMPLE, "lr": 0.5, "chunk_size": T, "test_seed": 1, **options}
    return Trainer(model or net(), loss, plan(), **options).fit(dataset).model.state_dict()


def by_own_loop(dataset, loss=LOSS, model=None, workers=0, collate_fn=None, **options):
    model, chosen = model or net(), plan()
    options = {"example": EXAMPLE, "chunk_size": T, "test_seed": 1, **options}
    step = PrivateStep(model, loss, torch.optim.SGD(model.parameters(), lr=0.5), chosen, **options)
    for batch in poisson_loader(dataset, chosen, num_workers=workers, collate_fn=collate_fn):
        step(batch)
    return model.state_dict()


WAYS = [by_trainer, by_own_loop]
both_ways = pytest.mark.parametrize("run", WAYS)
TENSORS = {
    "another": (INPUTS[:1], TARGETS[:1]),
    "doubles": (INPUTS[:1].double(), TARGETS[:1]),
    "complex": (INPUTS[:1] * 1j, TARGETS[:1]),
    "real complex": (INPUTS[:1] + 0j, TARGETS[:1]),
    "a fraction": (INPUTS[:1], torch.tensor([0.5])),
    "a float": (INPUTS[:1], torch.tensor([1.0])),
    "a truth value": (INPUTS[:1], torch.tensor([True])),
    "not a number": (INPUTS[:1], torch.tensor([torch.nan])),
    "a complex label": (INPUTS[:1], torch.tensor([1j])),
}


@pytest.mark.parametrize(("run", "odd"), thin_product(2, WAYS, TENSORS))
def test_torch_cat_with_another_type_moves_only_its_own_part(run, odd):
    more = [torch.cat([whole, part]) for whole, part in zip((INPUTS, TARGETS), TENSORS[odd], strict=True)]
    unmoved(run, TensorDataset(INPUTS, TARGETS), TensorDataset(*more))
    apart = [Subset(TensorDataset(*each), range(len(each[0]))) for each in ((INPUTS, TARGETS), more)]
    unmoved(run, *apart)


def test_torch_joins_no_rows_of_another_width_and_types_without_an_example_are_the_containers(tmp_path):
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        torch.cat([INPUTS, torch.zeros(1, 3)])
    ledger = Ledger.open(tmp_path / "own.ledger", dataset="own", budget=Budget(9.0, 1e-3))
    doubles = TensorDataset(torch.cat([INPUTS, INPUTS[:1].double()]), torch.cat([TARGETS, TARGETS[:1]]))
    with pytest.raises(InvalidInput, match="made-up records"):
        Trainer(net(), LOSS, plan(), lr=0.5, ledger=ledger).fit(doubles)
    assert not list(ledger.entries())


class Arrays(Dataset):
    """A data set of numpy arrays, as most are."""

    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        return self.inputs[i], self.labels[i]


@both_ways
@pytest.mark.parametrize("label", [0.5, 1.0, "x", "1", 1j, True, None, b"1"], ids=repr)
def test_labels_that_numpy_retyped_are_read_by_value(run, label):
    inputs, labels = X[:40].astype(np.float32), LABELS[:40]
    unmoved(run, Arrays(inputs, labels), Arrays(np.concatenate([inputs, inputs[:1]]), np.append(labels, label)))


@both_ways
def test_inputs_that_numpy_retyped_are_read_by_value(run):
    inputs, labels = X[:40].astype(np.float32), LABELS[:40]
    for row in (ROW, ROW * 1j, ROW + 0j, ROW.astype(np.longdouble), ROW.astype(object), ROW.astype(str)):
        unmoved(run, Arrays(inputs, labels), Arrays(np.concatenate([inputs, row]), np.append(labels, 1)))


class Mixing(Arrays):
    """A data set that takes many records at once, and centres them."""

    def __getitems__(self, places):
        made = [self[i] for i in places]
        mean = np.mean([x for x, _ in made], axis=0)
        return [(x - mean, y) for x, y in made]


def centred(records):
    """Inputs less the mean of the batch."""
    inputs = torch.stack([torch.as_tensor(x) for x, _ in records])
    return inputs - inputs.mean(0) * (len(records) > 1), torch.tensor([int(y) for _, y in records])


@both_ways
def test_what_mixes_many_records_is_given_one(run):
    inputs, labels = X[:40].astype(np.float32), LABELS[:40]
    more = np.concatenate([inputs, [[1e3, -1e3]]]).astype(np.float32), np.append(labels, 1)
    unmoved(run, Mixing(inputs, labels), Mixing(*more))
    unmoved(lambda data: run(data, collate_fn=centred), Arrays(inputs, labels), Arrays(*more))


class Sequences(Dataset):
    """Sequences of their own lengths, ending in one token."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return torch.linspace(i, i + 1, self.lengths[i]), i % 2


def padded(records):
    """Inputs padded to the longest of the batch, and how much was padded, as a value the model sees."""
    longest = max(len(x) for x, _ in records)
    inputs = torch.stack([nn.functional.pad(x, (0, longest - len(x)), value=9.0) for x, _ in records])
    return {"x": inputs, "y": torch.tensor([y for _, y in records]), "longest": torch.full((T,), float(longest))}


def length_loss(model, batch):
    inputs = torch.stack([batch["x"].mean(1), batch["x"].amax(1)], 1) + batch["longest"].mean()
    return LOSS(model(inputs), batch["y"])


@pytest.mark.parametrize(("run", "length"), thin_product(2, WAYS, [1, 5, 40]))
def test_no_record_is_padded_to_another_and_shared_tensors_are_its_own(run, length):
    form = {"x": torch.zeros(1, 4), "y": torch.zeros(1, dtype=torch.int64), "longest": torch.zeros(T)}

    def padding(dataset):
        return run(dataset, loss=length_loss, per_batch=True, example=form, collate_fn=padded, engine="loop")

    lengths = [3 + i % 3 for i in range(30)]  # beside six others, in a chunk of twelve
    unmoved(padding, Sequences(lengths), Sequences([*lengths, length]))


def test_chunks_hold_records_of_equal_lengths_and_never_as_many_as_a_shared_tensor_has_rows():
    form = {"x": torch.zeros(1, 4), "y": torch.zeros(1, dtype=torch.int64), "longest": torch.zeros(T)}
    data = Sequences([4] * T + [7])
    chunks = [chunk.whole for chunk in Reader(data, padded, form).chunks([np.arange(T + 1)])]
    assert sorted(len(chunk["y"]) for chunk in chunks) == [1, 1, T - 1]
    for chunk in chunks:
        assert chunk["longest"].tolist() == [chunk["x"].shape[1]] * T
        assert not (chunk["x"] == 9.0).all(0).any()
    rows = sorted(row.tolist() for chunk in chunks for row in chunk["x"])
    assert rows == sorted(data[i][0].tolist() for i in range(T + 1))


def test_workers_read_records_alone_too():
    inputs, labels = X[:40].astype(np.float32), LABELS[:40]
    more = np.concatenate([inputs, [[1e3, -1e3]]]).astype(np.float32), np.append(labels, 0.5)
    unmoved(
        lambda data: by_own_loop(data, workers=1, collate_fn=centred),
        Arrays(inputs, labels.astype(float)),
        Arrays(*more),
    )


# features and images


@every_cell
def test_features_and_their_labels_are_read_cell_by_cell(cell):
    base = Features.of(X, LABELS, 2)
    more = np.concatenate([X, ROW])
    for name, labels in neighbours(LABELS, cell).items():
        found = Features.of(more, labels, 2)
        assert torch.equal(found.values[:SIZE], base.values), name
        assert torch.equal(found.labels[:SIZE], base.labels), name
    column = appended(X.ravel(), cell)
    if column is not None and column.dtype.kind not in "Mm":
        found = Features.of(np.append(column, column[-1:]).reshape(-1, 2), np.append(LABELS, 1), 2)
        assert torch.equal(found.values[:SIZE], base.values)


@pytest.mark.parametrize(
    "row", [ROW, ROW * 1j, ROW.astype(object), ROW.astype(np.longdouble)], ids=["same", "c", "O", "g"]
)
def test_a_probe_moves_only_by_its_own_record(row):
    def run(data):
        values, labels = data
        return fit_probe(Features.of(values, labels, 2), budget=Budget(2.0, 1e-5), size=SIZE, lr=1.0, steps=3).weights

    unmoved(run, (X, LABELS), (np.concatenate([X, row]), np.append(LABELS, "1")))


IMAGES = RNG.integers(0, 256, size=(20, 8, 8), dtype=np.uint8)
ODD_IMAGES = {
    "bytes": IMAGES[:1],
    "floats": RNG.uniform(size=(1, 8, 8)),
    "whole numbers": IMAGES[:1].astype(np.int64) * 1000,
    "negative": -RNG.uniform(size=(1, 8, 8)),
    "complex": RNG.uniform(size=(1, 8, 8)) * 1j,
    "not a number": np.full((1, 8, 8), np.nan),
    "objects": np.full((1, 8, 8), "x", dtype=object),
}


@pytest.mark.parametrize("odd", ODD_IMAGES)
def test_an_image_of_another_type_scales_no_other(odd):
    base = scattered(IMAGES, LABELS[:20], 2)
    more = np.concatenate([IMAGES, ODD_IMAGES[odd]])
    found = scattered(more, np.append(LABELS[:20], 0.5), 2)
    assert torch.equal(found.values[:20], base.values)
    assert torch.equal(found.labels[:20], base.labels)
    if odd != "objects":
        assert torch.equal(scattered(list(more), LABELS[:21], 2).values[:20], base.values)
        assert torch.equal(scattered([*IMAGES, np.zeros((4, 4))], LABELS[:21], 2).values[:20], base.values)


def test_images_of_another_type_move_only_their_own_part_of_a_fit():
    def run(data):
        made = AutoClassifier(epsilon=5.0, size=20, epochs=8, classes=[0, 1]).fit(*data)
        return made.coef_, list(made.metrics_)

    more = np.concatenate([IMAGES, ODD_IMAGES["floats"]]), np.append(LABELS[:20], "x")
    unmoved(run, (IMAGES, LABELS[:20]), more)
