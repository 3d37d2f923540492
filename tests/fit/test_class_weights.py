"""Weights of rare classes: paid counts, capped weights, moved decisions; and no record moves more than its bound."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest

from dpilot import AutoClassifier, AutoRegressor, load
from dpilot.audit.neighbours import Pair
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.fit.class_weights import balance, resolve_class_weights
from dpilot.fit.declaration import FitOptions, declare_fit
from dpilot.fit.keys import FitKeys
from dpilot.fit.pipeline import plan_fit
from dpilot.fit.population import HELD_OUT, TRAIN
from dpilot.fit.table import fit_table
from dpilot.privacy import events as known_events
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema
from tests.fit.test_replay import GOOD, OPAQUE, run
from tests.fit.test_units import UNIT, UNITS, joined, persons
from tests.thin import thin
from tests.tune.pilot_cases import key_that_puts, second_delta

RECORDS = {outcome: {**GOOD, "outcome": outcome} for outcome in ("no", "yes", "maybe")}
WEIGHTS = {
    "balanced": {"class_weight": "balanced"},
    "as large as the cap": {"class_weight": {"yes": 10.0}},
    "larger than the cap": {"class_weight": {"yes": 1e6}, "weight_cap": 1e6},
    "priors alone": {"decision": "prior"},
}


def rare(size: int = 4000, share: float = 0.04) -> pd.DataFrame:
    """The table of the other tests, in which few are of the second class."""
    data = frame(size)
    kept = (data["outcome"] == "no") | (np.random.default_rng(1).random(size) < share)
    return data[kept].reset_index(drop=True)


@pytest.mark.parametrize(
    ("name", "outcome", "model", "part"),
    thin(
        [
            (*each, *trained)
            for each in product(WEIGHTS, RECORDS)
            for trained in (("auto", TRAIN), ("auto", HELD_OUT), ("logistic", TRAIN))
        ],
        5,
    ),
)
def test_a_record_of_any_class_moves_releases_by_no_more_than_their_bound(
    replay, monkeypatch, name, outcome, model, part
):
    monkeypatch.setattr(FitKeys, "split", lambda self, shares: Split(shares, key_that_puts(60, part, shares)))
    data = frame(60)
    more = pd.concat([data, pd.DataFrame([RECORDS[outcome]], dtype=object)], ignore_index=True)
    fit = partial(run, model=model, epochs=3 if model == "auto" else 0.1, **WEIGHTS[name])
    (result,) = replay(fit, pairs=[Pair(outcome, data, more)], opaque=OPAQUE)
    assert result.releases > 3
    if outcome != "maybe" and model == "auto":
        assert result.largest > 0.05, "the record is seen"


@pytest.mark.parametrize("name", ["balanced", "as large as the cap"])
def test_a_whole_unit_moves_releases_by_no_more_than_their_bound(replay, monkeypatch, name):
    monkeypatch.setattr(FitKeys, "split", lambda self, shares: Split(shares, key_that_puts(UNITS, TRAIN, shares)))
    pair = Pair(name, persons(), joined(persons(), [RECORDS["yes"]] * 100))
    replay(partial(run, model="auto", epochs=3, **UNIT, **WEIGHTS[name]), pairs=[pair], opaque=OPAQUE)


@pytest.mark.parametrize(("model", "epochs"), [("auto", 3), ("logistic", 0.1)])
def test_counts_are_paid_on_the_training_part_within_the_budget(model, epochs):
    plain, weighed = (
        fit_table(
            frame(600),
            SCHEMA,
            epsilon=2.0,
            delta=1e-5,
            model=model,
            epochs=0.1 if model == "logistic" else 3,
            class_weight=given,
        )
        for given in (None, "balanced")
    )
    (paid,) = (entry for entry in weighed.record.ledger if entry["purpose"] == "class counts")
    assert paid["part"] == TRAIN
    assert weighed.epsilon <= 2.0
    assert plain.epsilon <= 2.0
    assert "class counts" not in {entry["purpose"] for entry in plain.record.ledger}


def test_receipts_are_the_total_by_a_second_accountant():
    fitted = fit_table(frame(600), SCHEMA, epsilon=1.0, delta=1e-5, epochs=4, class_weight="balanced")
    rows = [entry for entry in fitted.record.ledger if entry["part"] in (None, TRAIN)]
    spent = [known_events.from_dict(entry["event"]) for entry in rows]
    assert second_delta(spent, fitted.epsilon) == pytest.approx(1e-5, rel=2e-3)


def test_declared_weights_change_no_price():
    stages = [
        [(stage.purpose, stage.event, stage.part) for stage in plan_fit(declared, "gdp").stages("x")]
        for given in (None, {"yes": 10.0})
        for declared, _ in [
            declare_fit(frame(), SCHEMA, epsilon=1.0, delta=1e-4, options=FitOptions(class_weight=given))
        ]
    ]
    assert stages[0] == stages[1]


def test_counts_are_of_the_training_part_and_one_row_of_each_unit():
    loud = {"epsilon": 1e6, "delta": 1e-4, "epochs": 2, "test_seed": 3, "held_out": 0.5, "class_weight": "balanced"}
    data = frame(400)
    train = FitKeys.draw(3).split({TRAIN: 0.5, HELD_OUT: 0.5}).indices(400)[TRAIN]
    found = fit_table(data, SCHEMA, **loud).record.plan["class_counts"]
    expected = data["outcome"].iloc[train].value_counts()
    assert found == pytest.approx(expected.to_dict(), abs=0.5)
    units = fit_table(persons(600, 100), SCHEMA, **loud, **UNIT).record.plan["class_counts"]
    assert sum(units.values()) <= 100


def test_weights_are_capped_floored_and_one_at_most():
    rng = np.random.default_rng(0)
    for _ in range(50):
        counts, cap = rng.normal(0, 300, rng.integers(2, 20)), float(rng.uniform(1, 50))
        weights = balance(counts, floor=20.0, cap=cap)
        assert weights.max() == 1
        assert weights.min() >= (1 - 1e-12) / cap
        order = np.argsort(np.maximum(counts, 20.0), kind="stable")
        assert (np.diff(weights[order]) <= 1e-12).all(), "a rarer class weighs no less"
    assert balance(np.array([1000.0, -50.0]), floor=100.0, cap=1e9).tolist() == [0.1, 1.0]
    assert balance(np.array([-3.0, -5.0]), floor=10.0).tolist() == [1.0, 1.0]
    declared = resolve_class_weights(("a", "b", "c"), {"b": 40.0, "c": 2}, "likeliest", counts=None, deviation=0.0)
    assert declared.weights == pytest.approx((0.1, 1.0, 0.2))
    assert declared.offsets is None
    assert "(declared, and cut to at most 10 times the least)" in declared.reasons[0]


def test_decisions_by_priors_make_up_for_what_weights_leave():
    counts, classes = np.array([9900.0, 100.0]), ("no", "yes")
    told = partial(resolve_class_weights, classes, counts=counts, deviation=5.0)
    assert told("balanced", "likeliest").offsets is None
    assert told("balanced", "prior").offsets == pytest.approx((0.0, math.log(9.9)))
    assert told(None, "prior").offsets == pytest.approx((0.0, math.log(10)))
    assert told(None, "prior").weights is None
    assert told({"yes": 20}, "prior", cap=100.0).offsets == pytest.approx((0.0, math.log(99 / 20)))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["auto", "logistic"])
def test_more_of_a_rare_class_is_found(model):
    data = rare()
    how = {"epsilon": 8.0, "delta": 1e-4, "model": model, "test_seed": 1, "epochs": 10 if model == "logistic" else None}
    recalls = {}
    for given in (None, "balanced", {"yes": 10}):
        fitted = fit_table(data, SCHEMA, class_weight=given, **how)
        recalls[str(given)] = float((fitted.predict(data)[data["outcome"] == "yes"] == "yes").mean())
    assert recalls["balanced"] > recalls["None"] + 0.2
    assert recalls["{'yes': 10}"] > recalls["None"] + 0.2


def test_a_fit_with_weights_is_told_saved_and_loaded_with_them(tmp_path):
    data = rare()
    how = {"epsilon": 3.0, "delta": 1e-4, "class_weight": "balanced", "objective": "recall:yes", "test_seed": 2}
    fitted = fit_table(data, SCHEMA, run_folder=tmp_path / "run", **how)
    plan, again = fitted.record.plan, load(tmp_path / "run")
    assert set(plan["class_weights"]) == set(plan["decision_offsets"]) == {"no", "yes"}
    assert plan["objective"] == "recall:yes"
    said = " ".join(fitted.record.decisions)
    assert "before clipping" in said
    assert "noisy share of the training part" in said
    assert np.array_equal(again.predict_proba(data), fitted.predict_proba(data))
    assert (again.predict(data) == fitted.predict(data)).all()
    exact = {(each.name, each.of): each.value for each in again.score_public(data)}
    yes = data["outcome"] == "yes"
    assert exact["recall", "yes"] == pytest.approx((fitted.predict(data)[yes] == "yes").mean())
    assert exact["precision", "yes"] == pytest.approx(yes[fitted.predict(data) == "yes"].mean())
    fitted.report(tmp_path / "report.html")
    assert all(each in (tmp_path / "report.html").read_text() for each in ("Precision", "Recall", "PR-AUC"))


def test_labels_of_an_array_may_be_weighed_and_no_weights_are_no_weights():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    y = (X[:, 0] + rng.normal(size=3000) > 2.0).astype(int)
    how = {"epsilon": 8.0, "delta": 1e-5, "classes": [0, 1], "model": "additive", "random_state": 0}
    with pytest.warns(UserWarning, match="random_state"):
        plain, same, weighed = (AutoClassifier(**how, class_weight=w).fit(X, y) for w in (None, {1: 1}, {1: 8}))
    assert np.array_equal(plain.coef_, same.coef_), "weights of 1 are no weights"
    assert (weighed.predict(X) == 1).mean() > (plain.predict(X) == 1).mean()
    assert weighed.record().plan["class_weights"] == {"0": 0.125, "1": 1.0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"class_weight": {"maybe": 5}}, "maybe"),
        ({"class_weight": {"yes": 0}}, "class_weight"),
        ({"class_weight": {"yes": math.inf}}, "class_weight"),
        ({"class_weight": "even"}, "balanced"),
        ({"class_weight": [1, 5]}, "class_weight"),
        ({"class_weight": {}}, "class_weight"),
        ({"weight_cap": 0.5}, "weight_cap"),
        ({"decision": "best"}, "decision"),
        ({"objective": "recall:maybe"}, "maybe"),
        ({"objective": "recall:"}, "objective"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_paid(tmp_path, given, message):
    with pytest.raises(InvalidInput, match=message):
        fit_table(frame(), SCHEMA, epsilon=1.0, delta=1e-4, ledger=tmp_path / "a.ledger", **given)
    assert not (tmp_path / "a.ledger").exists()


def test_numbers_have_no_class_weights():
    with pytest.raises(InvalidInput, match="numeric"):
        fit_table(numeric_frame(), numeric_schema(), epsilon=1.0, class_weight="balanced")
    assert "class_weight" not in AutoRegressor().get_params()
