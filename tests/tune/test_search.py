"""Searches over estimators in which every look is paid: their price, what they show, and what a record can move."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from dpilot import Ledger, audit
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.linear import LinearRegression, LogisticRegression
from dpilot.privacy import Budget, accountant
from dpilot.privacy.events import Composed, Gaussian, RepeatAndSelect
from dpilot.tune import PrivateSearchCV
from dpilot.tune.paid_trials import PaidTrials, SearchTerms, _covers, made_up
from tests.thin import thin

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 3))
Y = (X[:, 0] + 0.1 * RNG.normal(size=3000) > 0).astype(int)
GRID = {"fit_intercept": [True, False]}


def search(**more):
    how = {"epsilon": 2.0, "delta": 1e-5, "trials": 3, "random_state": 0, **more}
    return PrivateSearchCV(LogisticRegression(classes=[0, 1]), GRID, **how)


def event_of(entries, part):
    (found,) = (entry.event for entry in entries if entry.part == part)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["selection", pytest.param("composed", marks=pytest.mark.slow)])
def test_it_is_paid_once_and_its_total_covers_everything(tmp_path, mode):
    path = tmp_path / "a.ledger"
    Ledger.open(path, dataset="d", budget=Budget(3.0, 1e-4))
    found = search(mode=mode, ledger=path).fit(X, Y)
    entries = Ledger.read(path).entries()
    assert [entry.part for entry in entries] == ["train", "held-out"]
    for part in ("train", "held-out"):
        assert accountant.epsilon(event_of(entries, part), 1e-5) <= 2.0
    assert found.privacy_.spent.epsilon <= 2.0
    assert found.best_estimator_.privacy_ is found.privacy_
    assert found.best_estimator_.record().privacy["epsilon"] == found.privacy_.spent.epsilon
    assert found.score(X, Y) > 0.9
    assert abs(found.best_score_ - found.score(X, Y)) < 0.2
    assert len(found.cv_results_["params"]) == (1 if mode == "selection" else 3)
    if mode == "selection":
        assert isinstance(entries[0].event, RepeatAndSelect)
        assert found.cv_results_["params"] == [found.best_params_]
    else:
        assert found.best_score_ == max(found.cv_results_["noisy_score"])


@pytest.mark.filterwarnings("ignore")
def test_nothing_is_read_before_it_is_paid(tmp_path):
    path = tmp_path / "a.ledger"
    Ledger.open(path, dataset="d", budget=Budget(0.5, 1e-4))

    class Watched(list):
        def __getitem__(self, index):
            raise AssertionError("read")

    with pytest.raises(BudgetExceeded):
        search(ledger=path, size=3000).fit(X, Watched(Y))
    assert not Ledger.read(path).entries()


def test_a_search_says_nothing_of_its_trials(capfd):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = search(random_state=None).fit(X, Y)
    assert [str(each.message)[:19] for each in said] == ["no ledger was given"]
    assert capfd.readouterr() == ("", "")
    count = found.trials
    assert "secret number" in found.privacy_.unprotected[-1]
    assert count == 3  # the declared mean: the number itself is nowhere
    assert not [name for name, value in vars(found).items() if isinstance(value, list) and len(value) > 1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_errors_of_numbers_are_clipped_to_declared_bounds():
    target = X @ [1.0, 2.0, 0.0]
    how = {"epsilon": 3.0, "delta": 1e-5, "mode": "composed", "trials": 2, "random_state": 0}
    wild = target.tolist()
    wild[0], wild[1] = 1e300, "no number"
    found = PrivateSearchCV(LinearRegression(), GRID, target_bounds=(-5, 5), **how).fit(X, wild)
    assert 0.8 < found.best_score_ < 1.1
    with pytest.raises(InvalidInput, match="target_bounds is None"):
        PrivateSearchCV(LinearRegression(), GRID, **how).fit(X, target)


REFUSED = {
    "another library's estimator": (
        lambda: PrivateSearchCV(__import__("sklearn.svm").svm.SVC(), {}),
        "one of dpilot's",
    ),
    "classes of the data": (
        lambda: PrivateSearchCV(LogisticRegression(classes="public"), GRID, epsilon=1.0),
        "expected the list of them",
    ),
    "one trial of a selection": (lambda: search(trials=1), "at least 2"),
    "an unknown mode": (lambda: search(mode="grid"), "mode"),
    "units": (
        lambda: PrivateSearchCV(LogisticRegression(classes=[0, 1], unit="id"), GRID, epsilon=1.0),
        "protects units",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_paid_is_refused(what):
    make, words = REFUSED[what]
    with pytest.raises(InvalidInput, match=words):
        make().fit(X, Y)


def test_a_planned_search_fits_by_a_plain_sum_of_its_trials_where_they_are_composed():
    terms = SearchTerms(Budget(1.0, 1e-5), 3000, "composed", 4)
    plan = PaidTrials.plan([LogisticRegression(classes=[0, 1])], made_up(X), terms)
    whole = Composed([event for event in plan.events for _ in range(4)])
    assert 0.85 < accountant.epsilon(whole, 1e-5) <= 1.0
    assert accountant.epsilon(Composed([Gaussian(plan.score_multiplier)] * 4), 1e-5) <= 1.0
    assert plan.epsilon > 1 / 4  # better than dividing epsilon


def test_a_candidate_of_another_price_is_not_run_and_scores_worst():
    terms = SearchTerms(Budget(1.0, 1e-5), 3000, "composed", 2)
    plan = PaidTrials.plan([LogisticRegression(classes=[0, 1])], made_up(X), terms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dpilot.noise import SystemNoise

        with plan.commit(None, SystemNoise()) as (trials, _):
            found = trials.fit(
                LogisticRegression(classes=[0, 1], fit_intercept=True, allow_large_delta=True).set_params(
                    bounds=[(-1, 1)] * 9
                ),
                X,
                Y,
                trials.receipt,
            )
    assert found.score == -math.inf


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", thin(["selection", "composed"], 2))
def test_a_record_more_changes_no_release_by_more_than_its_bound(replay, mode):
    def run(rows):
        table = np.array(rows)
        search(mode=mode, size=40, delta=1e-3).fit(table[:, :3], (table[:, 3] > 0).astype(int).tolist())

    replay(run, pairs=audit.neighbours(np.random.default_rng(0).normal(size=(40, 4)))[:1])


def test_a_trial_that_costs_more_than_was_planned_is_not_covered():
    assert _covers(Gaussian(2.0), Composed([Gaussian(4.0)] * 4))
    assert not _covers(Gaussian(2.0), Gaussian(1.9))
    assert not _covers(Gaussian(2.0), RepeatAndSelect(Gaussian(9.0), 2.0))
