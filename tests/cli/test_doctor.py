"""dpilot doctor on models a person might bring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpilot.cli.main import main

MODELS = """
import torch
from torch import nn

good = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(7200, 2))

def make_tokens():
    return nn.Sequential(nn.Embedding(50, 8), nn.LSTM(8, 4, batch_first=True))

def make_normed():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

class Centred(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
    def forward(self, x):
        return super().forward(x - x.mean(0))

class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)
    def forward(self, x):
        return self.used(x)

number = 3
"""


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("model", ["some_models:good", "some_models:make_tokens"])
def test_a_ready_model(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", model]) == 0
    assert "Ready for private training." in capsys.readouterr().out


def test_a_layer_that_mixes_samples_is_named_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "some_models:make_normed", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert not report["ready"]
    (bad,) = [row for row in report["layers"] if row["problem"]]
    assert bad["layer"] == "1"
    assert "replace_batch_norm" in bad["remedy"]


def test_mixing_that_no_layer_shows_is_found_by_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "some_models:Centred", "--input", "4"]) == 2
    assert "1 problem(s) found." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["some_models"], "MODULE:MODEL"),
        (["some_models:missing"], "cannot be loaded"),
        (["no_such_module:model"], "cannot be loaded"),
        (["some_models:number"], "cannot be loaded"),
        (["some_models:good", "--input", "3xx"], "input is '3xx'"),
        (["some_models:good", "--input", "0"], "input is '0'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert told in err


def test_what_would_train_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "some_models:Unused", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["silent"]
    assert said.startswith("unused.weight, unused.bias cannot move")
    assert main(["doctor", "some_models:good", "--size", "20", "--epsilon", "0.1", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["silent"]
    assert "noise will be" in said
    assert main(["doctor", "some_models:good", "--size", "20", "--epsilon", "0.1"]) == 0
    assert "may learn nothing" in "".join(capsys.readouterr())
    assert main(["doctor", "some_models:good", "--size", "1000000", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["silent"]
