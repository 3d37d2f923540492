"""What a cell is worth does not depend on the type that one other record gives its column."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpilot.data.encoder import Encoder
from dpilot.data.schema import Column, Schema
from dpilot.errors import InvalidInput
from dpilot.fit.expansion import features_of
from tests.data.raising import raising_cells


def encoder(**declared: Any) -> Encoder:
    return Encoder(Schema.from_dict({"columns": {"a": {"missing": "null", **declared}}}))


def joined(values: Any, extra: object) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pd.concat([pd.DataFrame({"a": values}), pd.DataFrame({"a": [extra]})], ignore_index=True)


@pytest.mark.parametrize("categories", [["True", "False"], ["1", "0"], ["0", "True"], ["x", "False", "1"]])
@pytest.mark.parametrize("values", [[True, False], [1, 0], [1.0, 0.0]])
@pytest.mark.parametrize("extra", [2, 2.5, True, "z", None, np.nan])
def test_truth_values_are_the_numbers_they_equal(categories: list[str], values: list[Any], extra: object) -> None:
    made = encoder(type="categorical", categories=categories)
    plain = made.encode({"a": np.array(values)}).features
    assert plain.sum(1).tolist() == [1.0, 1.0]
    assert np.array_equal(made.encode(joined(values, extra)).features[:2], plain)
    assert np.array_equal(made.encode({"a": np.array([*values, extra])}).features[:2], plain)


def test_a_truth_value_is_not_missing_under_its_other_name() -> None:
    schema = Schema.from_dict(
        {"columns": {"a": {"type": "categorical", "categories": ["False"]}}, "missing_values": ["0"]}
    )
    for cell in (False, 0, 0.0, "0", "False"):
        assert Encoder(schema).encode({"a": [cell]}).features.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("categories", [["True", "1"], ["0", "x", "False"], [True, 1]])
def test_both_names_of_one_category_are_refused(categories: list[Any]) -> None:
    with pytest.raises(InvalidInput, match=r"'a': .* are both categories: expected one of them"):
        Column("a", "categorical", categories=tuple(categories))


LARGE = 2**53


@pytest.mark.parametrize("number", [LARGE, LARGE + 1, -LARGE, -LARGE - 1, 2**60])
@pytest.mark.parametrize("extra", [None, np.nan, 0.5, "z", 7])
def test_whole_numbers_that_floats_confuse_are_null_whatever_their_type(number: int, extra: object) -> None:
    made = encoder(type="categorical", categories=["7", "x"])
    tables = [joined([number] * 3, extra), joined([str(number)] * 3, extra), {"a": [number] * 3}]
    for table in (*tables, {"a": np.array([float(number)] * 3)}, {"a": np.append(np.array([number] * 3), "z")}):
        assert np.isnan(made.encode(table).features[:3]).all()


@pytest.mark.parametrize("number", [LARGE, -LARGE - 1, str(LARGE), "1e+20"])
def test_whole_numbers_that_floats_confuse_are_no_categories(number: object) -> None:
    with pytest.raises(InvalidInput, match=r"a whole number from 2\^53 on.*Put a letter before it"):
        Column("a", "categorical", categories=(number, "x"))


def test_whole_numbers_below_are_told_apart() -> None:
    made = encoder(type="categorical", categories=[LARGE - 1, LARGE - 2])
    for extra in (None, np.nan, 0.5, "z"):
        assert made.encode(joined([LARGE - 1, LARGE - 2], extra)).features[:2].tolist() == [[1.0, 0.0], [0.0, 1.0]]


TIMES = {
    "times": pd.to_datetime(["2020-01-01"] * 2),
    "zones": pd.to_datetime(["2020-01-01"] * 2).tz_localize("UTC"),
    "durations": pd.to_timedelta([1, 2], unit="s"),
    "periods": pd.period_range("2020", periods=2),
    "arrow": pd.Series(pd.to_datetime(["2020-01-01"] * 2)).astype("timestamp[us][pyarrow]"),
    "numpy": np.array(["2020-01-01"] * 2, dtype="M8[ns]"),
    "numpy days": np.array(["2020-01-01"] * 2, dtype="M8[D]"),
    "beyond the calendar": np.array([2**62] * 2, dtype="M8[s]"),
}


@pytest.mark.parametrize("what", TIMES)
@pytest.mark.parametrize("outside", ["null", "clamp"])
def test_times_where_numbers_are_declared_are_null_each_by_itself(what: str, outside: str) -> None:
    made = encoder(type="numeric", bounds=[0, 1], outside=outside)
    alone = made.encode({"a": TIMES[what]}).features
    assert np.isnan(alone).all()
    if isinstance(TIMES[what], np.ndarray):
        return
    assert np.isnan(made.encode(pd.DataFrame({"a": TIMES[what]})).features).all()
    mixed = made.encode(joined(TIMES[what], 0.5)).features
    assert np.isnan(mixed[:2]).all()
    assert mixed[2].tolist() == [0.0]


def test_a_numpy_array_of_durations_is_refused_as_numpy_makes_them_of_numbers() -> None:
    for declared in ({"type": "numeric", "bounds": [0, 1]}, {"type": "categorical", "categories": ["1"]}):
        with pytest.raises(InvalidInput, match="a numpy array of durations"):
            encoder(**declared).encode({"a": np.append(np.array([0, 1]), np.timedelta64(3, "s"))})


@pytest.mark.parametrize("category", ["2020-01-01T00:00:00", "2020-01-01", "2020-01-01 00:00"])
def test_times_are_categories_whatever_their_unit(category: str) -> None:
    made = encoder(type="categorical", categories=["x", category])
    for what in ("times", "arrow", "numpy", "numpy days"):
        assert made.encode({"a": TIMES[what]}).features[0].tolist() == [0.0, 1.0]


class Ended(BaseException):
    pass


@pytest.mark.parametrize("problem", [ValueError, SystemExit, GeneratorExit, Ended])
@pytest.mark.parametrize("kind", raising_cells(ValueError))
def test_a_cell_that_raises_ends_nothing_and_leaves_the_others(problem: type[BaseException], kind: str) -> None:
    cell = raising_cells(problem)[kind]
    for made in (encoder(type="numeric", bounds=[0, 2]), encoder(type="categorical", categories=["0", "2"])):
        found = made.encode({"a": [0, cell, 2]}).features
        assert np.array_equal(found[[0, 2]], made.encode({"a": [0, 2]}).features)
        assert not (found[1] > 0).any()


def test_a_user_who_interrupts_while_a_cell_is_read_is_heard() -> None:
    with pytest.raises(KeyboardInterrupt):
        encoder(type="numeric", bounds=[0, 2]).encode({"a": [0, raising_cells(KeyboardInterrupt)["float"], 2]})


@pytest.mark.parametrize("bounds", [(0, 5e-324), (0, 5e-322), (-1e-310, 1e-310)])
def test_bounds_too_near_to_be_divided_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match="expected a width of 1e-300 or more"):
        Column("a", "numeric", bounds=bounds)


def test_the_narrowest_bounds_give_finite_features() -> None:
    made = encoder(type="numeric", bounds=[0, 1e-300])
    assert np.isfinite(features_of(made.schema).widen(made.encode({"a": [0.0, 5e-301, 1e-300]}).features)).all()
