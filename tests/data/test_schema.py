"""The schema: what it says, what it refuses, and that it survives being written."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.data.column import Column
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput

EXAMPLE = """
[columns.age]
type = "numeric"
bounds = [17, 90]
[columns.pay]
type = "numeric"
bounds = "buy"
[columns.workclass]
type = "categorical"
categories = ["Private", "Self-emp-inc", "?"]
missing = "indicator"
[columns.sex]
type = "categorical"
categories = ["Female", "Male"]
role = "protected"
[columns.note]
role = "ignored"
[columns.income]
type = "categorical"
categories = ["<=50K", ">50K"]
role = "target"
"""

NUMERIC = {"type": "numeric", "bounds": [0, 1]}
CATEGORICAL = {"type": "categorical", "categories": ["a", "b"]}


def test_the_schema_of_the_manual() -> None:
    schema = Schema.parse(EXAMPLE)
    assert list(schema.columns) == ["age", "pay", "workclass", "sex", "note", "income"]
    assert [column.name for column in schema.features] == ["age", "pay", "workclass"]
    assert (schema.target.name, schema.protected.name, schema.to_buy) == ("income", "sex", ("pay",))
    assert schema.columns["age"].bounds == (17.0, 90.0)
    assert [column.name for column in schema.used] == ["age", "pay", "workclass", "sex", "income"]


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"type": "numeric"}, "bounds are missing"),
        ({"type": "numeric", "bounds": [5, 1]}, "the lower one first"),
        ({"type": "numeric", "bounds": [1, 1]}, "not equal"),
        ({"type": "numeric", "bounds": [0, math.inf]}, "finite numbers"),
        ({"type": "numeric", "bounds": [math.nan, 1]}, "finite numbers"),
        ({"type": "numeric", "bounds": [-1e308, 1e308]}, "finite width"),
        ({"type": "numeric", "bounds": [0, 10**400]}, "finite numbers"),
        ({"type": "numeric", "bounds": [0]}, "two finite numbers"),
        ({"type": "numeric", "bounds": [0, 1, 2]}, "two finite numbers"),
        ({"type": "numeric", "bounds": [False, True]}, "two finite numbers"),
        ({"type": "numeric", "bounds": ["0", "1"]}, "two finite numbers"),
        ({"type": "numeric", "bounds": "by"}, '"buy"'),
        ({"type": "numeric", "bounds": 3}, "two finite numbers"),
        ({"type": "numeric", "bounds": [0, 1], "categories": ["a"]}, "only categorical columns"),
        ({"type": "numeric", "bounds": "buy", "outside": "null"}, "no domain"),
        ({"type": "categorical"}, "categories are missing"),
        ({"type": "categorical", "categories": []}, "0 categories"),
        ({"type": "categorical", "categories": ["a", "a"]}, "twice"),
        ({"type": "categorical", "categories": [1, "1"]}, "twice"),
        ({"type": "categorical", "categories": [1, 1.0]}, "twice"),
        ({"type": "categorical", "categories": "ab"}, "a list of texts"),
        ({"type": "categorical", "categories": [["a"]]}, "no category"),
        ({"type": "categorical", "categories": ["\ud800"]}, "no category"),
        ({"type": "categorical", "categories": ["a"], "bounds": [0, 1]}, "only numeric columns"),
        ({"type": "categorical", "categories": ["a"], "outside": "clamp"}, "clamped"),
        ({"type": "categorical", "categories": ["a"], "role": "target"}, "2 or more"),
        ({"bounds": [0, 1]}, "type is missing"),
        ({"type": "?"}, "expected one of 'numeric', 'categorical'"),
        ({"type": 3, "bounds": [0, 1]}, "expected one of"),
        ({**NUMERIC, "role": "protected"}, "protected and numeric"),
        ({**NUMERIC, "role": "label"}, "expected one of 'feature'"),
        ({**NUMERIC, "missing": "drop"}, "'indicator', 'null'"),
        ({**NUMERIC, "role": "target", "missing": "indicator"}, "can only be null"),
        ({**CATEGORICAL, "role": "protected", "missing": "indicator"}, "can only be null"),
        ({**NUMERIC, "feature": False}, "only a protected column"),
        ({**NUMERIC, "role": "target", "feature": True}, "only a protected column"),
        ({**CATEGORICAL, "role": "protected", "feature": "yes"}, "true or false"),
        ({**NUMERIC, "bound": [0, 1]}, "did you mean 'bounds'"),
        ({"type": "categorical", "classes": ["a", "b"]}, "did you mean 'categories'"),
        ({**NUMERIC, "zzz": 1}, "known are type, bounds"),
        ({**NUMERIC, "columns": {"y": {}}}, "expected it at the top, above all columns"),
        ("numeric", "expected a table"),
    ],
)
def test_a_column_that_contradicts_itself_is_refused_by_name(declared: object, told: str) -> None:
    with pytest.raises(InvalidInput, match="column 'x'") as refused:
        Schema.from_dict({"columns": {"x": declared}})
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({}, "no 'columns'"),
        ({"columns": {}}, "no columns"),
        ({"columns": []}, "no 'columns'"),
        ([], "expected a mapping"),
        ({"column": {"x": NUMERIC}}, "did you mean 'columns'"),
        ({"x": NUMERIC}, "[columns.NAME]"),
        ({"columns": {"x": NUMERIC}, "missing_values": "NA"}, "a list of texts"),
        ({"columns": {name: {**CATEGORICAL, "role": "target"} for name in "xy"}}, "target columns are ['x', 'y']"),
        ({"columns": {"x": NUMERIC}, "defaults": {"others": "drop"}}, '"refused" or "ignored"'),
        ({"columns": {"x": NUMERIC}, "defaults": {"other": "ignored"}}, "did you mean 'others'"),
        ({"columns": {"x": NUMERIC}, "defaults": "ignored"}, "expected a table"),
    ],
)
def test_a_schema_that_contradicts_itself_is_refused(declared: object, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Schema.from_dict(declared)
    assert told in str(refused.value)


def test_a_target_is_asked_for_where_there_is_none() -> None:
    schema = Schema.from_dict({"columns": {"x": NUMERIC}})
    assert not schema.has_target
    with pytest.raises(InvalidInput, match='role = "target"'):
        _ = schema.target
    assert schema.protected is None


@pytest.mark.parametrize("text", ["[columns.a", "columns = 3", "a" * 10, "[columns.a]\n[columns.a]\n", "[" * 5000])
def test_text_that_is_no_schema_is_refused(text: str, tmp_path: Path) -> None:
    for name in ("bad.toml", "bad.json"):
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidInput):
            Schema.load(tmp_path / name)


def test_json_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"columns": {"x": {"type": "numeric", "bounds": [0, 1]}, "x": {}}}')
    with pytest.raises(InvalidInput, match="'x' is declared twice"):
        Schema.from_json(tmp_path / "s.json")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'[columns."caf\xe9"]')
    for path in (tmp_path, tmp_path / "none.toml", tmp_path / "latin.toml", "a\0b"):
        with pytest.raises(InvalidInput, match="expected a readable TOML or JSON file"):
            Schema.from_toml(path)


def test_a_byte_order_mark_is_no_part_of_a_schema(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(EXAMPLE, encoding="utf-8-sig")
    assert Schema.load(tmp_path / "s.toml") == Schema.parse(EXAMPLE)


def test_bought_bounds_are_filled_in_and_clamp() -> None:
    schema = Schema.parse(EXAMPLE)
    filled = schema.with_bounds({"pay": (0.0, 10.0)})
    assert filled.to_buy == ()
    assert (filled.columns["pay"].bounds, filled.columns["pay"].outside) == ((0.0, 10.0), "clamp")
    assert filled.columns["age"].outside == "null"
    assert Schema.parse(filled.to_toml()) == filled
    for wrong in ({"age": (0.0, 1.0)}, {"nobody": (0.0, 1.0)}, {"pay": (1.0, 0.0)}, {"pay": (0.0, math.nan)}):
        with pytest.raises(InvalidInput):
            schema.with_bounds(wrong)


def test_roles_are_named_in_the_call() -> None:
    schema = Schema.from_dict(
        {"columns": {"x": NUMERIC, "y": CATEGORICAL, "g": CATEGORICAL, "note": {"role": "ignored"}}}
    )
    named = schema.with_roles(target="y", protected="g")
    assert (named.target.name, named.protected.name) == ("y", "g")
    assert [column.name for column in named.features] == ["x"]
    assert named.with_roles(target="y", protected="g") == named
    assert schema.with_roles() == schema
    for wrong, told in [
        ({"target": "Y"}, "did you mean 'y'"),
        ({"target": "y", "protected": "y"}, "two different columns"),
        ({"target": "note"}, "type is missing"),
    ]:
        with pytest.raises(InvalidInput, match=told):
            schema.with_roles(**wrong)
    with pytest.raises(InvalidInput, match="protected and numeric"):
        named.with_roles(protected="x")
    for wrong in ({"target": "x"}, {"protected": "y"}, {"target": "g"}):
        with pytest.raises(InvalidInput, match="the schema declares"):
            named.with_roles(**wrong)


def test_a_protected_column_is_a_feature_only_if_it_says_so() -> None:
    declared = {"columns": {"x": NUMERIC, "g": {**CATEGORICAL, "role": "protected", "feature": True}}}
    schema = Schema.from_dict(declared)
    assert [column.name for column in schema.features] == ["x", "g"]
    assert Schema.parse(schema.to_toml()) == schema


def test_several_columns_may_be_protected() -> None:
    declared = {name: {**CATEGORICAL, "role": "protected"} for name in "gh"} | {"x": NUMERIC, "k": CATEGORICAL}
    schema = Schema.from_dict({"columns": declared})
    assert [column.name for column in schema.protected_columns] == ["g", "h"]
    with pytest.raises(InvalidInput, match=r"protected columns are \['g', 'h'\]: expected one here"):
        _ = schema.protected
    more = schema.with_roles(protected=["g", "k"])
    assert [column.name for column in more.protected_columns] == ["g", "h", "k"]
    assert Schema.from_dict({"columns": {"x": NUMERIC}}).protected_columns == ()


def test_for_prediction_only_features_are_needed() -> None:
    schema = Schema.parse(EXAMPLE).inputs_only()
    assert [column.name for column in schema.used] == ["age", "pay", "workclass"]
    assert not schema.has_target


names = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
awkward = st.sampled_from(
    ['a"b', "a.b", "a\nb", "", " ", "#", "=", "\\", "\x00\x1f\x7f", "ü", "[x]", "'", "a b", "🙂", "\r\n"]
)
numbers = st.one_of(st.integers(-(2**60), 2**60), st.floats(-1e300, 1e300))


@st.composite
def columns(draw: st.DrawFn) -> dict[str, object]:
    role = draw(st.sampled_from(["feature", "ignored"]))
    shape = draw(st.sampled_from(["numeric", "buy", "categorical", "none"]))
    declared: dict[str, object] = {"role": role}
    if shape == "numeric":
        low, high = sorted([draw(numbers), draw(numbers)])
        if not float(high) - float(low) >= 1e-300:
            low, high = -0.0, 1e-300
        declared |= {"type": "numeric", "bounds": [low, high], "outside": draw(st.sampled_from(["null", "clamp"]))}
    elif shape == "buy":
        declared |= {"type": "numeric", "bounds": "buy"}
    elif shape == "categorical" or role != "ignored":
        given = draw(st.lists(names | awkward, min_size=1, max_size=4, unique=True))
        declared |= {"type": "categorical", "categories": given}
    return declared | {"missing": draw(st.sampled_from(["indicator", "null"]))}


@given(
    st.dictionaries(names | awkward, columns(), min_size=1, max_size=5),
    st.lists(names | awkward, max_size=3),
    st.sampled_from(["refused", "ignored"]),
)
def test_what_is_written_is_read_back_the_same(declared: dict[str, object], absent: list[str], others: str) -> None:
    schema = Schema.from_dict({"columns": declared, "missing_values": absent, "defaults": {"others": others}})
    assert Schema.parse(schema.to_toml()) == schema
    assert list(Schema.parse(schema.to_toml()).columns) == list(declared)
    assert Schema.parse(schema.to_json(), form="json") == schema
    assert Schema.from_dict(schema.to_dict()) == schema
    assert tomllib.loads(schema.to_toml()) == json.loads(schema.to_json())


def test_categories_that_are_no_texts_become_theirs() -> None:
    column = Column("x", "categorical", categories=(True, 0, 2.5, np.int64(7)))  # type: ignore[arg-type]
    assert column.categories == ("True", "0", "2.5", "7")


@pytest.mark.slow
def test_ten_thousand_columns_are_quick() -> None:
    start = perf_counter()
    schema = Schema.from_dict({"columns": {f"column {place}": NUMERIC for place in range(10_000)}})
    assert Schema.parse(schema.to_toml()) == schema
    assert perf_counter() - start < 10
