"""Attacks on linear models: records at the edge of a bin of norms, which the last bit of a product moves to the next.

numpy multiplies by another kernel from some number of rows on, and the last rows by yet another: one more record then
moved the products of all others by a bit, and with it their bins.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dpilot import audit
from dpilot._arrays import Floats
from dpilot.linear.logistic import probabilities
from dpilot.linear.row_gradients import GridRows, HistogramClip, RowGradients, gradient_step
from dpilot.linear.rows import MemoryRows
from dpilot.linear.streaming import parquet_rows
from dpilot.mechanism import SYSTEM
from dpilot.numerics.products import products
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from tests.attacks.judge import TOLERANCE

KAPPA = 0.18


def logistic(target: Floats, scores: Floats) -> Floats:
    """The negative derivative of the logistic loss."""
    return np.eye(scores.shape[1])[target.astype(int)] - probabilities(scores)


def squared(target: Floats, scores: Floats) -> Floats:
    return target[:, None] - scores


def step(weights: Floats, residual: Any, threshold: float, rows: Floats) -> Any:
    paid: dict[str, Any] = {"noise_multiplier": 1.0, "receipt": Receipt(Gaussian(1.0)), "noise": SYSTEM}
    state = HistogramClip(threshold, KAPPA)
    return gradient_step(GridRows.of(MemoryRows.of(rows)), weights, state, residual=residual, **paid)


def norms(rows: Floats, weights: Floats, residual: Any) -> Floats:
    """Norms of gradients by one product of all rows, as numpy multiplies them."""
    features, pull = rows[:, :-1], residual(rows[:, -1], rows[:, :-1] @ weights)
    return np.asarray(np.sqrt((features**2).sum(1)) * np.sqrt((pull**2).sum(1)))


def edged(n: int, width: int, outputs: int, residual: Any) -> tuple[Floats, Floats, float]:
    """Equal records, weights, and a threshold: the norm of records that would be longer beside one more."""
    for seed in range(100):
        generator = np.random.default_rng(seed)
        weights, row = generator.standard_normal((width, outputs)), generator.standard_normal((1, width + 1))
        row[:, -1] = 0.0
        rows = row.repeat(n + 1, 0)
        before, after = norms(rows[:-1], weights, residual), norms(rows, weights, residual)[:-1]
        if (after > before).any():
            return rows[:-1], weights, float(before[after > before][0])
    pytest.skip("on this machine products are the same beside any number of rows")


CASES = {
    "another kernel, ten outputs": (1000, 100, 10, logistic),
    "another kernel, two outputs": (5000, 100, 2, logistic),
    "last rows": (1003, 101, 1, squared),
}
"""251, 1253 and 1.2 bounds before rows were multiplied in blocks of one size."""


@pytest.mark.parametrize(("n", "width", "outputs", "residual"), CASES.values(), ids=CASES)
def test_one_more_record_moves_no_other_to_the_next_bin(n: int, width: int, outputs: int, residual: Any) -> None:
    rows, weights, threshold = edged(n, width, outputs, residual)
    for more in (np.concatenate([rows, rows[:1]]), np.concatenate([0 * rows[:1], rows])):
        result = audit.replay(partial(step, weights, residual, threshold), rows, more, tolerance=TOLERANCE)
        assert result.largest <= 1 + TOLERANCE
        assert not result.differences


def test_a_null_record_moves_no_other_to_the_next_bin() -> None:
    """Tables whose columns lie together, as those of frames do, were laid out anew beside it: 251 bounds."""
    for seed in range(50):
        generator = np.random.default_rng(seed)
        weights, row = generator.standard_normal((20, 3)), generator.standard_normal((1, 21))
        row[:, -1] = 0.0
        rows = np.asfortranarray(row.repeat(1000, 0))
        here, there = (norms(each, weights, logistic)[0] for each in (rows, np.ascontiguousarray(rows)))
        more = np.asfortranarray(np.concatenate([rows, np.full((1, 21), np.nan)]))
        for threshold in (float(min(here, there)), float(RowGradients(rows, weights, logistic).norms[0])):
            result = audit.replay(partial(step, weights, logistic, threshold), rows, more, tolerance=TOLERANCE)
            assert result.largest <= TOLERANCE
            assert not result.differences


@pytest.mark.parametrize("columns", [1, 4, 20])
def test_a_null_record_changes_no_layout_of_a_file(columns: int, tmp_path: Path) -> None:
    table, flags = np.random.default_rng(0).standard_normal((30, columns + 1)), []
    for values in (table, np.concatenate([table, np.full((1, columns + 1), np.nan)])):
        names = [f"c{i}" for i in range(columns + 1)]
        parquet.write_table(pa.table(dict(zip(names, values.T, strict=True))), tmp_path / "own.parquet")
        rows, *_ = parquet_rows(tmp_path / "own.parquet", names[-1])
        flags.append([chunk.flags.c_contiguous for chunk in rows.chunks()])
        np.testing.assert_array_equal(np.concatenate(list(rows.chunks())), table)
    assert flags[0] == flags[1]


@pytest.mark.parametrize("outputs", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("width", [1, 3, 20, 100, 300])
def test_the_product_of_a_row_depends_on_it_alone(width: int, outputs: int) -> None:
    """Whatever is before and behind it, and however the table lies in memory."""
    generator = np.random.default_rng(0)
    weights, table = generator.standard_normal((width, outputs)), generator.standard_normal((1100, width + 1))
    whole = products(table[:, :-1], weights)
    for rows in (table[:, :-1], np.asfortranarray(table[:, :-1])):
        for start, stop in ((0, 1), (0, 511), (1, 513), (7, 1030), (1099, 1100)):
            np.testing.assert_array_equal(products(rows[start:stop], weights), whole[start:stop])
