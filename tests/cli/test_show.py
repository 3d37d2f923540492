"""What ``dpilot fit`` and ``dpilot demo`` print of a record's figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpilot.cli import fit
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Balance
from dpilot.records import FitRecord
from tests.report.samples import fitted, health, metric, noisy_share


def shown(record: FitRecord, capsys: pytest.CaptureFixture[str], **how: Any) -> str:
    balance = Balance(Budget(3.0, 1e-6), Cost(1.0, 3e-7), Cost(2.0, 7e-7))
    fit._show(SimpleNamespace(record=record), Path("report.html"), Path("run"), balance, **{"json": False, **how})  # type: ignore[arg-type]
    return capsys.readouterr().out


def test_an_ordinary_fit_is_judged_and_its_unit_told(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(fitted(), capsys)
    assert "0.8514" in text
    assert "surely above" in text
    assert fitted().privacy["unit"] in text
    assert "LOOK AT THE DATA" not in text


def test_a_figure_that_cannot_be_told_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(fitted(metrics=(metric("accuracy", 0.9271, drawn=0.4),)), capsys)
    assert "cannot be told" in text
    assert "0.9271" not in text


def test_lost_records_are_said_loudly(capsys: pytest.CaptureFixture[str]) -> None:
    bad = health(0.3, noisy_share("unknown category", "smokes", 0.68))
    text = shown(fitted(health=bad), capsys)
    assert text.count("LOOK AT THE DATA") == 2
    assert "smokes" in text


@pytest.mark.parametrize("old", [None, health()])
def test_json_says_which_values_are_told(old: dict[str, Any] | None, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    wide = metric("AUC", 0.9271, drawn=0.4)
    told = json.loads(shown(fitted(metrics=(*fitted().metrics, wide), health=old), capsys, json=True))
    assert [each["name"] for each in told["metrics"] if not each["told"]] == ["AUC"]
    assert told["verdict"]["sure"] is True
    assert told["health"] == old
    assert told["unit"] == fitted().privacy["unit"]
