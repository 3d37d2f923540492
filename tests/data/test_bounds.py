"""Bought bounds: what they cost, what they see, and where they lie."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpilot.data.bounds import buy, buy_event, raw_numbers, tail
from dpilot.data.files import Table
from dpilot.data.schema import Schema
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.mechanism import seeded_noise
from dpilot.privacy.events import Gaussian, leaves
from dpilot.privacy.receipt import Receipt
from dpilot.tape import tape
from tests.statistics.helpers import Anything
from tests.tapes import NoiseFree

BUY = {"type": "numeric", "bounds": "buy"}


def schema_of(*names: str) -> Schema:
    return Schema.from_dict({"columns": dict.fromkeys(names, BUY)})


def bought(table: Any, schema: Schema, *, noise_multiplier: float = 2.0, size: float = 10_000, **options: Any) -> Any:
    paid = Receipt(buy_event(schema, noise_multiplier))
    return buy(schema, table, size=size, noise_multiplier=noise_multiplier, receipt=paid, **options)


def test_the_cost_is_what_was_said_and_one_gaussian_in_all() -> None:
    schema, receipt = schema_of("a", "b", "c"), Anything()
    event = buy_event(schema, 3.0)
    buy(schema, {name: [1.0] for name in "abc"}, size=10, noise_multiplier=3.0, receipt=receipt)
    assert receipt.drawn == Counter(dict(leaves(event)))
    parts = [(part, times) for part, times in leaves(event)]
    assert all(isinstance(part, Gaussian) for part, _ in parts)
    assert sum(times / part.noise_multiplier**2 for part, times in parts) == pytest.approx(1 / 3.0**2)
    with pytest.raises(BudgetExceeded):
        buy(schema, {name: [1.0] for name in "abc"}, size=10, noise_multiplier=2.9, receipt=Receipt(event))


@pytest.mark.parametrize("record", [0.0, 50.0, 1e9, -1e300, 1e-9, "12", None, "x", float("inf"), 10**400, [], b"\xff"])
def test_one_record_moves_no_question_by_more_than_its_bound(record: object) -> None:
    """With the answers of the first run given again, so that the same questions are asked."""
    schema = schema_of("a", "b")
    table = {"a": [*range(100)], "b": [*range(0, -300, -3)]}
    first, entries = listened(schema, table, NoiseFree())
    more, moved = listened(schema, {"a": [*table["a"], record], "b": [*table["b"], 7.0]}, Echo(entries))
    assert more == first
    assert len(moved) == len(entries)
    for before, after in zip(entries, moved, strict=True):
        assert before.bound == after.bound
        assert np.linalg.norm(after.inputs[0] - before.inputs[0]) <= before.bound * (1 + 1e-12)
    assert any((after.inputs[0] != before.inputs[0]).any() for before, after in zip(entries, moved, strict=True))


class Echo(NoiseFree):
    """Hears every release and gives the answers of another run."""

    def __init__(self, given: list[Any]) -> None:
        super().__init__()
        self.given = iter(given)

    def release(self, entry: Any, outputs: Any) -> Any:
        self.entries.append(entry)
        return [value.copy() for value in next(self.given).inputs]


def listened(schema: Schema, table: Any, listener: Any) -> tuple[Any, list[Any]]:
    with tape(listener):
        value = buy(schema, table, size=100, noise_multiplier=1.0, receipt=Anything())
    return value, listener.entries


def test_bounds_hold_nearly_all_and_not_much_more() -> None:
    random = np.random.default_rng(0)
    table = {
        "years": random.integers(1950, 2011, 50_000),
        "normal": random.normal(5, 2, 50_000),
        "wide": random.lognormal(8, 1, 50_000),
        "negative": -random.exponential(3, 50_000) - 100,
        "tiny": random.uniform(0, 0.01, 50_000),
    }
    found = bought(table, schema_of(*table), noise_multiplier=5.0, size=50_000, noise=seeded_noise(0))
    for name, (lower, upper) in found.items():
        low, high = np.quantile(table[name], [0.01, 0.99])
        assert np.mean((table[name] >= lower) & (table[name] <= upper)) > 0.95, name
        assert upper - lower < 1.6 * (high - low), name


def test_a_missing_value_hides_no_other_column() -> None:
    values = np.linspace(0.0, 100.0, 10_000)
    table = {"a": values, "b": ["?"] * 10_000}
    lower, upper = bought(table, schema_of("a", "b"), noise=seeded_noise(1))["a"]
    assert -5 < lower < 5
    assert 95 < upper < 105


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None] * 5,
        [7.0] * 20_000,
        [0.0] * 20_000,
        [1e300] * 20_000,
        [-1e300] * 20_000,
        [-1e300, 1e300] * 10_000,
        [1e-30],
        [*[0.0] * 20_000, 1.7e308],
    ],
)
def test_bounds_are_an_interval_whatever_the_data(values: list[Any]) -> None:
    for seed in range(5):
        lower, upper = bought({"a": values}, schema_of("a"), noise=seeded_noise(seed))["a"]
        assert lower < upper
        schema_of("a").with_bounds({"a": (lower, upper)})


def test_a_table_in_pieces_gives_the_same(tmp_path: Path) -> None:
    schema = schema_of("a", "b")
    rows = [f"{place % 97},{'' if place % 5 else place}" for place in range(3000)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b", *rows]) + "\n")
    table = Table.open(tmp_path / "t.csv", schema)
    pieces = bought(lambda: table.frames(rows=100), schema, size=3000, noise=seeded_noise(3))
    assert pieces == bought(table.frame(), schema, size=3000, noise=seeded_noise(3))


def test_the_tail_follows_from_declared_numbers_and_small_sizes_still_get_an_interval() -> None:
    assert tail(10**9, 1.0, 1) == 0.01
    assert tail(10, 10.0, 5) == 0.25
    assert 0.01 < tail(5000, 2.0, 4) < 0.25
    values = {"a": np.random.default_rng(0).normal(0, 1, 300)}
    lower, upper = bought(values, schema_of("a"), noise_multiplier=2.0, size=300, noise=seeded_noise(2))["a"]
    assert -20 < lower < -1.5
    assert 1.5 < upper < 20


def test_raw_numbers_are_nan_where_there_is_none() -> None:
    values = raw_numbers({"a": [1, "2", "x", None, math.inf]}, schema_of("a"), ("a",))
    assert np.array_equal(values[:, 0], [1, 2, np.nan, np.nan, np.nan], equal_nan=True)


def test_nothing_to_buy_is_refused() -> None:
    schema = Schema.from_dict({"columns": {"a": {"type": "numeric", "bounds": [0, 1]}}})
    with pytest.raises(InvalidInput, match="no column"):
        buy_event(schema, 1.0)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidInput):
            buy_event(schema_of("a"), wrong)
        with pytest.raises(InvalidInput):
            tail(wrong, 1.0, 1)
