"""AutoRegressor: one call, one budget, noisy figures of records it was not fitted to."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from dpilot import Budget, Ledger
from dpilot.audit.replay import replay
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.fit.arrays import join_target
from dpilot.fit.estimators import test_seed_of as seed_of
from dpilot.fit.keys import FitKeys
from dpilot.fit.regressor import AutoRegressor
from dpilot.fit.source import TableSource
from dpilot.linear.problem import LinearProblem
from dpilot.linear.scoring import noisy_scores, score_event
from dpilot.mechanism import SYSTEM, seeded_noise
from dpilot.privacy.accountant import gdp_epsilon, gdp_mu
from dpilot.privacy.receipt import Receipt
from dpilot.records import FitRecord
from dpilot.report.page import render
from dpilot.tape import tape
from tests.fit.helpers import left_on
from tests.linear.helpers import EXTREMES, line, table, with_record
from tests.tapes import NoiseFree

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"type": "numeric", "bounds": [0, 100]},
            "kind": {"type": "categorical", "categories": ["a", "b"]},
            "price": {"type": "numeric", "bounds": "buy", "missing": "null"},
            "sex": {"type": "categorical", "categories": ["f", "m"], "role": "protected"},
            "y": {"type": "numeric", "bounds": [-300, 500], "role": "target"},
        }
    }
)


def frame(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    age, price, kind = rng.uniform(0, 100, n), rng.lognormal(3.0, 0.5, n), rng.choice(["a", "b"], n)
    table = pd.DataFrame({"age": age, "kind": kind, "price": price, "sex": rng.choice(["f", "m"], n)})
    return table, age + 40 * (kind == "b") + price + 5 * rng.normal(size=n)


def metric(model, name):
    return {each.name: each for each in model.metrics_}[name]


def test_figures_of_held_out_records_are_near_the_truth():
    X, y, _ = line(20_000, 3)
    model = AutoRegressor().fit(X, y)
    found = metric(model, "R^2")
    assert model.score(X, y) > 0.9
    assert found.value == pytest.approx(model.score(X, y), abs=0.1)
    assert found.noise_interval[0] - 0.05 < model.score(X, y) < found.noise_interval[1] + 0.05
    assert metric(model, "RMSE").value == pytest.approx(0.3, abs=0.15)


def test_both_parts_together_cost_the_budget_and_no_more():
    X, y, _ = line(500, 3)
    privacy = AutoRegressor(0.5).fit(X, y).privacy_
    assert 0.49 < privacy.spent.epsilon <= 0.5
    assert privacy.entries[0].part is None, "the health check"
    assert {entry.part for entry in privacy.entries[1:]} == {"train", "held-out"}
    assert {entry.state for entry in privacy.entries} == {"committed"}


@pytest.mark.parametrize("part", ["train", "held-out"])
@pytest.mark.parametrize("record", [*EXTREMES, "largest"])
def test_one_more_record_of_either_part_moves_releases_within_their_bounds_and_nothing_else(record, part, monkeypatch):
    values = table(300, 2) * 1e-3
    drawn = Split.indices

    def forced(split, length):
        found = {name: places[places < 300] for name, places in drawn(split, length).items()}
        return {**found, part: np.append(found[part], np.arange(300, length))}

    monkeypatch.setattr(Split, "indices", forced)

    def fit(given):
        return left_on(AutoRegressor(size=300).fit(given[:, :-1], given[:, -1]))

    odd = {**EXTREMES, "largest": (0.0, 1.7e308)}[record]
    found = replay(fit, values, with_record(values, *odd))
    assert found.differences == ()
    assert found.releases > 10


@pytest.mark.parametrize("size", ["public", "private", 5000])
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_every_size_is_paid_for_and_said(size, schema):
    X, y = frame(2000)
    given = X[["age", "price"]] if schema is None else X
    model = AutoRegressor(size=size, schema=schema).fit(given, y)
    assert 0.99 < model.privacy_.spent.epsilon <= 1.0
    assert ("size" in [entry.purpose for entry in model.privacy_.entries]) == (size == "private")
    assert any("number" in what for what in model.privacy_.unprotected) == (size == "public")
    assert model.score(given, y) > 0.3


def test_fits_in_one_ledger_add_up(tmp_path):
    X, y, _ = line(300, 2)
    ledger = Ledger.open(tmp_path / "two.ledger", dataset="two", budget=Budget(2.0, 3e-5))
    for total in (1.0, 2.0):
        AutoRegressor(ledger=ledger).fit(X, y)
        assert ledger.spent().epsilon == pytest.approx(total)
    with pytest.raises(BudgetExceeded):
        AutoRegressor(ledger=ledger).fit(X, y)


@pytest.mark.filterwarnings("ignore:random_state")
def test_each_record_is_in_one_part_only():
    X, y, _ = line(500, 2)
    places = FitKeys.draw(seed_of(3)).split({"train": 0.9, "held-out": 0.1}).indices(500)
    assert 20 < places["held-out"].size < 90
    plain = AutoRegressor(random_state=3).fit(X, y)
    moved = y.copy()
    moved[places["held-out"]] += 2.0
    apart = AutoRegressor(random_state=3).fit(X, moved)
    assert np.array_equal(plain.coef_, apart.coef_)
    assert metric(plain, "RMSE") != metric(apart, "RMSE")
    heard = NoiseFree()
    with tape(heard):
        AutoRegressor(random_state=3).fit(X, y)
    counts = heard.entries[-2].inputs[0]
    assert counts.sum() == places["held-out"].size


@pytest.mark.parametrize("record", EXTREMES)
def test_one_more_record_moves_a_private_score_within_its_bounds(record):
    rows = table(300, 2)
    model = AutoRegressor().fit(rows[:, :-1], rows[:, -1])

    def score(values):
        return [each.record() for each in model.private_score(values[:, :-1], values[:, -1], epsilon=1.0).metrics]

    found = replay(score, rows, with_record(rows, *EXTREMES[record]))
    assert found.differences == ()
    assert found.releases == 2


def test_a_private_score_is_paid_apart(tmp_path):
    X, y, _ = line(3000, 3)
    path = tmp_path / "some.ledger"
    Ledger.open(path, dataset="some", budget=Budget(1.5, 3e-5))
    model = AutoRegressor(1.0, ledger=path).fit(X, y)
    score = model.private_score(X, y, epsilon=0.5)
    assert Ledger.read(path).spent().epsilon == pytest.approx(1.5, rel=1e-3)
    assert score["R^2"].value == pytest.approx(model.score(X, y), abs=0.2)
    assert score.privacy.spent.epsilon <= 0.5
    with pytest.raises(BudgetExceeded):
        model.private_score(X, y, epsilon=0.5)
    with pytest.raises(InvalidInput, match="name"):
        score["AUC"]


def scores(y, p):
    problem = LinearProblem(1, True, None, Budget(1.0, 1e-5))
    options = {"center": 0.0, "width": 1.0, "problem": problem, "noise": seeded_noise(0)}
    return [each.value for each in noisy_scores(y, p, receipt=Receipt(score_event(problem)), **options)]


def test_scores_do_not_depend_on_a_few_far_targets():
    rng = np.random.default_rng(0)
    y = rng.normal(size=20_000)
    p = y + 0.5 * rng.normal(size=20_000)
    far = np.append(y, [1e9, -1e300, np.nan, np.inf])
    assert scores(far, np.append(p, [0.0] * 4)) == pytest.approx([0.5, 0.75], abs=0.05)


def test_a_target_far_beyond_the_reach_gives_no_warning():
    problem = LinearProblem(1, True, 100.0, Budget(1.0, 1e-5))

    def score(target):
        options = {"center": 0.0, "width": 1e-3, "problem": problem, "receipt": Receipt(score_event(problem))}
        return [each.value for each in noisy_scores(target, np.zeros(target.size), noise=SYSTEM, **options)]

    assert replay(score, np.array([1e-3]), np.array([1e-3, 1.7e308])).differences == ()


def test_targets_beyond_the_reach_are_pulled_in_and_counted():
    rng = np.random.default_rng(0)
    y = rng.normal(size=2000)
    p = y + 0.5 * rng.normal(size=2000)
    error, _ = scores(np.append(y, [1e6] * 40), np.append(p, [0.0] * 40))
    assert error == pytest.approx(np.sqrt(0.25 + 0.02 * 8), abs=0.06)  # at 2.8 widths, which 40 records do not move


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_schema_declares_bounds_and_categories(library):
    X, y = frame()
    given = X if library == "pandas" else pl.from_pandas(X)
    model = AutoRegressor(schema=SCHEMA).fit(given, y)
    assert model.score(given, y) > 0.8
    assert model.feature_names_in_.tolist() == ["age", "kind", "price"]
    paid = ["bounds", "scale", "gram", "gradient", "check", "held-out metrics"]
    assert [entry.purpose for entry in model.privacy_.entries][1:] == paid
    assert "sex=f" not in model.encoder_.names
    low, high = model.model_.target_range
    assert -300 <= low < high <= 500


def test_without_a_declared_target_its_range_is_bought():
    X, y = frame(2000)
    columns = SCHEMA.to_dict()["columns"]
    model = AutoRegressor(schema=Schema.from_dict({"columns": {**columns, "y": {"role": "ignored"}}})).fit(X, y)
    assert "scale" in [entry.purpose for entry in model.privacy_.entries]


ODD = {
    "category": ([50.0, "z", 20.0, "f"], 1.0),
    "bounds": ([500.0, "a", 20.0, "f"], 1.0),
    "missing": ([50.0, "a", np.nan, "f"], 1.0),
    "target": ([50.0, "a", 20.0, "f"], 9e9),
}


@pytest.mark.parametrize("what", ODD)
def test_a_record_outside_the_schema_is_null_and_silent(what):
    X, y = frame(400)
    odd = X.copy()
    odd.loc[len(odd)], target = ODD[what]

    def fit(given):
        model = AutoRegressor(schema=SCHEMA, size=400).fit(given[0], given[1])
        return left_on(model)[1:], model.coef_.tolist(), model.predict(X[:5]).tolist()

    found = replay(fit, (X, y), (odd, np.append(y, target)))
    assert found.differences == ()
    assert model_rows(odd, np.append(y, target)) == 400


def model_rows(X, y):
    """How many records a fit would see."""
    source = TableSource.of(*join_target(X, y, SCHEMA))
    known = Encoder(SCHEMA.inputs_only().with_bounds({"price": (0.0, 1000.0)}))
    return int(np.isfinite(source.read(known).features).all(axis=1).sum())


REFUSED = {
    "schema": ({"schema": {"age": 1}}, "schema"),
    "protected": ({"protected": "sex"}, "schema"),
    "epochs": ({"epochs": 3}, "epochs"),
    "device": ({"device": "cuda"}, "device"),
    "size": ({"size": 0}, "size"),
    "a target of categories": ({"schema": SCHEMA.with_roles(protected="sex")}, "column"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_settings_are_refused_by_name(what):
    options, name = REFUSED[what]
    X, y, _ = line(50, 2)
    with pytest.raises(InvalidInput, match=name):
        AutoRegressor(**options).fit(pd.DataFrame(X), y)


def test_a_target_of_categories_is_refused():
    schema = Schema.from_dict(
        {"columns": {"a": {"type": "numeric", "bounds": [0, 1]},
                     "y": {"type": "categorical", "categories": ["u", "v"], "role": "target"}}}
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="AutoClassifier"):
        AutoRegressor(schema=schema).fit(pd.DataFrame({"a": [0.5]}), ["u"])


def test_it_clones_pickles_and_writes_its_record(tmp_path):
    X, y = frame(500)
    made = AutoRegressor(2.0, schema=SCHEMA, ledger=None)
    assert clone(made).get_params() == made.get_params()
    model = made.fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    record = model.record()
    assert FitRecord.from_json(record.to_json()).metrics == record.metrics
    assert record.privacy["epsilon"] <= 2.0
    page = render(record)
    assert model.report(tmp_path / "report.html").read_text() == page
    assert "R squared" in page
    assert "private score" not in page
    assert "is published" in record.privacy["unit"]
    assert made.set_params(size=500).fit(X, y).record().privacy["unit"] == "one record, added or removed"


def test_groups_of_the_protected_column_are_compared_in_the_same_budget():
    X, y = frame(20_000)
    model = AutoRegressor(schema=SCHEMA).fit(X, y + 30 * (X["sex"] == "m"))
    found = {(each.name, each.of): each for each in model.metrics_}
    for sex in ("f", "m"):
        assert found["group records", f"sex = {sex}"].value == pytest.approx(1000, abs=150)
    low, high = (found["group mean residual", f"sex = {sex}"].value for sex in ("m", "f"))
    assert high - low == pytest.approx(30, abs=10)
    assert model.privacy_.spent.epsilon <= 1.0
    score = next(entry for entry in model.privacy_.entries if entry.purpose == "held-out metrics")
    assert gdp_epsilon(gdp_mu(score.event), 1e-5) <= 1.0


def test_without_the_protected_column_there_are_no_groups():
    X, y = frame(2000)
    assert len(AutoRegressor(schema=SCHEMA).fit(X.drop(columns="sex"), y).metrics_) == 2
