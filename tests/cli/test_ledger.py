"""``dpilot ledger``: what it prints, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dpilot.cli import ledger as command
from dpilot.cli.main import main
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


def call(*arguments: object) -> int:
    """The exit code of the whole command line."""
    return main(["ledger", *map(str, arguments)])


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DPILOT_LEDGERS", raising=False)
    path = tmp_path / "my data.csv"
    path.write_text("a,b\n1,2\n")
    return path


def test_create_makes_the_ledger_beside_the_data_once(data: Path) -> None:
    said = json.loads(run("create", data, "--total", 3, "--delta", 1e-6, "--json").stdout)
    ledger = data.with_name("my data.ledger")
    assert (said["file"], said["created"], said["dataset"]) == (str(ledger), True, "my data")
    assert said["budget"] == said["remaining"] == {"epsilon": 3.0, "delta": 1e-6}
    assert (said["mode"], said["bound"]) == ("adaptive", "basic")
    before = ledger.read_bytes()
    assert "already" in run("create", data, "--total", 3).stdout
    assert call("create", data, "--total", 4) == 2
    assert call("create", data, "--total", 3, "--delta", 1e-5) == 2
    assert ledger.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "delta"), [((), 1e-6), (("--size", 1000), 1e-5), (("--size", 200_000), 5e-7), (("--delta", 2e-6), 2e-6)]
)
def test_create_has_a_delta_of_the_size(data: Path, options: tuple[object, ...], delta: float) -> None:
    assert json.loads(run("create", data, "--total", 3, *options, "--json").stdout)["budget"]["delta"] == delta


def test_create_refuses_what_is_wrong_and_makes_nothing(data: Path) -> None:
    for wrong in (
        (data.with_name("none.csv"), "--total", 3),
        (data, "--total", 0),
        (data, "--total", 3, "--size", 1000, "--delta", 0.01),
        (data,),
    ):
        assert call("create", *wrong) == 2
    assert [file.name for file in data.parent.iterdir()] == ["my data.csv"]
    assert call("create", data, "--total", 3, "--size", 10, "--delta", 0.2, "--allow-large-delta") == 0


def test_create_takes_the_ledgers_own_name(tmp_path: Path) -> None:
    assert call("create", tmp_path / "adult.ledger", "--total", 3) == 0
    assert Ledger.read(tmp_path / "adult.ledger").dataset == "adult"


def test_every_command_takes_the_data_or_the_ledger(data: Path) -> None:
    run("create", data, "--total", 3)
    ledger = data.with_name("my data.ledger")
    for name in (data, ledger):
        assert "total" in run("extend", name, "--total", 4 if name == data else 5, "--reason", "more").stdout
        assert json.loads(run("show", name, "--json").stdout)["dataset"] == "my data"
        assert run("verify", name).exit_code == 0


def test_the_environment_says_where_ledgers_lie(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ledgers").mkdir()
    monkeypatch.setenv("DPILOT_LEDGERS", str(tmp_path / "ledgers"))
    assert call("create", data, "--total", 3) == 0
    (file,) = (tmp_path / "ledgers").iterdir()
    assert file.name.startswith("my data-")
    assert json.loads(run("list", "--json").stdout)["ledgers"][0]["file"] == str(file)
    assert call("show", data) == 0


def test_extend_keeps_its_reason_in_the_chain(data: Path) -> None:
    run("create", data, "--total", 3, "--delta", 3e-6)
    said = json.loads(run("extend", data, "--total", 4, "--reason", "[red]a new question", "--json").stdout)
    assert said["budget"] == {"epsilon": 4.0, "delta": 4e-6}
    assert said["reason"] == "[red]a new question"
    shown = json.loads(run("show", data, "--json").stdout)
    assert [each["reason"] for each in shown["extensions"]] == ["[red]a new question"]
    assert "to epsilon 4 at delta 4e-06 in row 1" in run("show", data).stdout
    assert "[red]a new question" in run("show", data).stdout
    for wrong in (("--total", 4), ("--total", 3), ("--total", 5, "--delta", 1e-7), ("--total", -1)):
        assert call("extend", data, *wrong, "--reason", "again") == 2
    assert call("extend", data, "--total", 5) == 2  # without a reason
    assert call("extend", data, "--total", 5, "--reason", " ") == 2
    assert Ledger.read(data.with_name("my data.ledger")).budget == Budget(4.0, 4e-6)


def test_commands_say_that_there_is_no_ledger_yet(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (("show",), ("verify",), ("extend", "--total", 3, "--reason", "x")):
        assert call(given[0], data, *given[1:]) == 2
        assert "dpilot ledger create" in capsys.readouterr().err
    assert not data.with_name("my data.ledger").exists()


def test_list_shows_every_ledger_and_what_is_left(ledger: Ledger, tmp_path: Path) -> None:
    Ledger.create(tmp_path / "b.ledger", dataset="b", budget=Budget(1.0, 1e-6))
    listed = run("list", tmp_path)
    assert listed.exit_code == 0
    for text in ("a.ledger", "[red]adult", "2.75", "b.ledger"):
        assert text in listed.stdout
    said = json.loads(run("list", tmp_path, "--json").stdout)
    assert [(each["dataset"], each["remaining"]["epsilon"]) for each in said["ledgers"]] == [
        ("[red]adult", 2.75),
        ("b", 1.0),
    ]
    assert said["problems"] == {}


def test_list_names_what_it_cannot_read_and_fails(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "broken.ledger").write_text("no ledger")
    said = json.loads(run("list", tmp_path, "--json").stdout)
    assert list(said["problems"]) == [str(tmp_path / "broken.ledger")]
    assert len(said["ledgers"]) == 1
    assert call("list", tmp_path) == 2
    assert call("list", tmp_path / "none") == 2


def test_list_of_an_empty_folder_says_how_to_begin(tmp_path: Path) -> None:
    assert "dpilot ledger create" in run("list", tmp_path).stdout
