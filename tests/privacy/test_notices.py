"""A fit that no ledger counts says so, with the running total; a refusal is heard, whoever catches it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.model_selection import GridSearchCV, cross_val_score, validation_curve

from dpilot.errors import BudgetExceeded, PrivacyWarning
from dpilot.linear import LinearRegression, LogisticRegression, PrivateStandardScaler
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import PureDP
from dpilot.privacy.ledger import Ledger, Stage, commitment
from dpilot.privacy.notices import count_apart, warn_of_refusal, warn_unledgered

Table = tuple[NDArray[Any], NDArray[Any]]


@pytest.fixture(autouse=True)
def first_in_its_process() -> Iterator[None]:
    with count_apart():
        yield


@pytest.fixture
def table() -> Table:
    values = np.random.default_rng(0).normal(size=(300, 2))
    return values, values @ [1.0, 2.0]


def heard(call: Callable[[], object]) -> list[warnings.WarningMessage]:
    """Every PrivacyWarning of a call."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [each for each in seen if issubclass(each.category, PrivacyWarning)]


def totals(seen: list[warnings.WarningMessage]) -> list[float]:
    return [float(re.findall(r"epsilon (\S+) at delta", str(each.message))[0]) for each in seen]


def test_the_first_fit_says_that_its_epsilon_covers_it_alone(table: Table) -> None:
    (said,) = heard(lambda: LinearRegression(epsilon=0.5, delta=1e-6).fit(*table))
    assert str(said.message).startswith("no ledger was given: epsilon 0.5 at delta 1e-06 covers this fit alone.")
    assert said.filename == __file__


def test_later_fits_say_the_running_total() -> None:
    said = heard(lambda: [warn_unledgered(Budget(0.1, 1e-6)) for _ in range(3)])
    assert totals(said) == [0.1, 0.2, 0.3]
    assert "2 fits of this program" in str(said[1].message)
    assert "epsilon 0.3 at delta 3e-06" in str(said[2].message)


@pytest.mark.parametrize(
    "estimator", [LinearRegression(), LogisticRegression(classes=[0, 1]), PrivateStandardScaler()], ids=str
)
def test_every_estimator_says_it_and_none_with_a_ledger(estimator: Any, table: Table, tmp_path: Path) -> None:
    values, target = table
    assert len(heard(lambda: estimator.fit(values, target > 0))) == 1
    for ledger in (tmp_path / "path.ledger", str(tmp_path / "text.ledger")):
        estimator.set_params(ledger=ledger)
        assert heard(lambda: estimator.fit(values, target > 0)) == []
        assert Ledger.read(ledger).spent().epsilon > 0.99


def test_cross_validation_adds_up_fit_by_fit(table: Table) -> None:
    assert totals(heard(lambda: cross_val_score(LinearRegression(), *table, cv=4))) == [1, 2, 3, 4]


def test_a_search_counts_its_refit(table: Table) -> None:
    search = GridSearchCV(LinearRegression(), {"epsilon": [0.5, 0.5], "fit_intercept": [True]}, cv=3)
    assert totals(heard(lambda: search.fit(*table))) == [0.5, 1, 1.5, 2, 2.5, 3, 3.5]


@pytest.mark.slow
def test_worker_processes_count_with_the_program_that_started_them(table: Table) -> None:
    cross_val_score(LinearRegression(), *table, cv=4, n_jobs=2)
    GridSearchCV(LinearRegression(), {"fit_intercept": [True, False]}, cv=2, n_jobs=2, refit=False).fit(*table)
    assert totals(heard(lambda: LinearRegression().fit(*table))) == [9]


def test_where_there_is_no_file_to_count_in_each_fit_speaks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPILOT_FITS", "/nowhere/at/all")
    assert totals(heard(lambda: [warn_unledgered(Budget(0.1, 1e-6)) for _ in range(2)])) == [0.1, 0.1]


def test_a_commitment_without_a_ledger_is_counted_too() -> None:
    def commit() -> None:
        with commitment([Stage("a count", PureDP(0.25))], Budget(0.25, 1e-6), None, dataset="x", size=None):
            pass

    assert totals(heard(commit)) == [0.25]


def test_where_warnings_are_errors_nothing_happens_and_nothing_is_counted(table: Table) -> None:
    model = LinearRegression()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PrivacyWarning, match="this fit alone"):
            model.fit(*table)
    assert not hasattr(model, "coef_")
    assert totals(heard(lambda: model.fit(*table))) == [1]


def test_a_count_apart_leaves_the_count_as_it_was() -> None:
    heard(lambda: warn_unledgered(Budget(1.0, 1e-6)))
    with count_apart():
        assert totals(heard(lambda: warn_unledgered(Budget(1.0, 1e-6)))) == [1]
    assert totals(heard(lambda: warn_unledgered(Budget(1.0, 1e-6)))) == [2]


@pytest.fixture
def spent(tmp_path: Path) -> Path:
    ledger = Ledger.open(tmp_path / "a.ledger", dataset="a", budget=Budget(1.0, 1e-6))
    with ledger.reserve(PureDP(0.5)):
        pass
    return ledger.path


def test_a_refusal_is_raised_and_heard(table: Table, spent: Path) -> None:
    def fit() -> None:
        with pytest.raises(BudgetExceeded):
            LinearRegression(ledger=spent).fit(*table)

    (said,) = heard(fit)
    assert str(said.message).startswith("the ledger refused this fit: ")
    assert "0.5 is spent" in str(said.message)
    assert said.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit()  # the refusal, not the warning


def test_scikit_learn_does_not_turn_a_refusal_into_nan_without_a_word(table: Table, spent: Path) -> None:
    model = LinearRegression(epsilon=0.3, ledger=spent)
    scores: list[Any] = []
    assert len(heard(lambda: scores.append(cross_val_score(model, *table, cv=3)))) == 2
    assert np.isnan(scores[0]).tolist() == [False, True, True]
    curve = {"param_name": "epsilon", "param_range": [0.4], "cv": 2}
    said = heard(lambda: scores.append(validation_curve(model, *table, **curve)))
    assert np.isnan(scores[1]).all()
    assert len(said) == 2


def test_three_fits_of_a_third_share_a_ledgers_delta(table: Table, tmp_path: Path) -> None:
    Ledger.create(tmp_path / "a.ledger", dataset="a", budget=Budget(3.0, 1e-6))
    models = [LinearRegression(epsilon=1.0, delta=1e-6, ledger=tmp_path / "a.ledger").fit(*table) for _ in range(3)]
    assert {round(model.privacy_.spent.delta * 1e6, 6) for model in models} == {0.333333}
    with pytest.raises(BudgetExceeded):
        LinearRegression(epsilon=1.0, ledger=tmp_path / "a.ledger").fit(*table)


def test_only_a_refusal_warns() -> None:
    def fail() -> None:
        with pytest.raises(ZeroDivisionError), warn_of_refusal():
            raise ZeroDivisionError

    assert heard(fail) == []
