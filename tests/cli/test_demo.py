"""``dpilot demo``: end to end, again and again, and never over something else."""

from __future__ import annotations

import json
import time

import pandas as pd
import pytest

from dpilot import Ledger
from dpilot.cli.main import main
from dpilot.data import bundled
from dpilot.records import FitRecord
from dpilot.tables.run import load_table


@pytest.fixture
def few(tmp_path, monkeypatch):
    """The first 3,000 people alone, so that it is quick."""
    path, schema = bundled.adult()
    pd.read_parquet(path).head(3_000).to_parquet(tmp_path / "few.parquet")
    monkeypatch.setattr(bundled, "adult", lambda: (tmp_path / "few.parquet", schema))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_learns_scores_explains_and_reports(few, capsys):
    assert main(["demo", "--folder", "shown"]) == 0
    said = capsys.readouterr().out
    for words in (
        "One budget",
        "final run:",
        "group accuracy",
        "sex = Female",
        "of mu^2 went to tuning",
        "not protected",
    ):
        assert words in said
    page = (few / "shown" / "report.html").read_text()
    assert "demographic parity" in page.lower()
    run = load_table(few / "shown" / "run")
    assert run.epsilon <= 1.0
    assert set(run.predict(pd.read_parquet("few.parquet").head(20))) <= {*run.schema.target.categories, None}
    Ledger.read(few / "shown" / "run" / "ledger").verify()


def test_the_demo_can_be_shown_again_but_not_over_something_else(few, capsys):
    assert main(["demo", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["demo", "--json", "--epsilon", "2"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["epsilon"] <= 1.0 < second["epsilon"] <= 2.0
    assert second["seconds"] > 0
    (few / "other" / "run").mkdir(parents=True)
    (few / "other" / "run" / "precious.txt").write_text("mine")
    assert main(["demo", "--folder", "other"]) == 2
    assert "precious" not in capsys.readouterr().out
    assert (few / "other" / "run" / "precious.txt").read_text() == "mine"


@pytest.mark.slow
def test_the_whole_demo_tunes_reaches_its_figures_and_is_quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = time.perf_counter()
    assert main(["demo"]) == 0
    assert time.perf_counter() - started < 120
    record = FitRecord.from_json((tmp_path / "out" / "demo" / "run" / "fit.json").read_text())
    figures = {each.name: each for each in record.metrics if not each.of}
    assert figures["accuracy"].sampling[1] > 0.85
    assert figures["AUC"].sampling[1] > 0.9
    assert "step size against epsilon: fitted" in record.curves
    page = (tmp_path / "out" / "demo" / "report.html").read_text()
    assert "Step size against epsilon" in page
