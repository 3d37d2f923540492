"""``dpilot demo``: end to end, again and again, and never over something else."""

from __future__ import annotations

import json
import time

import pandas as pd
import pytest

import dpilot
from dpilot import Budget, Ledger
from dpilot.cli.main import main
from dpilot.data import bundled
from dpilot.privacy.events import Gaussian
from dpilot.records import FitRecord


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
        "was spent on trying settings",
        "not protected",
    ):
        assert words in said
    page = (few / "shown" / "report.html").read_text()
    assert "demographic parity" in page.lower()
    run = dpilot.load(few / "shown" / "run")
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


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def a_fit(folder, name):
    """A run of dpilot's own that is no demo, with its ledger and its record."""
    folder.mkdir(parents=True)
    book = Ledger.open(folder / "ledger", dataset=name, budget=Budget(1.0, 1e-5), mode="precommitted")
    book.commit([("training", Gaussian(10.0))])
    (folder / "fit.json").write_text("{}")


@pytest.mark.parametrize("name", ["mine", "few"])
def test_the_demo_never_removes_the_ledger_of_a_run_that_is_no_demo(few, name):
    """The data set "few" is called like the demo's own."""
    a_fit(few / "work" / "run", name)
    before = contents(few / "work")
    assert main(["demo", "--folder", "work"]) == 2
    assert contents(few / "work") == before


def test_a_mark_alone_does_not_make_a_ledger_the_demos(few):
    a_fit(few / "work" / "run", "mine")
    (few / "work" / "run" / "dpilot-demo.txt").write_text("")
    before = contents(few / "work")
    assert main(["demo", "--folder", "work"]) == 2
    assert contents(few / "work") == before
    (few / "work" / "run" / "ledger").unlink()
    assert main(["demo", "--folder", "work"]) == 2
    assert (few / "work" / "run" / "fit.json").is_file()


def test_the_demo_writes_over_no_other_report_and_through_no_link(few):
    (few / "work").mkdir()
    (few / "work" / "report.html").write_text("mine")
    assert main(["demo", "--folder", "work"]) == 2
    assert (few / "work" / "report.html").read_text() == "mine"
    a_fit(few / "real", "few")
    (few / "real" / "dpilot-demo.txt").write_text("")
    (few / "linked").mkdir()
    (few / "linked" / "run").symlink_to(few / "real")
    assert main(["demo", "--folder", "linked"]) == 2
    assert (few / "real" / "ledger").is_file()


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
    assert "step size times steps (r) against mu: fitted" in record.curves
    page = (tmp_path / "out" / "demo" / "report.html").read_text()
    assert "Step size times steps (r) against mu" in page
