"""One page for every kind of run: eight questions are answered on each, from its folder alone."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpilot
from dpilot import AutoClassifier, AutoRegressor, Budget, Plan, Schema, Trainer
from dpilot.audit.verify import verify
from dpilot.cli.main import main
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.fit.table import fit_table
from dpilot.linear import LinearRegression
from dpilot.privacy.ledger import Ledger
from dpilot.records import FitRecord
from dpilot.report import page
from dpilot.report.about import FIELDS, OPEN
from dpilot.report.answers import QUESTIONS
from dpilot.report.promise import promise
from dpilot.transfer import Features
from dpilot.transfer.probing import fit_probe
from dpilot.tune import ProbeTask, SearchBox, autopilot, linear_scaling
from tests.report.test_page import Elements, seen

BUDGET = Budget(3.0, 1e-6)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1_500, 3))
Y = (X[:, 0] + 0.3 * RNG.normal(size=1_500) > 0).astype(int)
DATA = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(Y))
LOSS = nn.CrossEntropyLoss(reduction="none")
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"type": "numeric", "bounds": [-4, 4]},
            "sex": {"type": "categorical", "categories": ["f", "m"], "role": "protected"},
            "ill": {"type": "categorical", "categories": ["no", "yes"], "role": "target"},
            "patient": {"role": "unit"},
        }
    }
)
FRAME = pd.DataFrame(
    {"age": X[:, 0], "sex": np.where(X[:, 1] > 0, "f", "m"), "ill": np.where(Y, "yes", "no"), "patient": range(len(Y))}
)


def table(folder: Path) -> Path:
    ledger = Ledger.open(folder.with_suffix(".ledger"), dataset="ward", budget=Budget(9.0, 1e-5), unit="patient")
    return fit_table(FRAME, SCHEMA, epsilon=3.0, ledger=ledger, size=1_500, model="logistic", epochs=2).save(folder)


def estimator(folder: Path) -> Path:
    return AutoClassifier(3.0, classes=[0, 1]).fit(X, Y).save(folder)


def regressor(folder: Path) -> Path:
    return AutoRegressor(3.0).fit(X, X[:, 0]).save(folder)


def regression(folder: Path) -> Path:
    return LinearRegression(3.0).fit(X, X[:, 0]).record().save(folder)


def head(folder: Path) -> Path:
    return autopilot(Features.of(X, Y, 2), budget=BUDGET).record.save(folder)


def trained(folder: Path) -> Path:
    plan = Plan.calibrate(BUDGET, size=1_500, batch_size=300, steps=20, clipping="slack")
    run = Trainer(nn.Linear(3, 2), LOSS, plan, lr=0.5).fit(DATA)
    run.evaluate(DATA, epsilon=1.0)
    return run.save(folder)


def own_loop(folder: Path) -> Path:
    plan = Plan.calibrate(BUDGET, size=1_500, batch_size=300, steps=6, clipping="bounded")
    model = nn.Linear(3, 2)
    loader = dpilot.poisson_loader(DATA, plan)
    step = dpilot.PrivateStep(model, LOSS, torch.optim.SGD(model.parameters(), lr=0.5), plan)
    for batch in loader:
        step(batch)
    return step.run.save(folder)


def probe(folder: Path) -> Path:
    return fit_probe(Features.of(X, Y, 2).unit(), BUDGET, lr=2.0, steps=10).record.save(folder)


def tuned(folder: Path) -> Path:
    split = Split.draw({"train": 0.8, "held-out": 0.2})
    task = ProbeTask.of(Features.of(X, Y, 2).unit(), split, size=1_500)
    return linear_scaling(task, BUDGET, box=SearchBox((0.1, 10.0), (5, 20))).record.save(folder)


KINDS: dict[str, Callable[[Path], Path]] = {
    each.__name__: each for each in (table, estimator, regressor, regression, head, trained, own_loop, probe, tuned)
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KINDS[request.param](tmp_path_factory.mktemp("runs") / request.param)


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    assert main(["report", str(folder)]) == 0
    return (folder / page.PAGE).read_text(encoding="utf-8")


def answer(text: str, question: str) -> str:
    found = re.search(f"<dt>{re.escape(question)}</dt><dd>(.*?)</dd>", text, re.DOTALL)
    assert found is not None, question
    return html.unescape(re.sub(r"<[^>]+>", "", found.group(1)))


def test_eight_questions_are_answered_on_every_page(folder: Path, text: str) -> None:
    record = page.read(folder)
    said = {question: answer(text, question) for question in QUESTIONS}
    protected, strongly, tuning, quality, group, left, unprotected, checks = said.values()
    statement = promise(record)
    kind = folder.name
    assert ("at most 8 count" if kind == "table" else "Every single record") in protected
    assert f"at most {statement.even} sure" in strongly
    assert f"a factor of at most {statement.squared}" in strongly
    assert tuning.startswith("No setting" if kind in ("trained", "own_loop", "probe") else "Yes.")
    assert ("Every setting that was tried" in tuning) == (kind in ("estimator", "regression", "tuned"))
    assert ("is left, all at delta" in left or "run ended, all at delta" in left) == (kind != "table")
    figures = {"regression", "own_loop", "probe", "tuned"}
    assert ("No figure was released" in quality) == (kind in figures)
    assert "cannot say what privacy cost" in quality
    assert "--baseline FIGURE" in quality
    assert "No groups were compared" in group or kind == "table"
    assert re.search(r"of its total of epsilon \d[\d.]*, [\d.]+ is spent and ([\d.]+|nothing) is left", left)
    assert ("ward.ledger" in left or "table.ledger" in left) == (kind == "table")
    assert "running time" in unprotected
    weakness = "the last digits of released numbers may tell more than promised"
    assert (weakness in unprotected) == (kind != "regression")  # whose noise is hardened
    assert ("was declared beforehand, as public" in unprotected) == (kind in ("trained", "own_loop"))
    assert ("does not say; if not, they are too good" in quality) == (kind == "trained")
    assert "folder holds a statement.json, which nobody signed" in checks
    verified = verify(folder)
    assert verified.held
    assert ("not part" in verified.statement["tuning"]) == (kind in ("trained", "own_loop", "probe"))
    assert "size=" not in unprotected
    assert "May be published" in unprotected
    assert "dpilot verify RUN" in checks
    assert "dpilot report RUN" in checks
    assert "dpilot ledger verify" in checks


def test_every_page_stands_and_says_nothing_in_dialect(folder: Path, text: str) -> None:
    found = Elements(text)
    assert found.open == []
    names = [attributes["id"] for _, attributes in found.found if "id" in attributes]
    assert len(names) == len(set(names))
    words = seen(text)
    for dialect in ("of mu^2", "composed on each part", "no single record can show through", "Row "):
        assert dialect not in words
    assert text == page.render(page.read(folder), folder=folder)


@pytest.mark.parametrize("folder", ["table"], indirect=True)
def test_a_table_shows_groups_errors_and_what_drives_it(text: str) -> None:
    words = seen(text)
    assert "sex: each group beside all others" in words
    assert "Truly “no”, predicted “yes”" in words
    assert "Figures to compare models by" in words
    assert "What drives the prediction" in words
    assert "ROC: true positives against false positives" in words


@pytest.mark.parametrize("folder", ["table"], indirect=True)
def test_what_is_good_to_get_is_a_class_of_the_record(folder: Path) -> None:
    record = page.read(folder)
    asked, filled = (answer(page.render(record, about=each), QUESTIONS[4]) for each in ({}, {"favourable": "no"}))
    assert "which is good to get, was not filled in" in asked
    assert "to be predicted “no” is good" in filled
    with pytest.raises(InvalidInput, match=r"favourable is 'maybe': expected one of 'no', 'yes'"):
        page.render(record, about={"favourable": "maybe"})


@pytest.mark.parametrize("folder", ["trained"], indirect=True)
def test_steps_are_drawn_and_nothing_is_called_held_out_that_may_not_be(text: str) -> None:
    words = seen(text)
    assert "Whether training had used them the record does not say" in words
    assert "evaluation" in words
    for each in ("Fraction of records clipped", "Gradient norms over the steps", "Epsilon of training", "Noise beside"):
        assert each in words


@pytest.mark.parametrize("folder", ["trained"], indirect=True)
def test_what_the_record_does_not_know_of_a_run_its_writer_may_say(folder: Path, text: str) -> None:
    record = page.read(folder)
    assert "Where the settings come from" in seen(text)
    said = {"measured_on": "rows that were kept apart.", "settings_from": "a tutorial", "rows_per_person": "one"}
    filled = html.unescape(page.render(record, about=said, folder=folder))
    assert "as whoever wrote this page says: a tutorial. If others were tried" in answer(filled, QUESTIONS[2])
    assert "as whoever wrote this page says: rows that were kept apart. If" in answer(filled, QUESTIONS[3])
    assert "as whoever wrote this page says: one." in answer(filled, QUESTIONS[0])
    assert "figures were measured on are protected in the same way" in answer(filled, QUESTIONS[0])
    assert "that of the figures, which was paid apart, included" in answer(filled, QUESTIONS[-1])
    assert "The evaluation was paid apart: its lines are not in that file" in filled
    assert "which the record does not say" not in filled


def test_figures_of_public_records_are_no_trials_and_have_no_intervals(tmp_path: Path) -> None:
    plan = Plan.calibrate(BUDGET, size=1_500, batch_size=300, steps=4, clipping="constant")
    public = TensorDataset(torch.randn(30, 3), torch.arange(30) % 2)
    run = Trainer(nn.Linear(3, 2), LOSS, plan, lr=0.5, public_validation=public).fit(DATA)
    words = seen(run.report(tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "Accuracy on public records against step" in words
    assert "Settings were tried" not in words
    assert "Each comes with two intervals" not in words


def test_a_record_that_lists_no_costs_has_no_statement(tmp_path: Path) -> None:
    total = {"epsilon": 1.0, "delta": 1e-6, "unit": "one record, added or removed"}
    folder = FitRecord(total, {}, {}, (), (), (), (), ("float noise, not hardened",), ()).save(tmp_path / "own")
    text = page.render(page.read(folder), folder=folder)
    assert "folder holds no statement.json that can be read" in answer(text, QUESTIONS[-1])


def test_what_was_filled_in_and_supplied_is_shown_and_the_rest_is_visibly_empty(tmp_path: Path) -> None:
    made: Any = head(tmp_path / "run")
    (tmp_path / "about.toml").write_text('controller = "St. <Mary>"\npurpose = "a test."\n')
    assert main(["report", str(made), "--about", str(tmp_path / "about.toml"), "--baseline", "0.875"]) == 0
    words = seen((made / page.PAGE).read_text(encoding="utf-8"))
    assert "St. <Mary>" in words
    assert words.count("not filled in") == len(FIELDS) - len(OPEN) + 1 - 2 + 4  # what it means, data, rows, keeper
    assert "Without privacy: 87.5 %, a figure from data declared public" in words
    (tmp_path / "about.toml").write_text('colour = "red"\n')
    assert main(["report", str(made), "--about", str(tmp_path / "about.toml")]) == 2
