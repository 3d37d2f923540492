"""Parquet files give the model that the same table in memory gives, batch by batch."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from dpilot.errors import InvalidInput
from dpilot.linear import LinearRegression, streaming
from dpilot.linear.rows import total
from dpilot.linear.streaming import parquet_rows
from tests.linear.helpers import line

pytestmark = pytest.mark.filterwarnings("ignore:random_state")


@pytest.fixture
def frame():
    X, y, _ = line(900, 3)
    return pd.DataFrame({"a": X[:, 0], "y": y, "b": X[:, 1].astype(np.float32), "flag": X[:, 2] > 0})


@pytest.fixture
def files(tmp_path, frame, monkeypatch):
    monkeypatch.setattr(streaming, "BATCH", 100)
    frame[:500].to_parquet(tmp_path / "part1.parquet")
    frame[500:].to_parquet(tmp_path / "part2.parquet")
    return tmp_path


@pytest.mark.parametrize("method", ["auto", "adassp", "boosted", "bsgs", "tukey"])
def test_files_give_the_model_of_the_table(method, files, frame):
    made = {"method": method, "random_state": 3}
    table = LinearRegression(**made).fit(frame[["a", "b", "flag"]].astype(float), frame["y"])
    for where in (files, files / "*.parquet", [files / "part1.parquet", str(files / "part2.parquet")]):
        streamed = LinearRegression(**made).fit_parquet(where, target="y")
        if method != "tukey":  # whose coins are fresh
            assert streamed.coef_ == pytest.approx(table.coef_, rel=1e-6)
        assert streamed.feature_names_in_.tolist() == ["a", "b", "flag"]
        assert np.isfinite(streamed.predict(frame[["a", "b", "flag"]])).all()


def test_missing_values_are_null_records(tmp_path):
    pd.DataFrame({"a": [1.0, None, 3.0], "b": pd.array([1, 2, None], dtype="Int64"), "y": [1.0, 2.0, 3.0]}).to_parquet(
        tmp_path / "holes.parquet"
    )
    rows, length, names = parquet_rows(tmp_path / "holes.parquet", "y")
    assert total(rows, lambda values: values.sum(axis=0)).tolist() == [1.0, 1.0, 1.0]
    assert (length, names) == (3, ("a", "b"))


def test_files_without_rows_give_a_finite_model(tmp_path, frame):
    frame[:0].to_parquet(tmp_path / "empty.parquet")
    model = LinearRegression(size=100).fit_parquet(tmp_path / "empty.parquet", target="y")
    assert np.isfinite(model.coef_).all()


def test_facts_of_the_files_are_told(tmp_path, frame):
    with pytest.raises(InvalidInput, match="expected parquet files"):
        LinearRegression().fit_parquet(tmp_path / "none*.parquet", target="y")
    frame.to_parquet(tmp_path / "one.parquet")
    with pytest.raises(InvalidInput, match="target"):
        LinearRegression().fit_parquet(tmp_path / "one.parquet", target="z")
    frame.assign(word="x").to_parquet(tmp_path / "word.parquet")
    with pytest.raises(InvalidInput, match="not numeric"):
        LinearRegression().fit_parquet(tmp_path / "word.parquet", target="y")
    with pytest.raises(InvalidInput, match="other columns"):
        LinearRegression().fit_parquet(tmp_path, target="y")


HELD = """
import sys
import pyarrow
from dpilot.linear.streaming import parquet_rows

print(max(pyarrow.total_allocated_bytes() for _ in parquet_rows(sys.argv[1], "y")[0].chunks()))
"""


@pytest.mark.slow
def test_reading_keeps_no_more_than_a_batch(tmp_path):
    values = np.random.default_rng(0).normal(size=(1_000_000, 4))
    path = tmp_path / "long.parquet"
    pd.DataFrame(values, columns=["a", "b", "c", "y"]).to_parquet(path, row_group_size=20_000)
    held = subprocess.run(  # what other tests of this process left in arrow's memory does not count
        [sys.executable, "-c", HELD, str(path)], capture_output=True, text=True, check=True
    )
    assert 0 < int(held.stdout) < values.nbytes / 2


def test_whole_numbers_beyond_those_of_floats_are_rounded(tmp_path):
    large = [2**53 + 1, -(2**63), 7]
    for kind, values in (("int64", large), ("uint64", [2**64 - 1, 1, 2])):
        table = pa.table({"a": pa.array(values, pa.type_for_alias(kind)), "y": [1.0, 2.0, 3.0]})
        parquet.write_table(table, tmp_path / f"{kind}.parquet")
        read = parquet_rows(tmp_path / f"{kind}.parquet", "y")[0]
        assert total(read, lambda chunk: chunk[:, 0].sum()) == sum(map(float, values))
        assert np.isfinite(LinearRegression(size=300).fit_parquet(tmp_path / f"{kind}.parquet", "y").coef_).all()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", ["string", "decimal", "time"])
def test_columns_that_are_not_numeric_are_told_without_values(kind, place, tmp_path):
    odd = {
        "string": pa.array(["4711", "word"]),
        "decimal": pa.array([Decimal("4711.1"), None]),
        "time": pa.array([4711, None], pa.timestamp("s")),
    }
    numeric = pa.table({"a": [1.0, 2.0], "y": [1.0, 2.0]})
    parquet.write_table(numeric, tmp_path / f"part{1 - place}.parquet")
    parquet.write_table(pa.table({"a": odd[kind], "y": [1.0, 2.0]}), tmp_path / f"part{place}.parquet")
    with pytest.raises(InvalidInput, match=rf"'a'.*part{place}.*not numeric") as caught:
        LinearRegression().fit_parquet(tmp_path, "y")
    assert "4711" not in str(caught.value)
