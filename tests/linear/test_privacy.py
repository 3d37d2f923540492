"""No record moves a release beyond its bound, nothing else moves at all, and everything is paid beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from dpilot import Budget, Ledger
from dpilot.errors import BudgetExceeded, InvalidInput, PrivacyWarning
from dpilot.linear import auto
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.linear.estimators import LinearRegression
from dpilot.linear.fitting import plan_fit
from dpilot.linear.gram_matrix import Gram
from dpilot.linear.methods import METHODS
from dpilot.linear.problem import LinearProblem
from dpilot.linear.rows import MemoryRows
from dpilot.linear.solution import Solution
from dpilot.mechanism import seeded_noise
from dpilot.privacy.accountant import gdp_epsilon, gdp_mu
from dpilot.privacy.events import Composed
from tests.linear.helpers import EXTREMES, line, moved, table, with_record
from tests.statistics.helpers import Anything
from tests.thin import thin_product

GAUSSIAN = [name for name in METHODS if name != "tukey"]  # the others' squared mu adds up


@pytest.mark.parametrize(("record", "method"), thin_product(5, EXTREMES, METHODS))
def test_one_more_record_moves_releases_within_their_bounds_and_nothing_else(method, record):
    rows = table(300, 2)
    found = moved(lambda: LinearRegression(method=method, size=500), rows, with_record(rows, *EXTREMES[record]))
    assert found.differences == ()
    assert found.releases > 0


DECLARED = {"X": ([-90.0, 1.0], [4.0, 900.0]), "y": (-30.0, 500.0)}
OPTIONS = [
    {"bounds": "standardised"},
    {"bounds": DECLARED},
    {"bounds": DECLARED, "fit_intercept": False},
    {"fit_intercept": False},
    {"size": "private"},
]
SMALL = {"mean": 300, "median": 70, "bounded mean": 30, "pooled": 30}  # records, where one value for all is bought


@pytest.mark.parametrize(("options", "method"), thin_product(5, OPTIONS, METHODS), ids=str)
def test_options_keep_the_bounds_too(method, options):
    rows = table(300, 2)
    for record in ("huge", "null"):
        make = lambda: LinearRegression(method=method, **{"size": 500, **options})  # noqa: E731
        assert moved(make, rows, with_record(rows, *EXTREMES[record])).differences == ()


@pytest.mark.parametrize("level", SMALL)
@pytest.mark.parametrize("record", EXTREMES)
def test_one_value_for_all_keeps_its_bounds_and_costs_the_budget(level, record):
    size, bounds = SMALL[level], DECLARED if level == "bounded mean" else None
    problem = LinearProblem(2, True, float(size), Budget(1.0, 1e-5))
    plan = plan_fit(problem, parse_bounds(bounds, 2), METHODS["auto"])
    assert plan.target.level == level
    assert list(plan.stages) == ["target"]
    assert gdp_mu(plan.stages["target"]) == pytest.approx(problem.mu)
    rows = table(300, 2)
    make = lambda: LinearRegression(size=size, bounds=bounds)  # noqa: E731
    found = moved(make, rows, with_record(rows, *EXTREMES[record]))
    assert found.differences == ()
    assert found.releases > 0


def test_the_check_is_paid_and_one_record_fills_it():
    """A record far from a model that fits all others well moves the check by its whole bound."""
    rows = table(300, 2)
    model = LinearRegression(size=500).fit(rows[:, :-1], rows[:, -1])
    assert [entry.purpose for entry in model.privacy_.entries] == ["scale", "target", "gram", "gradient", "check"]
    theta, seen = np.array([1.0, 1.0, 0.0]), Gram(np.eye(4), 1.0, 1.0)
    found = Solution(theta, seen)
    sums = [
        auto._gain(MemoryRows.of(values), found, 1e-9, True, Anything(), seeded_noise(0))
        for values in (np.zeros((0, 4)), np.array([[9.0, 9.0, 1.0, -9.0]]), np.array([[4.0, 4.0, 1.0, 8.0]]))
    ]
    assert sums == pytest.approx([0.0, -1.0, 1.0], abs=1e-6)


def test_with_a_public_size_making_a_record_null_moves_nothing_else():
    rows = table(300, 2)
    null = rows.copy()
    null[-1] = np.nan
    assert moved(LinearRegression, rows, null).differences == ()


@pytest.mark.parametrize("record", EXTREMES)
def test_moments_bought_again_keep_their_bounds_and_the_price(record, monkeypatch):
    monkeypatch.setattr(auto, "_leave", lambda seen: lambda *_: True)
    rows = table(300, 2)
    found = moved(lambda: LinearRegression(size=500), rows, with_record(rows, *EXTREMES[record]))
    assert found.differences == ()
    left = LinearRegression(size=500).fit(rows[:, :-1], rows[:, -1]).privacy_
    monkeypatch.undo()
    stayed = LinearRegression(size=500).fit(rows[:, :-1], rows[:, -1]).privacy_
    assert [entry.event for entry in left.entries] == [entry.event for entry in stayed.entries]


def test_some_record_comes_close_to_the_bound():
    rows = table(300, 2)
    assert moved(lambda: LinearRegression(size=500), rows, with_record(rows, 1e6, 1e6)).largest > 0.9


@pytest.mark.parametrize("method", GAUSSIAN)
@pytest.mark.parametrize("size", ["public", "private", 5000])
@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_all_releases_together_cost_the_budget_and_no_more(method, size, epsilon):
    X, y, _ = line(400, 4)
    model = LinearRegression(epsilon, 1e-5, method=method, size=size).fit(X, y)
    total = gdp_epsilon(gdp_mu(Composed([entry.event for entry in model.privacy_.entries])), 1e-5)
    assert total <= epsilon
    assert total == pytest.approx(epsilon, rel=1e-6)
    assert model.privacy_.spent.epsilon <= epsilon
    assert {entry.state for entry in model.privacy_.entries} == {"committed"}


def test_a_ledger_is_charged_by_every_fit_and_refuses_what_does_not_fit(tmp_path):
    X, y, _ = line()
    path = tmp_path / "some.ledger"
    ledger = Ledger.open(path, dataset="some", budget=Budget(2.0, 3e-5))
    for _ in range(2):
        LinearRegression(1.0, 1e-5, ledger=path).fit(X, y)
    before = ledger.entries()
    assert ledger.spent().epsilon == pytest.approx(2.0)
    with pytest.raises(BudgetExceeded):
        LinearRegression(1.0, 1e-5, ledger=str(path)).fit(X, y)
    assert ledger.entries() == before


def test_a_new_ledger_has_the_fits_own_budget(tmp_path):
    X, y, _ = line()
    LinearRegression(0.5, ledger=tmp_path / "new.ledger").fit(X, y)
    assert Ledger.read(tmp_path / "new.ledger").budget == Budget(0.5, 1e-5)
    with pytest.raises(BudgetExceeded):
        LinearRegression(0.5, ledger=tmp_path / "new.ledger").fit(X, y)


def test_a_ledger_object_will_do(tmp_path):
    X, y, _ = line()
    ledger = Ledger.open(tmp_path / "g.ledger", dataset="g", budget=Budget(2.0, 1e-5), bound="gdp")
    LinearRegression(1.0, ledger=ledger).fit(X, y)
    assert 0.9 < ledger.spent().epsilon <= 1.0


def test_the_price_is_on_disk_before_a_record_is_read(tmp_path):
    class Unreadable:
        columns = 3

        def chunks(self):
            raise KeyError("read")

        def map(self, function, columns):
            return self

    path = tmp_path / "first.ledger"
    with pytest.raises(KeyError):
        LinearRegression(ledger=path)._fit(Unreadable(), length=500)
    entries = Ledger.read(path).entries()
    assert [entry.purpose for entry in entries] == ["scale", "target", "gram", "gradient", "check"]
    assert [entry.state for entry in entries] == ["reserved", *["planned"] * 4]


def test_fixed_noise_warns_and_is_stamped():
    X, y, _ = line()
    with pytest.warns(PrivacyWarning, match="not private"):
        one = LinearRegression(random_state=3).fit(X, y)
    with pytest.warns(PrivacyWarning):
        other = LinearRegression(random_state=3).fit(X, y)
    assert np.array_equal(one.coef_, other.coef_)
    assert "not private" in one.privacy_.noise
    assert "not private" in str(one.privacy_)
    free = [LinearRegression().fit(X, y) for _ in range(2)]
    assert not np.array_equal(free[0].coef_, free[1].coef_)
    assert "not private" not in free[0].privacy_.noise


def test_what_is_not_protected_is_said():
    X, y, _ = line()
    assert any("number of records" in what for what in LinearRegression().fit(X, y).privacy_.unprotected)
    assert not any("number" in what for what in LinearRegression(size=400).fit(X, y).privacy_.unprotected)


def test_a_delta_that_admits_publishing_a_record_is_refused():
    X, y, _ = line()
    with pytest.raises(InvalidInput, match="delta"):
        LinearRegression(delta=0.1).fit(X, y)
