"""Schemas checked before anything is spent: by themselves, a codebook, a public sample; and put into words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from dpilot.data.check import check_codebook, check_header, check_sample, check_schema, measure_sample
from dpilot.data.codebook import Codebook
from dpilot.data.column import Column
from dpilot.data.encoder import Encoder
from dpilot.data.explain import explain, explain_column
from dpilot.data.files import Table
from dpilot.data.invented import invent_rows
from dpilot.data.schema import Schema
from tests.data.strategies import schemas

SCHEMA = """
[columns.age]
type = "numeric"
bounds = [17, 90]
[columns.pay]
type = "numeric"
bounds = "buy"
[columns.sex]
type = "categorical"
categories = ["Femal", "Male"]
role = "protected"
[columns.income]
type = "categorical"
categories = ["<=50K", ">50K"]
role = "target"
"""


def told(findings: Any) -> list[tuple[str | None, str, bool]]:
    return [(finding.column, finding.text, finding.is_problem) for finding in findings]


@given(schemas())
def test_invented_rows_tell_what_the_encoder_does(schema: Schema) -> None:
    rows = list(invent_rows(schema))
    assert {row.column for row in rows} == {column.name for column in schema.used}
    fine = {
        name: next((row.cell for row in rows if row.column == name and not row.null), None)
        for name in (column.name for column in schema.used)
    }
    if any(all(row.null for row in rows if row.column == name) for name in fine):
        return  # every cell of some column is null: no record is fine otherwise
    for row in rows:
        record = {name: [row.cell if name == row.column else cell] for name, cell in fine.items()}
        assert (
            bool(Encoder(schema).encode(record).features[0, 0] != Encoder(schema).encode(record).features[0, 0])
            == row.null
        )
        assert ("the record is null" in row.becomes) == row.null


def test_a_schema_that_says_what_it_means_has_no_findings() -> None:
    assert told(check_schema(Schema.parse(SCHEMA))) == []


@pytest.mark.parametrize(
    ("declared", "column", "text", "problem"),
    [
        (
            {"columns": {"t": {"type": "categorical", "categories": ["a", "b"], "role": "target"}}},
            None,
            "no column is a feature",
            True,
        ),
        ({"columns": {"x": {"type": "numeric", "bounds": [0, 1]}}}, None, 'no column has role = "target"', False),
        (
            {"columns": {"x": {"type": "numeric", "bounds": [0, 9]}}, "missing_values": ["9"]},
            "x",
            "'9' is read as missing",
            True,
        ),
        (
            {"columns": {"x": {"type": "numeric", "bounds": [0, 9]}}, "missing_values": ["5"]},
            "x",
            "lies within its bounds",
            False,
        ),
        ({"columns": {"x": {"type": "categorical", "categories": ["a", "A"]}}}, "x", "differ by case or blanks", False),
        ({"columns": {"x": {"type": "categorical", "categories": ["a"]}}}, "x", "tells the model nothing", False),
        ({"columns": {"x": {"type": "categorical", "categories": ["a"], "role": "protected"}}}, "x", "no groups", True),
    ],
)
def test_what_a_schema_tells_against_itself(declared: Any, column: str | None, text: str, problem: bool) -> None:
    found = told(check_schema(Schema.from_dict(declared)))
    assert any(each[0] == column and text in each[1] and each[2] == problem for each in found)


def sample(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "sample.csv"
    path.write_text("age,pay,sex,income\n" + "".join(f"{line}\n" for line in lines))
    return path


def test_the_shares_of_a_public_sample_are_exact(tmp_path: Path) -> None:
    path = sample(tmp_path, "20,1,Male,>50K", "20,1,Female,>50K", ",1,Male,<=50K", "99,x,Male,>50K", "one cell")
    shares = measure_sample(Table.open(path, Schema.parse(SCHEMA)))
    assert (shares.records, shares.null) == (5, pytest.approx(0.6))
    age, pay, sex, income = shares.columns
    assert (age.fine, age.missing, age.outside, age.unreadable, age.null) == (0.4, 0.2, 0.2, 0.2, 0.4)
    assert (pay.outside, pay.unreadable, pay.null) == (0.0, 0.4, 0.4)
    assert (sex.unknown, sex.wrong) == (0.2, (("Female", 1), ("(a line that is no record)", 1)))
    assert income.null == 0.2
    found = told(check_sample(Schema.parse(SCHEMA), shares))
    assert (None, "60.0% of the records would be null.", True) in found
    assert any(name == "sex" and "The schema has 'Femal': is it misspelt?" in text for name, text, _ in found)
    assert all(problem for *_, problem in found)
    assert not any(problem for *_, problem in told(check_sample(Schema.parse(SCHEMA), shares, allowed=0.6)))


def test_useless_columns_of_a_sample_are_told(tmp_path: Path) -> None:
    schema = Schema.parse(SCHEMA.replace("[17, 90]", '[0, 1]\noutside = "clamp"'))
    path = sample(tmp_path, "20,,Male,>50K", "30,,Male,>50K", "0,,Male,<=50K")
    found = told(check_sample(schema, measure_sample(Table.open(path, schema))))
    assert ("pay", "no cell has a value: ignore it.", True) in found
    assert any(name == "age" and text.startswith("66.7% of the numbers") and problem for name, text, problem in found)


def test_a_sample_without_records_tells_nothing(tmp_path: Path) -> None:
    shares = measure_sample(Table.open(sample(tmp_path), Schema.parse(SCHEMA)))
    assert (shares.records, shares.null) == (0, 0.0)
    assert told(check_sample(Schema.parse(SCHEMA), shares)) == []


def test_disagreements_with_a_codebook(tmp_path: Path) -> None:
    (tmp_path / "book.csv").write_text(
        "name,type,min,max,categories,role,missing\n"
        "age,int,0,80,,,-9\npay,factor,,,a|b,,\nsex,,,,Female|Male,,\nincome,,,,<=50K|>50K,,\nnew,int,0,1,,,\n"
    )
    found = told(check_codebook(Schema.parse(SCHEMA), Codebook.load(tmp_path / "book.csv")))
    assert found == [
        (
            "age",
            '\'-9\' means missing by the codebook. Write at the top of the schema: missing_values = ["", "-9"]',
            True,
        ),
        ("age", "bounds are [17, 90], the codebook has [0, 80]: values between them are null records.", True),
        ("pay", "the codebook says it is categorical, the schema numeric.", True),
        (
            "sex",
            "['Female'] of the codebook are no categories of the schema, so null records. "
            "The schema has 'Femal': is it misspelt?",
            True,
        ),
        ("sex", "['Femal'] of the schema are not in the codebook.", False),
        (
            "new",
            "the codebook describes it, the schema does not. Write at the top of the schema: "
            'columns.new = {type = "numeric", bounds = [0, 1]}',
            False,
        ),
    ]


def test_a_codebook_and_wildcards(tmp_path: Path) -> None:
    (tmp_path / "book.csv").write_text("name,min,max\npixel_1,0,255\npixel_2,0,300\n")
    schema = Schema.from_dict(
        {"columns": {"pixel_*": {"type": "numeric", "bounds": [0, 255]}, "x_*": {"role": "ignored"}}}
    )
    found = told(check_codebook(schema, Codebook.load(tmp_path / "book.csv")))
    assert [(name, problem) for name, _, problem in found] == [("pixel_2", True)]


def test_a_header_is_checked_by_its_names() -> None:
    schema = Schema.parse(SCHEMA)
    assert told(check_header(schema, list(schema.columns), "t.csv")) == []
    ((column, text, problem),) = told(check_header(schema, ["age"], "t.csv"))
    assert (column, problem) == (None, True)
    assert "['pay', 'sex', 'income'] of the schema are not in t.csv" in text


@given(schemas())
def test_an_explanation_is_one_line_that_says_what_becomes_of_every_cell(schema: Schema) -> None:
    for column in schema.columns.values():
        told = explain_column(column).sentence
        assert "\n" not in told
        assert told.startswith(f"{column.name}: ")
        assert ("Missing: the record is null" in told) == (column.missing == "null")
        assert ("put on the nearest bound" in told) == (column.outside == "clamp")


def test_explanations_of_roles_and_prices() -> None:
    schema = Schema.parse(SCHEMA + '[columns."note_*"]\nrole = "ignored"\n[defaults]\nothers = "ignored"\n')
    sentences = {name: explain_column(column) for name, column in schema.columns.items()}
    assert sentences["pay"].paid
    assert "bounds are bought: private quantiles, paid from the budget" in sentences["pay"].sentence
    assert (
        "the target; one of 2 classes ('<=50K', '>50K'). An unknown class: the record is null."
        in sentences["income"].sentence
    )
    assert "the model does not see it" in sentences["sex"].sentence
    assert sentences["note_*"].sentence == "note_* (all columns so named): ignored, never read."
    assert explain(schema) == [
        "Features: age, pay.",
        "Target: income.",
        "Protected: sex.",
        "Ignored: note_*.",
        "Bounds bought from the budget: pay.",
        "Texts that mean missing: ''.",
        "A column of a file that is not named here: ignored.",
    ]
    assert "\n" not in explain_column(Column("a\nb", role="ignored")).sentence
