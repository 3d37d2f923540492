"""``dpilot ledger``: what it prints, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dpilot.cli import ledger as command
from dpilot.errors import LedgerError
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import PureDP
from dpilot.privacy.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.open(tmp_path / "a.ledger", dataset="[red]adult", budget=Budget(3.0, 1e-5))
    with made.reserve(PureDP(0.25), purpose="[bold]count", part="train"):
        pass
    return made


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command.app, [str(argument) for argument in arguments])


def test_show_prints_totals_and_entries_as_typed(ledger: Ledger) -> None:
    shown = run("show", ledger.path)
    assert shown.exit_code == 0
    for text in (
        "[red]adult",
        "[bold]count",
        "epsilon 0.25",
        "epsilon 2.75",
        "committed",
        "train of main",
        "basic:sum",
    ):
        assert text in shown.stdout


def test_show_as_json_is_the_whole_truth(ledger: Ledger) -> None:
    said = json.loads(run("show", ledger.path, "--json").stdout)
    assert said["entries"] == [entry.as_dict() for entry in ledger.entries()]
    assert said["head"] == ledger.head()
    assert said["spent"] == {"epsilon": 0.25, "delta": 0.0}
    assert said["remaining"] == {"epsilon": 2.75, "delta": 1e-5}
    assert (said["dataset"], said["mode"], said["bound"]) == ("[red]adult", "adaptive", "basic")


def test_verify_prints_the_head(ledger: Ledger) -> None:
    assert ledger.head() in run("verify", ledger.path).stdout
    said = json.loads(run("verify", ledger.path, "--json", "--head", ledger.head()).stdout)
    assert said == {"file": str(ledger.path), "verified": True, "head": ledger.head()}


def test_verify_fails_on_another_head_and_on_other_files(ledger: Ledger, tmp_path: Path) -> None:
    assert isinstance(run("verify", ledger.path, "--head", "1:00").exception, LedgerError)
    (tmp_path / "x").write_text("a,b")
    for name in ("x", "none"):
        assert isinstance(run("verify", tmp_path / name).exception, LedgerError)
        assert isinstance(run("show", tmp_path / name).exception, LedgerError)


def test_looking_writes_nothing(ledger: Ledger) -> None:
    before = ledger.path.read_bytes()
    run("show", ledger.path)
    run("verify", ledger.path)
    assert ledger.path.read_bytes() == before
    assert [file.name for file in ledger.path.parent.iterdir()] == ["a.ledger"]
