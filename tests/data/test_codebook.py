"""Codebooks and drafts: what is public about a table becomes a schema that agrees with it."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.data.check import check_codebook, measure_sample
from dpilot.data.codebook import Codebook
from dpilot.data.draft import draft_schema, read_sample
from dpilot.data.files import Table
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput


def book(text: str) -> Codebook:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "book.csv")
        path.write_text(text, encoding="utf-8")
        return Codebook.load(path)


def entry(header: str, line: str) -> dict[str, object]:
    (only,) = book(f"{header}\n{line}\n").entries.values()
    return only.to_dict()


@pytest.mark.parametrize(
    "header", ["name,type,min,max", "Variable;Data type;Minimum;Maximum", "\ufeffFIELD\tKind\tlow\thigh"]
)
def test_common_spellings_of_the_header_are_understood(header: str) -> None:
    between = next(each for each in ",;\t" if each in header)
    line = between.join(["age", "Integer", "17", "90"])
    assert entry(header, line) == {"type": "numeric", "bounds": [17.0, 90.0]}


@pytest.mark.parametrize(
    ("line", "declared"),
    [
        ("x,numeric,0,1,,,", {"type": "numeric", "bounds": [0.0, 1.0]}),
        ("x,,0,1,,,", {"type": "numeric", "bounds": [0.0, 1.0]}),
        ("x,float,0,,,,", {"type": "numeric", "bounds": "?"}),
        ("x,,,,a|b,,", {"type": "categorical", "categories": ["a", "b"]}),
        ("x,string,,,a | b|,,", {"type": "categorical", "categories": ["a", "b", ""]}),
        ("x,factor,,,,,", {"type": "categorical", "categories": "?"}),
        ("x,bool,,,,,", {"type": "categorical", "categories": ["False", "True"]}),
        ("x,,,,,,", {"type": "?"}),
        ("x,text,,,,,", {"role": "ignored"}),
        ("x,date,,,,,", {"role": "ignored"}),
        ("x,timestamp,2020-01-01,2022-01-01,,,", {"type": "date", "range": ["2020-01-01", "2022-01-01"]}),
        ("x,date,,,2020-01-01|2020-01-02,,", {"type": "categorical", "categories": ["2020-01-01", "2020-01-02"]}),
        ("x,int,0,1,,id,", {"role": "ignored"}),
        ("x,,,,n|y,outcome,", {"type": "categorical", "categories": ["n", "y"], "role": "target"}),
        ("x,,,,f|m,Sensitive,", {"type": "categorical", "categories": ["f", "m"], "role": "protected"}),
        ("x,,,,f|m|9,,9", {"type": "categorical", "categories": ["f", "m"]}),
        ("x,int,0,9,,,null", {"type": "numeric", "bounds": [0.0, 9.0], "missing": "null"}),
    ],
)
def test_a_line_says_what_a_schema_would(line: str, declared: dict[str, object]) -> None:
    assert entry("name,type,min,max,categories,role,missing", line) == declared


def test_codes_for_missing_are_gathered() -> None:
    made = book("name,missing\nx,-9|-8\ny,-9|NA\nz,indicator\n")
    assert made.missing_values == ("-9", "-8", "NA")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("a,b\nx,y\n", "expected one called name"),
        ("name,variable\nx,x\n", "'name' and 'variable' both mean name"),
        ("name,type\nx,int\nx,int\n", "line 3: 'x' is there twice"),
        ("name,type\n,int\n", "line 2: name is ''"),
        ("name,min\nx,low\n", "line 2: min is 'low': expected a finite number"),
        ("name,min\nx,nan\n", "min is 'nan'"),
        ("name,min,max\nx,5,1\n", "min is '5': expected a number below max, which is 1"),
        ("name,type\nx,numerc\n", "type is 'numerc': expected a known one: did you mean 'numeric'?"),
        ("name,role\nx,zzz\n", "role is 'zzz': expected a known one: as feature, target, protected, unit, ignored."),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        book(text)
    assert told in str(refused.value)


def test_a_codebook_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(b"name\ncaf\xe9\n")
    for path in (tmp_path, tmp_path / "none.csv", tmp_path / "latin.csv"):
        with pytest.raises(InvalidInput, match="expected a readable csv file"):
            Codebook.load(path)


texts = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs"), exclude_characters="|"), min_size=1)
names = texts.filter(lambda name: not set("*?[") & set(name))


@st.composite
def lines(draw: st.DrawFn) -> dict[str, str]:
    if draw(st.booleans()):
        lower = draw(st.floats(-1e9, 1e9))
        return {"type": "numeric", "min": repr(lower), "max": repr(lower + draw(st.floats(1, 1e9)))}
    return {
        "categories": "|".join(draw(st.lists(st.from_regex("[a-z]{1,4}", fullmatch=True), min_size=1, unique=True)))
    }


@given(st.dictionaries(names, lines(), min_size=1, max_size=4))
def test_a_schema_made_from_a_codebook_agrees_with_it(described: dict[str, dict[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["name", "type", "min", "max", "categories"])
    writer.writeheader()
    writer.writerows({"name": name, **line} for name, line in described.items())
    made = book(text.getvalue())
    draft = draft_schema(None, made)
    schema = Schema.parse(draft.to_toml("Made in a test."))
    assert list(schema.columns) == list(described)
    assert draft.unfinished == ()
    assert [finding for finding in check_codebook(schema, made) if finding.column is not None] == []


def test_a_draft_has_the_columns_of_the_file_and_the_wildcards_of_the_codebook() -> None:
    made = book("name,min,max\npixel_*,0,255\nage,17,90\nelsewhere,0,1\n")
    draft = draft_schema(["age", "pixel_1", "pixel_2", "new"], made)
    assert list(draft.columns) == ["age", "pixel_*", "new"]
    assert draft.unfinished == ("new",)


FREE = st.sampled_from(
    ["", "NA", "?", "a", "b", " a", "1", "1.0", "2", "2.5", "007", "true", "1e3", "inf", "x y", "2020-01-01"]
)


@given(st.lists(st.tuples(FREE, FREE, FREE), min_size=1, max_size=130))
def test_no_record_of_a_public_sample_is_null_by_its_own_draft(rows: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sample.csv")
        path.write_text("\n".join([",".join(row) for row in [("x", "y", "z"), *rows]]) + "\n")
        draft = read_sample(path)
        schema = Schema.parse(draft.to_toml("Made in a test."))
        assert list(schema.columns) == ["x", "y", "z"]
        if schema.used:
            shares = measure_sample(Table.open(path, schema))
            assert (shares.records, shares.null) == (len(rows), 0.0)


@pytest.mark.parametrize(
    ("cells", "declared"),
    [
        (["3", "1", "2.5"], {"type": "numeric", "bounds": [1.0, 3.0], "outside": "clamp"}),
        (["3", "1", "2", "NA"], {"type": "numeric", "bounds": [1.0, 3.0], "outside": "clamp"}),
        (["0", "1", "1.0"], {"type": "categorical", "categories": ["0", "1"]}),
        (["true", "false"], {"type": "categorical", "categories": ["false", "true"]}),
        (["b", "a", "10", "9"], {"type": "categorical", "categories": ["9", "10", "a", "b"]}),
        (["", "NA"], {"role": "ignored"}),
        ([f"id {place}" for place in range(101)], {"role": "ignored"}),
        ([f"text of words {place}" for place in range(101)], {"type": "text"}),
        (
            ["2020-01-03", "2020-01-01", "2021-01-01", "NA"],
            {"type": "date", "range": ["2020-01-01", "2021-01-01"], "outside": "clamp"},
        ),
        (
            ["2020-01-03 12:00", "2020-01-01", "2021-01-01"],
            {"type": "datetime", "range": ["2020-01-01", "2021-01-01"], "outside": "clamp"},
        ),
        (
            ["2020-01-03", "2020-01-01 01:00", "2021-01-01"],
            {"type": "datetime", "range": ["2020-01-01T01:00:00", "2021-01-01"], "outside": "clamp"},
        ),
        (
            [str(2**60 + place * 2**20) for place in range(3)],
            {"type": "numeric", "bounds": [2.0**60, 2.0**60 + 2**21], "outside": "clamp"},
        ),
        (["-1e308", "0", "1e308"], {"type": "categorical", "categories": ["-1e308", "0", "1e308"]}),
    ],
)
def test_what_a_public_column_looks_like(cells: list[str], declared: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x\n" + "\n".join(cells) + "\n")
    assert read_sample(tmp_path / "t.csv").columns["x"] == declared


def test_types_of_parquet_are_read_cell_by_cell(tmp_path: Path) -> None:
    frame = pd.DataFrame({"b": [True, False, True], "n": [1.5, None, 3.0], "d": pd.to_datetime(["2020-01-01"] * 3)})
    frame["m"] = [1, 2, 3]
    frame.to_parquet(tmp_path / "t.parquet")
    columns = read_sample(tmp_path / "t.parquet").columns
    assert columns["b"] == {"type": "categorical", "categories": ["False", "True"]}
    assert columns["n"] == {"type": "categorical", "categories": ["1.5", "3"]}
    assert columns["m"]["bounds"] == [1.0, 3.0]
    assert columns["d"]["type"] == "categorical"
