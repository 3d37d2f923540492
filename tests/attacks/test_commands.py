"""Attacks on what commands print: numbers that follow from how many records there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpilot.cli.main import main
from dpilot.fit import on_disk

SCHEMA = """
[columns.a]
type = "numeric"
bounds = [0, 1]

[columns.y]
type = "categorical"
categories = ["no", "yes"]
role = "target"
"""


@pytest.mark.parametrize("size", ["100", "private"])
def test_a_dry_run_does_not_tell_how_long_a_table_is(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether records would go to disk followed from their number, and with it the memory that was printed."""
    monkeypatch.setattr(on_disk, "_VALUES", 11 * 100)  # eleven numbers a record: those of 100 stay in memory
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SCHEMA)
    said = []
    for records in (100, 101):
        Path("t.csv").write_text("a,y\n" + "0.5,no\n" * records)
        options = ["--schema", "s.toml", "--epsilon", "1", "--size", size, "--delta", "1e-5", "--dry-run", "--json"]
        assert main(["fit", "t.csv", *options]) == 0
        said.append(json.loads(capsys.readouterr().out))
    clocks = "seconds", "seconds_if_as_busy"
    first, second = ({name: value for name, value in each.items() if name not in clocks} for each in said)
    assert first == second
