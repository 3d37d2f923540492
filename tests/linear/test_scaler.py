"""The private scaler, and the checker of pipelines."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, OneHotEncoder, RobustScaler, StandardScaler

from dpilot.audit.replay import replay
from dpilot.linear import LinearRegression, PrivateStandardScaler, check_pipeline
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.linear.fitting import plan_fit
from dpilot.linear.methods import METHODS
from dpilot.linear.problem import LinearProblem
from dpilot.linear.rows import MemoryRows
from dpilot.linear.standardise import _draw_together, buy_scaling, plan_scaling, plan_target
from dpilot.mechanism import SYSTEM
from dpilot.privacy.accountant import gdp_mu
from dpilot.privacy.budget import Budget
from dpilot.privacy.receipt import Receipt
from tests.linear.helpers import EXTREMES, moved, released, table, with_record

LEVELS = {"quartiles": 4000, "magnitudes": 150, "pooled": 20}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("record", EXTREMES)
def test_every_level_keeps_its_bounds(level, record):
    size = LEVELS[level]
    assert plan_scaling(LinearProblem(4, True, float(size), Budget(1.0, 1e-5)), 4, whole=True).level == level
    rows = table(200, 3)
    more = with_record(rows, *EXTREMES[record])
    found = replay(lambda values: released(PrivateStandardScaler(size=size).fit(values)), rows, more)
    assert found.differences == ()
    assert found.releases >= 1


def test_a_size_that_is_bought_leaves_the_scaling_the_rest():
    """The scaling took all, so that no such scaler fitted its own budget."""
    rows = table(200, 3)
    found = replay(lambda values: released(PrivateStandardScaler(size="private").fit(values)), rows, rows[:-1])
    assert (found.differences, found.ending) == ((), "returned")


@pytest.mark.parametrize("level", LEVELS)
def test_a_target_beside_the_features_is_in_the_bound_of_every_level(level):
    size = float(LEVELS[level])
    plan = plan_scaling(LinearProblem(3, True, size, Budget(1.0, 1e-5)), 4, whole=True)
    assert plan.level == level

    def buy(values):
        bought = {"size": size, "target": True, "receipt": Receipt(plan.event), "noise": SYSTEM}
        return buy_scaling(MemoryRows.of(values), plan, **bought)

    moves = [replay(buy, table(200, 3), with_record(table(200, 3), *EXTREMES[record])) for record in EXTREMES]
    assert [move.differences for move in moves] == [()] * len(moves)
    assert max(move.largest for move in moves) > 0.4


@pytest.mark.parametrize(
    ("size", "level"),
    [(4000, "quartiles"), (500, "mean"), (150, "magnitudes"), (30, "pooled"), (None, "quartiles")],
)
def test_the_target_buys_its_mean_where_quartiles_are_too_dear(size, level):
    problem = LinearProblem(4, True, size, Budget(1.0, 1e-5))
    plan = plan_target(problem)
    assert plan.level == level
    assert plan.share <= 0.25
    assert gdp_mu(plan.event) == pytest.approx(math.sqrt(plan.share) * problem.mu)


def test_only_what_abstains_spends_all_on_one_value():
    problem = LinearProblem(4, True, 300.0, Budget(0.5, 1e-5))
    assert problem.hopeless
    left = {name: plan_fit(problem, parse_bounds(None, 4), METHODS[name]).left for name in ("auto", "dpgd")}
    assert left["auto"] == 0.0
    assert left["dpgd"] > 0.7


def test_widths_that_differ_by_their_noise_are_drawn_together_and_others_are_not():
    alike, apart = np.array([0.7, 1.4, 1.0]), np.array([1e-6, 1.0, 1e6])
    assert _draw_together(alike, 0.5) == pytest.approx(np.full(3, np.exp(np.log(alike).mean())))
    assert _draw_together(alike, 0.0) == pytest.approx(alike)
    assert _draw_together(apart, 0.05) == pytest.approx(apart, rel=0.01)
    assert _draw_together(np.array([0.0, 2.0, 2.0]), 0.1).tolist() == [0.0, 2.0, 2.0]
    assert _draw_together(np.zeros(0), 0.1).size == 0


@pytest.mark.parametrize("record", EXTREMES)
@pytest.mark.parametrize("epsilon", [1.0, 0.5])
def test_a_mean_that_is_bought_keeps_its_bounds(record, epsilon):
    rows = table(300, 2) + np.array([0.0, 0.0, 50.0])
    problem = LinearProblem(2, True, 300.0, Budget(epsilon, 1e-5))
    assert plan_fit(problem, parse_bounds(None, 2), METHODS["auto"]).target.level == "mean"
    found = moved(lambda: LinearRegression(epsilon, size=300), rows, with_record(rows, *EXTREMES[record]))
    assert found.differences == ()


def test_columns_of_any_scale_come_out_standard():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 4)) * [1e-9, 1.0, 1e9, 3.0] + [0.0, 1000.0, 1e9, -40.0]
    Z = PrivateStandardScaler().fit_transform(X)
    assert np.abs(Z.mean(axis=0)).max() < 0.3
    assert Z.std(axis=0) == pytest.approx(np.ones(4), rel=0.3)


def test_transforming_back_gives_the_data():
    X = np.random.default_rng(0).normal(size=(2000, 3))
    scaler = PrivateStandardScaler().fit(X)
    assert scaler.inverse_transform(scaler.transform(X)) == pytest.approx(X)
    assert np.isnan(scaler.transform(np.full((1, 3), np.nan))).all()


def test_declared_columns_cost_nothing():
    X = np.random.default_rng(0).normal(size=(200, 2))
    scaler = PrivateStandardScaler(bounds={"X": (-5.0, 5.0)}).fit(X)
    assert scaler.privacy_ is None
    assert scaler.scale_.tolist() == [5.0, 5.0]


PRIVATE = LinearRegression()
WORDS = [["a", "b"]]
KEPT = SimpleImputer(strategy="constant", keep_empty_features=True)


@pytest.mark.parametrize(
    ("steps", "kinds"),
    [
        ((StandardScaler(),), ["StandardScaler"]),
        ((SimpleImputer(), PCA()), ["SimpleImputer", "PCA"]),
        ((KEPT, Normalizer(), FunctionTransformer()), []),
        ((SimpleImputer(strategy="constant"),), ["SimpleImputer"]),  # drops a column that all records lack
        ((clone(KEPT).set_params(add_indicator=True),), ["SimpleImputer"]),
        ((OneHotEncoder(),), ["OneHotEncoder", "OneHotEncoder"]),
        ((OneHotEncoder(categories=WORDS),), ["OneHotEncoder"]),
        ((OneHotEncoder(categories=WORDS, handle_unknown="ignore"),), []),
        ((OneHotEncoder(categories=WORDS, handle_unknown="warn"),), ["OneHotEncoder"]),
        ((OneHotEncoder(categories=WORDS, handle_unknown="ignore", min_frequency=5),), ["OneHotEncoder"]),
        ((ColumnTransformer([("x", Normalizer(), [0])], remainder=StandardScaler()),), ["StandardScaler"]),
        ((ColumnTransformer([("x", StandardScaler(), [0]), ("y", "passthrough", [1])]),), ["StandardScaler"]),
        ((make_pipeline(SelectKBest(), PrivateStandardScaler()),), ["SelectKBest"]),
        ((PrivateStandardScaler(),), []),
    ],
    ids=str,
)
def test_steps_that_learn_without_paying_are_named(steps, kinds):
    found = check_pipeline(make_pipeline(*steps, PRIVATE))
    assert [finding.kind for finding in found] == kinds
    assert all(finding.remedy in str(finding) for finding in found)


def test_an_unknown_step_is_a_finding():
    class Custom:
        def fit(self, X, y=None):
            return self

        def transform(self, X):
            return X

    assert "not known" in check_pipeline(make_pipeline(Custom(), PRIVATE))[0].problem


def test_steps_around_the_last_one_are_named_too():
    last = TransformedTargetRegressor(make_pipeline(StandardScaler(), PRIVATE), transformer=RobustScaler())
    found = check_pipeline(make_pipeline(Normalizer(), make_pipeline(PCA(), last)))
    assert [finding.kind for finding in found] == ["PCA", "RobustScaler", "StandardScaler"]
    assert check_pipeline(TransformedTargetRegressor(PRIVATE, func=np.log1p, inverse_func=np.expm1)) == []


def test_an_estimator_alone_has_no_findings():
    assert check_pipeline(PRIVATE) == []
