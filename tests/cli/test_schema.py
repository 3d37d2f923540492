"""dpilot schema init: names in, a skeleton out, no value seen."""

from __future__ import annotations

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
        ([str(tmp_path)], "expected a readable csv or parquet file"),
        ([str(tmp_path / "empty.csv")], "is empty"),
        ([str(tmp_path / "twice.csv")], "columns 1 and 3"),
        ([str(table), "--output", str(table)], "which exists"),
        ([str(table), "--output", str(tmp_path / "no" / "such.toml")], "expected a writable path"),
        ([str(table), "--delimiter", "ab"], "delimiter is 'ab'"),
        ([str(table), "--encoding", "utf-16"], "encoding is 'utf-16'"),
        ([str(table), "--encoding", "klingon"], "encoding is 'klingon'"),
    ]:
        assert main(["schema", "init", *arguments]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert told in err
