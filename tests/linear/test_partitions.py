"""A table in partitions: each is added once, however its task is carried out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dpilot.audit.neighbours import Pair
from dpilot.errors import InvalidInput
from dpilot.linear import LinearRegression
from dpilot.linear.partitions import PartitionRows
from dpilot.linear.rows import unit_total

NAMES = ("a", "b")


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    made = pd.DataFrame(rng.normal(size=(500, 2)), columns=list(NAMES))
    made["y"] = made["a"] - 2 * made["b"] + rng.normal(0, 0.1, 500)
    made.loc[7, "a"] = np.nan
    return made


def in_partitions(frame, kind, folder):
    pieces = [frame[start : start + 120] for start in range(0, len(frame), 120)]
    if kind == "pandas":
        return pieces
    if kind == "lazy":
        return [pl.from_pandas(piece).lazy() for piece in pieces]
    if kind == "functions":
        return [lambda piece=piece: pl.from_pandas(piece) for piece in pieces]
    for place, piece in enumerate(pieces):
        piece.to_parquet(folder / f"{place}.parquet")
    return [folder / f"{place}.parquet" for place in range(len(pieces))]


def twice(task, numbers):
    """A scheduler that runs all tasks again, for one was slow, and delivers the late results as well."""
    return [*map(task, reversed(numbers)), *map(task, numbers)]


def in_threads(task, numbers):
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(task, numbers))


def model(**options):
    return LinearRegression(epsilon=20.0, delta=1e-5, random_state=5, method="adassp", **options)


@pytest.mark.parametrize("kind", ["pandas", "lazy", "functions", "paths"])
@pytest.mark.parametrize("run", [map, twice, in_threads])
@pytest.mark.filterwarnings("ignore:random_state")
def test_partitions_give_the_model_of_the_table(kind, run, frame, tmp_path):
    whole = model().fit(frame[list(NAMES)].to_numpy(), frame["y"].to_numpy())
    found = model().fit_partitions(in_partitions(frame, kind, tmp_path), "y", features=NAMES, run=run)
    assert found.coef_ == pytest.approx(whole.coef_, rel=1e-9)
    assert found.intercept_ == pytest.approx(whole.intercept_, rel=1e-9, abs=1e-12)
    assert np.abs(found.coef_ - [1, -2]).max() < 0.3


def test_a_partition_that_is_delivered_twice_is_added_once(frame, tmp_path):
    calls = []

    def run(task, numbers):
        for result in twice(task, numbers):
            calls.append(result[0])
            yield result

    rows = PartitionRows(tuple(in_partitions(frame, "pandas", tmp_path)), (*NAMES, "y"), run)
    values = frame.dropna().to_numpy()
    assert unit_total(rows, lambda chunk: chunk.values.sum(axis=0)) == pytest.approx(values.sum(axis=0))
    mapped = rows.map(lambda some: 2 * some, 3)
    assert unit_total(mapped, lambda chunk: chunk.values.sum(axis=0)) == pytest.approx(2 * values.sum(axis=0))
    assert calls == 2 * [4, 3, 2, 1, 0, 0, 1, 2, 3, 4]


def test_a_partition_that_is_lost_stops_the_fit(frame, tmp_path):
    def lose(task, numbers):
        return map(task, numbers[1:])

    made = LinearRegression(method="adassp", size=500)
    with pytest.raises(InvalidInput, match=r"no result of partitions \[0\]"):
        made.fit_partitions(in_partitions(frame, "pandas", tmp_path), "y", features=NAMES, run=lose)


def test_a_record_more_moves_releases_by_no_more_than_a_bound(replay, frame, tmp_path):
    more = pd.concat([frame, pd.DataFrame({"a": [1e9], "b": [-1e9], "y": [1e9]})], ignore_index=True)

    def fit(data):
        made = LinearRegression(method="adassp", size=500)
        return made.fit_partitions(in_partitions(data, "pandas", tmp_path), "y", features=NAMES, run=twice).coef_

    (result,) = replay(fit, pairs=[Pair("far out", frame, more)])
    assert result.releases > 2


def test_what_is_wrong_is_refused(frame, tmp_path):
    with pytest.raises(InvalidInput, match="apart"):
        LinearRegression().fit_partitions([frame], "a", features=NAMES)
    with pytest.raises(InvalidInput, match="fit_parquet"):
        LinearRegression(unit="person").fit_partitions([frame], "y", features=NAMES)
