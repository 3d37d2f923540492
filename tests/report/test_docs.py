"""The pages for hospitals: their code runs and does what they say, their numbers are those of the library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpilot.report import promise, words

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


def ran(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.fixture(scope="module")
def page() -> str:
    return (DOCS / "first_questions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1, 2, 3, 5, 8, 10])
def test_the_table_of_odds_is_that_of_the_library(epsilon: float, page: str) -> None:
    cells = [words.at_most(promise.belief(before, epsilon).most) for before in (0.01, 0.1, 0.5)]
    assert f"| {epsilon:g} | {words.upward(promise.factor(epsilon), 3)} | {' | '.join(cells)} |" in page


def test_the_figures_in_the_text_are_those_of_the_library(page: str) -> None:
    assert "99.996 % sure" in page
    assert words.at_most(promise.belief(0.5, 10).most) == "99.996 %"
    assert promise.belief(0.5, 1).most < 0.75
    assert f"up to {words.at_most(promise.belief(0.5, 3).most)} sure" in page
    assert promise.belief(0.5, 5).most > 0.99


def test_each_patient_becomes_one_row_of_their_own_rows(capsys: pytest.CaptureFixture[str]) -> None:
    names = ran(blocks("first_questions.md")[0])
    rows, visits = names["one_row_a_patient"](names["visits"]), names["visits"]
    assert len(rows) == 3
    assert rows["visits"].tolist() == [3, 1, 2]
    assert rows["creatinine_last"].tolist() == [15.0, 0.8, 2.4]
    assert rows["creatinine_mean"].round(3).tolist() == [5.667, 0.8, 2.2]
    assert rows["age"].tolist() == [71, 45, 100]
    for patient in (1, 2, 3):
        others = names["one_row_a_patient"](visits[visits["patient"] != patient]).to_numpy()
        assert np.array_equal(others, np.delete(rows.to_numpy(), patient - 1, axis=0))
    assert "5.666667" in capsys.readouterr().out


def test_a_patient_of_nonsense_moves_no_other_row() -> None:
    names = ran(blocks("first_questions.md")[0])
    odd = pd.DataFrame(
        {"patient": [9] * 30, "day": range(30), "age": 1e9, "creatinine": np.nan, "icu": 7, "readmitted": 1}
    )
    rows = names["one_row_a_patient"](pd.concat([names["visits"], odd]))
    assert rows.iloc[:3].equals(names["one_row_a_patient"](names["visits"]).astype(rows.dtypes))
    assert (rows["visits"].iloc[3], rows["age"].iloc[3]) == (20, 100)


def test_a_fitted_scaler_moves_every_row_and_a_declared_one_none() -> None:
    names = ran(blocks("first_questions.md")[1])
    ages, more = names["ages"], names["with_one_more"]
    assert (np.abs(names["fitted_scaler"](more)[:4] - names["fitted_scaler"](ages)) > 0.1).all()
    assert np.array_equal(names["declared_scaler"](more)[:4], names["declared_scaler"](ages))


def test_the_example_of_the_report_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("report.md")
    ran(code)
    assert capsys.readouterr().out == "True False\n"
