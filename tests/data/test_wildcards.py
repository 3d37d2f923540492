"""Names of a schema and of a table: wildcards, columns nobody declared, and what a message may show."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.data.cells import check_numeric
from dpilot.data.files import Table
from dpilot.data.frames import Frame
from dpilot.data.schema import Defaults, Schema
from dpilot.errors import InvalidInput

NUMERIC = {"type": "numeric", "bounds": [0, 1]}


def schema_of(*names: str, others: str = "refused", **columns: object) -> Schema:
    declared = {**dict.fromkeys(names, NUMERIC), **columns}
    return Schema.from_dict({"columns": declared, "defaults": {"others": others}})


def lines_to_add(refusal: BaseException) -> dict[str, object]:
    """What the indented lines of a message declare."""
    return tomllib.loads("\n".join(line for line in str(refusal).split("\n") if line.startswith("    ")))


def test_a_wildcard_stands_for_its_columns_at_its_place() -> None:
    schema = schema_of("age", "pixel_*", "pay")
    resolved = schema.resolve(["pay", "pixel_2", "pixel_1", "age"])
    assert list(resolved.columns) == ["age", "pixel_2", "pixel_1", "pay"]
    assert resolved.columns["pixel_1"].bounds == (0.0, 1.0)


def test_a_name_of_its_own_wins_over_a_wildcard() -> None:
    resolved = schema_of("pixel_*", pixel_2={"role": "ignored"}).resolve(["pixel_1", "pixel_2"])
    assert [column.name for column in resolved.used] == ["pixel_1"]


@pytest.mark.parametrize("name", ["weight [kg]", "smoker?", "a*b", "[x]"])
def test_a_column_may_have_the_characters_of_a_wildcard(name: str, tmp_path: Path) -> None:
    schema = schema_of(name, "age")
    assert schema.resolve(["age", name]) == schema
    (tmp_path / "t.csv").write_text(f'age,"{name}"\n1,0\n', encoding="utf-8")
    assert Table.open(tmp_path / "t.csv", schema).frame()[name].tolist() == ["0"]


def test_two_wildcards_for_one_column_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'pixel_1' is meant by the wildcards 'pixel_\*' and '\*_1'") as refused:
        schema_of("pixel_*", "*_1").resolve(["pixel_1"])
    assert "[columns.pixel_1]" in str(refused.value)
    assert list(schema_of("pixel_*", "*_1", "pixel_1").resolve(["pixel_1"]).columns) == ["pixel_1"]
    with pytest.raises(InvalidInput, match="is meant by the wildcards"):
        schema_of("pixel_*", "*_1").with_roles(target="pixel_1")


def test_a_wildcard_that_stands_for_nothing_is_refused_unless_it_is_ignored() -> None:
    with pytest.raises(InvalidInput, match=r"'pixel_\*': a wildcard that stands for no column"):
        schema_of("pixel_*", "age").resolve(["age"])
    assert list(schema_of("age", **{"note_*": {"role": "ignored"}}).resolve(["age"]).columns) == ["age"]


names = st.lists(st.text("ab_1*?[]", min_size=1, max_size=4), min_size=1, max_size=6, unique=True)


@given(names, names, st.sampled_from(["refused", "ignored"]))
def test_resolving_is_settled_by_names_alone(declared: list[str], there: list[str], others: str) -> None:
    schema = schema_of(*declared, others=others)
    try:
        resolved = schema.resolve(there)
    except InvalidInput:
        return
    assert set(resolved.columns) <= set(there)
    assert resolved.resolve(there) == resolved
    for name in there:
        meant = name in declared or any(fnmatchcase(name, key) for key in declared if key not in there)
        assert (name in resolved.columns) == meant
        assert meant or others == "ignored"
    assert set(schema.resolve(reversed(there)).columns) == set(resolved.columns)


def test_a_wildcard_must_be_resolved_before_a_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x_1,x_2\n0,1\n")
    schema = schema_of("x_*")
    with pytest.raises(InvalidInput, match=r"schema\.resolve"):
        Table.open(tmp_path / "t.csv", schema)
    table = Table.open(tmp_path / "t.csv", schema.resolve(["x_1", "x_2"]))
    assert list(table.frame().columns) == ["x_1", "x_2"]


def test_a_role_given_to_one_of_a_wildcard_makes_an_entry_of_its_own() -> None:
    schema = schema_of("x_*").with_roles(target="x_3")
    resolved = schema.resolve(["x_1", "x_2", "x_3"])
    assert (resolved.target.name, [column.name for column in resolved.features]) == ("x_3", ["x_1", "x_2"])


def test_eleven_columns_of_fifty_three_need_eleven_entries(tmp_path: Path) -> None:
    everything = [f"c{place}" for place in range(53)]
    wanted = everything[::5]
    (tmp_path / "t.csv").write_text(",".join(everything) + "\n" + ",".join("1" * 53) + "\n")
    schema = schema_of(*wanted, others="ignored")
    assert schema.defaults == Defaults("ignored")
    assert list(Table.open(tmp_path / "t.csv", schema).frame().columns) == wanted
    with pytest.raises(
        InvalidInput, match=r"\['c1', 'c2', 'c3', 'c4', 'c6'\] and 37 more of t.csv have no entry"
    ) as refused:
        Table.open(tmp_path / "t.csv", schema_of(*wanted))
    added = lines_to_add(refused.value)
    assert added["defaults"] == {"others": "ignored"}
    assert Schema.from_dict({**schema.to_dict(), "defaults": added["defaults"]}) == schema
    assert list(added["columns"]) == ["c1", "c2", "c3", "c4", "c6"]  # type: ignore[call-overload]


def test_a_near_miss_is_told_where_the_names_are_plainly_those_of_a_header() -> None:
    for there, told in [
        (["Age", "Pay", "Sex"], "Did you mean 'Age' for 'age', 'Pay' for 'pay', 'Sex' for 'sex'?"),
        (["age", "pay", "sexx"], "Did you mean 'sexx' for 'sex'?"),
    ]:
        with pytest.raises(InvalidInput) as refused:
            schema_of("age", "pay", "sex").resolve(there)
        assert told in str(refused.value)


@given(st.lists(st.text(min_size=3), min_size=1, max_size=5, unique=True))
def test_a_first_line_that_may_be_a_record_is_never_shown(cells: list[str]) -> None:
    declared = [*(f"column {place}" for place in range(7)), "*", "?*"]
    with pytest.raises(InvalidInput) as refused:
        schema_of(*declared).resolve(cells)
    with pytest.raises(InvalidInput) as other:
        schema_of(*declared).resolve(["something else", "and more"])
    assert str(refused.value) == str(other.value)


@pytest.mark.parametrize("make", [pd.DataFrame, pa.table, dict])
def test_frames_are_checked_by_names_and_types_before_a_cell_is_read(make: type) -> None:
    schema = schema_of("x_*", "t")
    table = make({"x_1": [1.0], "x_2": [2.0]})
    resolved = Frame.of(table).resolve(schema, beside=["t"])
    assert list(resolved.columns) == ["x_1", "x_2", "t"]
    with pytest.raises(InvalidInput, match=r"\['note'\] of the table have no entry") as refused:
        Frame.of(make({"x_1": [1.0], "note": ["text"]})).resolve(schema, beside=["t"])
    assert lines_to_add(refused.value)["columns"] == {"note": {"role": "ignored"}}
    with pytest.raises(InvalidInput, match=r"\['t'\] of the schema are not in the table"):
        Frame.of(table).resolve(schema)


def test_a_frame_whose_types_cannot_hold_what_is_declared_is_refused_before_a_cell_is_read() -> None:
    with pytest.raises(InvalidInput, match="holds lists or records"):
        Frame.of(pa.table({"x": [[1.0]]})).resolve(schema_of("x"))
    twice = pd.DataFrame([[1, 2]], columns=["x", "x"])
    with pytest.raises(InvalidInput, match="more than once"):
        Frame.of(twice).resolve(schema_of("x"))
    unnamed = pd.DataFrame({"x": [1], 0: [2]})
    with pytest.raises(InvalidInput, match="column 0 of the table is not named by a text"):
        Frame.of(unnamed).resolve(schema_of("x"))
    assert Frame.of(unnamed).resolve(schema_of("x", others="ignored"))


@pytest.mark.parametrize(
    ("column", "declared"),
    [
        (pd.Series(["Ulm"], dtype="string"), "text"),
        (pd.Series(["Ulm"], dtype="category"), "categorical"),
        (pd.Series(pd.to_datetime(["2020-01-01"])), "datetime"),
        (pa.array([[1.0]]), "vector"),
    ],
)
def test_a_column_without_a_schema_is_told_with_the_lines_that_declare_it(column: object, declared: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_numeric(column, "the city")
    added = lines_to_add(refused.value)
    entry = added["columns"]["the city"]  # type: ignore[index]
    assert entry.get("type") == declared
    assert Schema.from_dict(added).columns["the city"].used
