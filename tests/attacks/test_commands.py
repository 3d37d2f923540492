"""Attacks on what is printed and refused: words that follow from how many records there are, or from one of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpilot import statistics
from dpilot.cli.main import main
from dpilot.data.mapped import MappedDataset
from dpilot.errors import InvalidInput
from dpilot.fit import on_disk
from dpilot.metrics.counts import Layout, Scored, noisy_counts
from dpilot.metrics.regression import noisy_sums
from dpilot.metrics.residuals import Groups, noisy_residuals
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features

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


def paid() -> dict[str, Any]:
    return {"noise_multiplier": 1.0, "receipt": Receipt(Gaussian(1.0))}


def scored(target: Any) -> Any:
    return noisy_counts(Scored(target, np.zeros((len(target), 2))), Layout(("a", "b")), **paid())


REFUSALS: dict[str, Callable[[Any, Any], Any]] = {
    "a statistic": lambda texts, _: statistics.count(texts, **paid()),
    "counts": lambda texts, _: scored(texts),
    "counts of a list": lambda texts, _: scored(texts.tolist()),
    "sums": lambda texts, numbers: noisy_sums(texts, numbers, half_range=1.0, **paid()),
    "sums of others": lambda _, numbers: noisy_sums(numbers, numbers[:1], half_range=1.0, **paid()),
    "groups": lambda texts, numbers: noisy_residuals(
        numbers, numbers, texts, Groups(("a",), "g"), half_range=1.0, **paid()
    ),
    "features": lambda _, numbers: Features.of(numbers[:, None], numbers[:, None], 2),
    "mapped arrays": lambda _, numbers: MappedDataset(numbers, numbers[1:]),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_tells_neither_how_many_records_there_are_nor_of_one(refusal: str) -> None:
    """Shapes told the number, types of texts the length of the longest, and numpy's own words one record's text."""
    said = []
    for texts in (["a"] * 5, [*["a"] * 5, "a text of one record"]):
        with pytest.raises(InvalidInput) as refused:
            REFUSALS[refusal](np.array(texts), np.zeros(len(texts)))
        said.append(str(refused.value))
    assert said[0] == said[1]
