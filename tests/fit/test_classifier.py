"""AutoClassifier: tables, arrays and images; charged or refused; cloned, pickled, piped; what it stores and tells."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpilot import Budget, Ledger
from dpilot.errors import BudgetExceeded, InvalidInput, PrivacyWarning
from dpilot.fit import classifier
from dpilot.fit.classifier import AutoClassifier
from tests.tune.pilot_cases import SCHEMA, frame

QUICK = {"epochs": 5}


def table(size=300):
    data = pd.DataFrame(frame(size))
    return data.drop(columns="outcome"), data["outcome"]


def numbers(size=2_000, columns=2):
    made = np.random.default_rng(0)
    values = made.normal(size=(size, columns))
    return values, np.where(values[:, 0] > 0, "yes", "no")


def test_a_table_is_read_by_its_schema_and_groups_are_compared():
    X, y = table(2_000)
    model = AutoClassifier(epsilon=20.0, schema=SCHEMA).fit(X, y)
    assert model.score(X, y) > 0.85
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.feature_names_in_.tolist() == ["age", "pay", "kind"]
    assert model.metrics_["accuracy"].value > 0.75
    assert {each.of for each in model.metrics_ if each.name == "group accuracy"} == {"site = north", "site = south"}
    assert model.predict_proba(X.drop(columns="site")).shape == (2_000, 2)


def test_the_worst_group_can_be_the_objective_of_a_table():
    X, y = table()
    model = AutoClassifier(epsilon=20.0, schema=SCHEMA, objective="worst_group", **QUICK).fit(X, y)
    assert model.record_.plan["objective"] == "worst_group"


def test_the_target_may_be_a_column_of_the_frame():
    data = pd.DataFrame(frame(300))
    model = AutoClassifier(epsilon=20.0, schema=SCHEMA, **QUICK).fit(data)
    assert set(model.predict(data)) <= {"no", "yes"}


def test_what_is_stored_prints_the_total_and_every_entry(tmp_path):
    X, y = table()
    model = AutoClassifier(schema=SCHEMA, **QUICK).fit(X, y)
    assert model.privacy_.spent.epsilon <= 1.0
    for entry in ("health of fit", "bounds", "final run", "held-out metrics"):
        assert entry in str(model.privacy_)
    assert "not protected: the number of records" in str(model.privacy_)
    assert "accuracy" in str(model.metrics_)
    assert " to " in str(model.metrics_)
    assert " predicted " not in str(model.metrics_)  # cells of the confusion matrix
    assert sum(each.name == "confusion" for each in model.metrics_) == len(model.classes_) ** 2
    written = model.report(tmp_path / "report.html").read_text()
    assert "was spent on trying settings" in written
    assert "<script" not in written


def test_a_ledger_by_path_is_charged_and_then_refuses(tmp_path):
    path = tmp_path / "people.ledger"
    X, y = numbers(300)
    model = AutoClassifier(classes=["no", "yes"], ledger=str(path), **QUICK)
    model.fit(X, y)
    assert Ledger.read(path).dataset == "people"
    assert Ledger.read(path).spent().epsilon == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(BudgetExceeded):
        clone(model).fit(X, y)
    Ledger.open(path, dataset="people").extend(Budget(2.1, 1e-4), reason="a second fit was agreed")
    again = pickle.loads(pickle.dumps(model)).fit(X, y)
    assert len(Ledger.read(path).entries()) == 2 * len(again.privacy_.entries)


def test_private_scores_pay_for_themselves(tmp_path):
    X, y = numbers(600)
    model = AutoClassifier(epsilon=20.0, classes=["no", "yes"], **QUICK).fit(X, y)
    found = model.private_score(X, y, epsilon=5.0, ledger=tmp_path / "other")
    assert abs(found["accuracy"].value - model.score(X, y)) < 0.2
    assert Ledger.read(tmp_path / "other").spent().epsilon == pytest.approx(5.0, abs=1e-3)
    with pytest.raises(InvalidInput, match="inconsistent"):
        model.private_score(X, y[:-1], epsilon=5.0)


def test_exact_scores_count_labels_of_no_class_as_wrong():
    X, y = numbers(400)
    model = AutoClassifier(epsilon=50.0, classes=["no", "yes"], **QUICK).fit(X, y)
    whole = model.score(X, y)
    strange = y.astype(object)
    strange[:200] = "maybe"
    assert model.score(X, strange) <= whole - 0.3


def test_it_stands_in_a_pipeline_and_can_be_pickled():
    X, y = numbers(300)
    piped = make_pipeline(FunctionTransformer(), AutoClassifier(classes=["no", "yes"], **QUICK)).fit(X, y)
    back = pickle.loads(pickle.dumps(piped))
    assert np.array_equal(back.predict_proba(X), piped.predict_proba(X))


def test_missing_numbers_are_read_and_impossible_ones_are_null():
    X, y = numbers(300)
    X[:50, 1] = np.nan
    model = AutoClassifier(classes=["no", "yes"], **QUICK).fit(X, y)
    chances = model.predict_proba([[np.nan, 1.0], [np.inf, 1.0]])
    assert np.isfinite(chances).all()
    assert chances[1].tolist() == [0.5, 0.5]


def test_wide_arrays_keep_their_columns_as_they_are():
    X, y = numbers(300, columns=80)
    model = AutoClassifier(classes=["no", "yes"], **QUICK).fit(X, y)
    assert model.coef_.shape == (161, 2)  # each column, whether it is missing, and a constant
    assert "numbers as they are" in model.record_.decisions[-1]


def test_images_become_scattering_features():
    made = np.random.default_rng(0)
    images = made.integers(0, 255, size=(60, 1, 28, 28), dtype=np.uint8)
    labels = made.integers(0, 2, size=60)
    model = AutoClassifier(epsilon=5.0, classes=[0, 1], **QUICK).fit(images, labels)
    assert model.predict_proba(images[:3]).shape == (3, 2)
    assert model.privacy_.spent.epsilon <= 5.0
    with pytest.raises(InvalidInput, match="shape"):
        model.predict(images[:, :, :20, :20])


def test_one_class_is_predicted_always():
    X, _ = numbers(60)
    model = AutoClassifier(classes=["only"], **QUICK).fit(X, np.full(60, "only"))
    assert model.predict(X).tolist() == ["only"] * 60
    assert (model.predict_proba(X) == 1).all()


def test_what_is_not_declared_is_refused_before_anything_is_paid(tmp_path):
    X, y = numbers(60)
    path = tmp_path / "ledger"
    for options in (
        {},
        {"classes": "private"},
        {"classes": ["no", "yes"], "protected": "x0"},
        {"classes": ["no", "yes"], "schema": SCHEMA},
        {"classes": ["no", "yes"], "objective": "loss"},
        {"classes": ["no", "yes"], "objective": "worst_group"},
        {"classes": ["no", "yes"], "size": "secret"},
    ):
        with pytest.raises(InvalidInput):
            AutoClassifier(ledger=path, **options).fit(X, y)
    with pytest.raises(InvalidInput, match="not in the table"):
        AutoClassifier(ledger=path, schema=SCHEMA).fit(pd.DataFrame({"age": [1.0]}), ["no"])
    assert not path.exists() or not Ledger.read(path).entries()


def test_published_classes_and_sizes_are_listed_and_declared_ones_are_not():
    X, y = numbers(60)
    published = AutoClassifier(classes="public", **QUICK).fit(X, y).privacy_.unprotected
    declared = AutoClassifier(classes=["no", "yes"], size=100, **QUICK).fit(X, y).privacy_.unprotected
    assert len(published) == 3
    assert declared == ("running time and memory",)


def test_a_random_state_is_warned_of_and_stamped():
    X, y = numbers(60)
    with pytest.warns(PrivacyWarning):
        model = AutoClassifier(classes=["no", "yes"], random_state=1, **QUICK).fit(X, y)
    with pytest.warns(PrivacyWarning):
        again = clone(model).fit(X, y)
    assert np.array_equal(model.coef_, again.coef_)
    assert "not private" in model.privacy_.noise


ODD = ["oops", 2.5, [1, 2], 10**400, b"x", None]


@pytest.fixture(scope="module")
def small():
    values = np.random.default_rng(0).normal(size=(200, 2))
    return AutoClassifier(epsilon=1.0, classes=[0, 1], size=200, epochs=2).fit(
        values, [int(v > 0) for v in values[:, 0]]
    )


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:9])
def test_an_odd_label_among_those_of_images_changes_no_other(odd, monkeypatch):
    images, seen = np.random.default_rng(0).random((30, 8, 8)), []
    labels = [place % 2 for place in range(29)]

    def heard(estimator, declared, source, **options):
        seen.extend(source.codes.tolist())
        raise InterruptedError

    monkeypatch.setattr(AutoClassifier, "_fit_records", heard)
    with pytest.raises(InterruptedError):
        AutoClassifier(classes=[0, 1], size=30).fit(images, [*labels, odd])
    assert seen[:29] == labels
    assert np.isnan(seen[29])


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:9])
def test_an_odd_label_changes_no_other_in_a_private_score(odd, small, monkeypatch):
    values, seen, made = np.zeros((11, 2)), [], classifier.noisy_counts
    labels = [place % 2 for place in range(10)]

    def counted(scored, *rest, **options):
        seen.extend(scored.target.tolist())
        return made(scored, *rest, **options)

    monkeypatch.setattr(classifier, "noisy_counts", counted)
    small.private_score(values, [*labels, odd], epsilon=1.0)
    assert seen[:10] == labels
    assert np.isnan(seen[10])
