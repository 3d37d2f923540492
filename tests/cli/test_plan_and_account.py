"""The free commands, as a person at a terminal meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpilot.cli.main import main
from dpilot.privacy import noise_multiplier
from dpilot.privacy.budget import Budget

PLAN = ["plan", "--size", "50000", "--epochs", "8"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_plan_prints_the_table_and_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*PLAN, "--epsilon", "1", "--epsilon", "8", "--delta", "1e-5", "--plot", "plan.png"]) == 0
    out, err = capsys.readouterr()
    assert "batch 2,048: smallest on the plateau" in out
    assert "batch 16,384" in out
    assert "<- recommended" in out
    assert "plan.png" in err
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_plan_as_json_says_the_default_delta(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*PLAN, "--epsilon", "1", "--json", "--plot", ""]) == 0
    (advice,) = json.loads(capsys.readouterr().out)
    assert advice["budget"] == {"epsilon": 1.0, "delta": 2e-6}
    assert {row["batch_size"] for row in advice["table"]} >= {256, 4096, 50_000}
    assert list(tmp_path.iterdir()) == []


def test_plan_notes_a_large_delta(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--epsilon", "1", "--delta", "1e-5", "--plot", ""]) == 0
    assert "above 1/(10 size)" in capsys.readouterr().err


def test_account_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["account", "--batch-size", "500", "--size", "50000", "--steps", "1000", "--delta", "1e-5", "--json"]
    assert main([*run, "--epsilon", "1"]) == 0
    noise = json.loads(capsys.readouterr().out)
    assert noise["noise_multiplier"] == noise_multiplier(Budget(1.0, 1e-5), sample_rate=0.01, steps=1000)
    assert 0.999 <= noise["epsilon"] <= 1.0
    assert main([*run, "--noise-multiplier", str(noise["noise_multiplier"])]) == 0
    back = json.loads(capsys.readouterr().out)
    assert back["epsilon"] == noise["epsilon"]
    assert back["epsilon_rdp"] > back["epsilon"]
    assert "epsilon_gdp" not in back


def test_account_for_full_batch_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["account", "--sample-rate", "1", "--steps", "110", "--noise-multiplier", "37.80", "--delta", "1e-5"]
    assert main([*run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon_gdp"] == pytest.approx(1.03863, abs=1e-5)
    assert main(run) == 0
    assert "1.039" in capsys.readouterr().out


BAD = [
    ([*PLAN, "--epsilon", "0"], "epsilon is 0.0"),
    ([*PLAN, "--epsilon", "-1"], "epsilon is -1.0"),
    ([*PLAN, "--epsilon", "nan"], "epsilon is nan"),
    ([*PLAN, "--epsilon", "inf"], "epsilon is inf"),
    ([*PLAN, "--epsilon", "1", "--epsilon", "0"], "epsilon is 0.0"),
    ([*PLAN, "--epsilon", "one"], "one"),
    ([*PLAN, "--epsilon", "1", "--delta", "0"], "delta is 0.0"),
    ([*PLAN, "--epsilon", "1", "--delta", "1"], "delta is 1.0"),
    ([*PLAN, "--epsilon", "1", "--delta", "2e-5"], "one random record"),
    ([*PLAN], "--epsilon"),
    (["plan", "--size", "0", "--epochs", "1", "--epsilon", "1"], "size is 0"),
    (["plan", "--size", "-5", "--epochs", "1", "--epsilon", "1"], "size is -5"),
    (["plan", "--size", "many", "--epochs", "1", "--epsilon", "1"], "many"),
    (["plan", "--size", "100", "--epochs", "0", "--epsilon", "1"], "epochs is 0"),
    ([*PLAN, "--epsilon", "1", "--plot", "no/such/folder/plan.png"], "plot is"),
    ([*PLAN, "--epsilon", "1", "--plot", "plan.docx"], "plot is"),
    (["account", "--steps", "10", "--sample-rate", "1.5", "--epsilon", "1"], "sample_rate is 1.5"),
    (["account", "--steps", "10", "--sample-rate", "0", "--epsilon", "1"], "sample_rate is 0.0"),
    (["account", "--steps", "0", "--sample-rate", "0.5", "--epsilon", "1"], "steps is 0"),
    (["account", "--steps", "1.5", "--sample-rate", "0.5", "--epsilon", "1"], "1.5"),
    (["account", "--steps", "10", "--sample-rate", "0.5"], "expected one of --noise-multiplier"),
    (["account", "--steps", "10", "--epsilon", "1"], "expected either --sample-rate"),
    (["account", "--steps", "10", "--batch-size", "200", "--size", "100", "--epsilon", "1"], "batch_size is 200"),
    (["account", "--steps", "10", "--sample-rate", "0.5", "--noise-multiplier", "-1"], "noise_multiplier is -1.0"),
    (["account", "--steps", "9", "--sample-rate", "0.5", "--epsilon", "1", "--size", "9", "--delta", ".2"], "delta is"),
    (["nonsense"], "nonsense"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    lines = [text for text in err.splitlines() if not text.startswith("note:")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert told in lines[0]
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in out + err


def test_large_delta_can_be_allowed_explicitly(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["account", "--steps", "1", "--batch-size", "9", "--size", "100", "--delta", "0.02", "--epsilon", "1"]
    assert main(run) == 2
    assert main([*run, "--allow-large-delta"]) == 0
    assert "large for 100 records" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["ledger"]])
def test_no_command_shows_the_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert "Usage:" in out
    assert err == ""
