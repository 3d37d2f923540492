"""Logistic regression: private, close to the unpaid fit, classes declared."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression as Plain

from dpilot.audit.replay import replay
from dpilot.errors import InvalidInput
from dpilot.linear import LogisticRegression
from dpilot.linear.logistic import _pull, probabilities
from dpilot.privacy.accountant import gdp_epsilon, gdp_mu
from dpilot.privacy.events import Composed
from tests.linear.helpers import EXTREMES, released, with_record
from tests.thin import thin_product


def coins(n=4000, d=3, classes=2, seed=0):
    """Features of mixed scale, and labels from a softmax."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    scores = X @ rng.normal(size=(d, classes)) * 1.5
    y = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    return X * [1.0, 100.0, 0.01][:d] + [0.0, 50.0, 1.0][:d], y


def labelled(n=300, classes=2):
    X, y = coins(n, classes=classes)
    return np.column_stack([X, y.astype(float)])


@pytest.mark.parametrize(("record", "classes"), thin_product(3, EXTREMES, [2, 3]))
def test_one_more_record_moves_releases_within_their_bounds_and_nothing_else(classes, record):
    rows = labelled(classes=classes)
    labels = list(range(classes))

    def fit(values):
        return released(LogisticRegression(classes=labels, size=300).fit(values[:, :-1], values[:, -1]))

    for label in (0.0, classes - 1.0, 99.0):
        found = replay(fit, rows, with_record(rows, EXTREMES[record][0], label))
        assert found.differences == ()
        assert found.releases > 10


@pytest.mark.parametrize("classes", [2, 4])
def test_it_is_close_to_the_unpaid_fit(classes):
    X, y = coins(20_000, classes=classes)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    best = Plain().fit(scaled, y).score(scaled, y)
    model = LogisticRegression(classes=range(classes)).fit(X, y)
    assert model.score(X, y) > best - 0.02
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(20_000))


def test_coefficients_are_in_the_units_of_the_data():
    X, y = coins(50_000)
    unpaid = Plain(C=1e6).fit((X - X.mean(axis=0)) / X.std(axis=0), y)
    model = LogisticRegression(8.0, classes=[0, 1]).fit(X, y)
    assert model.coef_ * X.std(axis=0) == pytest.approx(unpaid.coef_, abs=0.3)


def test_all_releases_together_cost_the_budget():
    X, y = coins(500)
    model = LogisticRegression(2.0, classes=[0, 1], size="private").fit(X, y)
    total = gdp_epsilon(gdp_mu(Composed([entry.event for entry in model.privacy_.entries])), 1e-6)
    assert total <= 2.0
    assert total == pytest.approx(2.0, rel=1e-6)


def test_classes_are_declared_or_published():
    X, y = coins(200)
    with pytest.raises(InvalidInput, match="declared"):
        LogisticRegression().fit(X, y)
    assert any("classes" in what for what in LogisticRegression(classes="public").fit(X, y).privacy_.unprotected)
    declared = LogisticRegression(classes=[0, 1, 7]).fit(X, y)
    assert declared.classes_.tolist() == [0, 1, 7]
    assert not any("classes" in what for what in declared.privacy_.unprotected)


def test_a_missing_label_is_a_null_record_also_where_classes_are_public():
    X, y = coins(200)
    model = LogisticRegression(classes="public").fit(X, np.where(np.arange(200) == 7, np.nan, y))
    assert model.classes_.tolist() == [0.0, 1.0]


def test_one_class_is_predicted_always():
    X, _ = coins(100)
    assert set(LogisticRegression(classes=["only"]).fit(X, np.full(100, "only")).predict(X)) == {"only"}


@pytest.mark.parametrize("outputs", [1, 3])
def test_pulls_are_minus_the_gradient_of_the_logistic_loss(outputs):
    rng = np.random.default_rng(0)
    scores, target = rng.normal(size=(6, outputs)), rng.integers(0, max(outputs, 2), 6).astype(float)

    def loss(at):
        return -np.log(probabilities(at)[np.arange(6), target.astype(int)])

    step = 1e-6
    slopes = [(loss(scores + step * e) - loss(scores - step * e)) / (2 * step) for e in np.eye(outputs)]
    assert _pull(max(outputs, 2))(target, scores) == pytest.approx(-np.array(slopes).T, abs=1e-6)
