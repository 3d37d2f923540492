"""dpilot schema init, check, explain: no value is seen of a table that is not declared public."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from dpilot.cli.main import main
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_bytes('age,"pay, net",größe\n17,SECRET,2\n'.encode())
    return path


def test_a_skeleton_names_every_column_and_shows_no_value(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "init", str(table)]) == 0
    out = capsys.readouterr().out
    assert "SECRET" not in out
    assert list(tomllib.loads(out)["columns"]) == ["age", "pay, net", "größe"]


def test_only_the_first_line_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = []
    for rest in (b"", b"17\n", b'\xff\x00,,,,\n"open\n' * 3):
        (tmp_path / "t.csv").write_bytes(b"age,name\n" + rest)
        assert main(["schema", "init", str(tmp_path / "t.csv")]) == 0
        outs.append(capsys.readouterr())
    assert outs[0] == outs[1] == outs[2]


def test_a_skeleton_is_no_schema_until_it_is_filled_in(table: Path, tmp_path: Path) -> None:
    output = tmp_path / "people.toml"
    assert main(["schema", "init", str(table), "--output", str(output)]) == 0
    with pytest.raises(InvalidInput, match="column 'age': type is '\\?'"):
        Schema.load(output)
    text = output.read_text(encoding="utf-8").replace('type = "?"', 'type = "numeric"\nbounds = [0, 1]')
    assert list(Schema.parse(text).columns) == ["age", "pay, net", "größe"]


def test_a_parquet_file_has_names_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pd.DataFrame({"age": [1], "pay": [2]}).to_parquet(tmp_path / "t.parquet")
    assert main(["schema", "init", str(tmp_path / "t.parquet")]) == 0
    assert list(tomllib.loads(capsys.readouterr().out)["columns"]) == ["age", "pay"]


def test_bad_input_is_one_line(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "twice.csv").write_text("a,b,a\n")
    for arguments, told in [
        ([str(tmp_path / "none.csv")], "No such file"),
        ([str(tmp_path)], "0 class folders"),
        ([str(tmp_path / "empty.csv")], "is empty"),
        ([str(tmp_path / "twice.csv")], "columns 1 and 3"),
        ([str(table), "--output", str(table)], "which exists"),
        ([str(table), "--output", str(tmp_path / "no" / "such.toml")], "expected a writable path"),
        ([str(table), "--delimiter", "ab"], "delimiter is 'ab'"),
        ([str(table), "--encoding", "utf-16"], "encoding is 'utf-16'"),
        ([str(table), "--encoding", "klingon"], "encoding is 'klingon'"),
        ([], "expected a table, or --codebook or --public-sample"),
        ([str(table), "--codebook", str(tmp_path / "none.csv")], "expected a readable csv file"),
    ]:
        assert main(["schema", "init", *arguments]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert told in err


SCHEMA = """
[columns.age]
type = "numeric"
bounds = [17, 90]
[columns."score_*"]
type = "numeric"
bounds = "buy"
[columns.ill]
type = "categorical"
categories = ["no", "yes"]
role = "target"
"""


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.toml"
    path.write_text(SCHEMA)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["schema", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_codebook_fills_in_what_it_says(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.csv"
    book.write_text("variable,type,min,max,missing\nage,int,0,120,-9\n", encoding="utf-8")
    code, out, _ = run(capsys, "init", table, "--codebook", book)
    read = tomllib.loads(out)
    assert (code, read["missing_values"]) == (0, ["", "-9"])
    assert read["columns"]["age"] == {"type": "numeric", "bounds": [0, 120]}
    assert read["columns"]["größe"] == {"type": "?"}
    assert "SECRET" not in out
    _, alone, _ = run(capsys, "init", "--codebook", book)
    assert list(Schema.parse(alone).columns) == ["age"]


def test_a_public_sample_fills_in_types_ranges_and_categories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, output = tmp_path / "sample.csv", tmp_path / "made.toml"
    sample.write_text("age,score_1,ill\n20,1,no\n30,2,yes\n40,?,no\n")
    code, _, err = run(capsys, "init", "--public-sample", sample, "--output", output)
    assert code == 0
    assert "name the target" in err
    assert "which is declared public" in output.read_text()
    assert Schema.load(output).missing_values == ("", "?")
    assert run(capsys, "check", output, "--public-sample", sample)[0] == 0


def test_a_schema_is_tried_on_invented_cells(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", schema)
    assert code == 0
    for words in ("the lower bound", "no such value", "the record is null", "age is missing = 1", "Problems: 0."):
        assert words in out
    code, out, _ = run(capsys, "check", schema, "--json")
    told = json.loads(out)
    assert (code, told["ok"], told["findings"], told["sample"]) == (0, True, [], None)
    below = next(row for row in told["invented"] if (row["column"], row["what"]) == ("age", "below"))
    assert (below["state"], below["null"]) == ("outside", True)


def test_a_header_is_checked_without_a_value(schema: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.csv").write_text("age,score_1,score_2,ill\nSECRET,,,\n")
    (tmp_path / "bad.csv").write_text("age,score_1,ill,note\nSECRET,,,\n")
    assert run(capsys, "check", schema, "--header", tmp_path / "good.csv")[0] == 0
    code, out, _ = run(capsys, "check", schema, "--header", tmp_path / "bad.csv")
    assert code == 2
    assert '\n    columns.note = {role = "ignored"}\n' in out
    assert "SECRET" not in out


def test_a_file_is_read_only_if_it_is_said_to_be_public(
    schema: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "sample.csv"
    sample.write_text("age,score_1,ill\n20,1,no\n20,1,Yes\n")
    code, out, err = run(capsys, "check", schema, sample)
    assert (code, out) == (2, "")
    assert "--public-sample" in err
    assert "--header" in err
    code, out, _ = run(capsys, "check", schema, "--public-sample", sample, "--json")
    told = json.loads(out)
    assert (code, told["sample"]["null"], told["sample"]["records"]) == (2, 0.5, 2)
    ill = next(column for column in told["sample"]["columns"] if column["name"] == "ill")
    assert (ill["unknown"], ill["wrong"]) == (0.5, [["Yes", 1]])
    assert run(capsys, "check", schema, "--public-sample", sample, "--allow-null", "0.5")[0] == 0


def test_a_codebook_that_disagrees_is_a_problem(
    schema: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.csv"
    book.write_text("name,min,max\nage,0,120\n")
    code, out, _ = run(capsys, "check", schema, "--codebook", book)
    assert code == 2
    assert "problem: age: bounds are [17, 90], the codebook has [0, 120]" in out


def test_a_schema_is_explained_in_one_line_a_column(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", schema)
    assert code == 0
    assert [line.partition(":")[0] for line in out.splitlines()[:3]] == ["age", "score_* (all columns so named)", "ill"]
    code, out, _ = run(capsys, "explain", schema, "--json")
    told = json.loads(out)
    assert (told["roles"]["target"], told["roles"]["bought_bounds"]) == ("ill", ["score_*"])
    assert len(told["columns"]) == 3


def test_a_schema_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.toml").write_text('[columns.age]\ntype = "?"\n')
    for command in ("check", "explain"):
        code, out, err = run(capsys, command, tmp_path / "bad.toml")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "column 'age': type is '?'" in err


def test_an_undeclared_column_stops_a_fit_with_the_line_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema, table = tmp_path / "plain.toml", tmp_path / "t.csv"
    schema.write_text(SCHEMA.replace("score_*", "score_1"))
    table.write_text("age,score_1,ill,note\n")
    assert main(["fit", str(table), "--schema", str(schema), "--epsilon", "1"]) == 2
    err = capsys.readouterr().err
    assert "columns ['note'] of t.csv have no entry in the schema" in err
    for line in ('defaults.others = "ignored"', 'columns.note = {role = "ignored"}'):
        assert line in err
        schema.write_text(f"{line}\n{SCHEMA.replace('score_*', 'score_1')}")
        assert run(capsys, "check", schema, "--header", table)[0] == 0
