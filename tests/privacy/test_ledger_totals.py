"""The total of a data set: any fits within it are admitted, one over is refused and writes nothing."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpilot.cli.main import main
from dpilot.errors import BudgetExceeded, InvalidInput, LedgerError
from dpilot.privacy._decimals import above, round_up, to_decimal
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.calibrate import noise_multiplier
from dpilot.privacy.events import ApproxDP, Gaussian, PoissonSampled, PureDP, Repeated
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import (
    Balance,
    Ledger,
    OpenedLedger,
    extend_total,
    fit_budget,
    locate_ledger,
    open_for_fit,
    split_budget,
)

HEALTH = 0.02


def fit(path: Path, epsilon: float, total: float | Budget | None = None, delta: float = 1e-6) -> OpenedLedger:
    """A fit as the pipeline makes it: its health, then all the rest, each as dear as its budget allows."""
    opened = open_for_fit(path, dataset="x", budget=Budget(epsilon, delta), total=total, size=1000)
    health, rest = split_budget(opened.budget, HEALTH)
    opened.commit([("health", Gaussian(1 / gdp_mu(health)))], health)
    opened.commit([("fit", Gaussian(1 / gdp_mu(rest)))], rest)
    return opened


amounts = st.decimals("0.001", "4", places=3).map(float)


@settings(max_examples=20, deadline=None)
@given(st.lists(amounts, min_size=1, max_size=6), amounts)
def test_any_fits_within_the_total_are_admitted_and_one_over_is_not(epsilons: list[float], over: float) -> None:
    total = float(sum(map(to_decimal, epsilons)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.ledger"
        for epsilon in epsilons:
            fit(path, epsilon, total)
        rows, ledger = path.read_bytes(), Ledger.read(path)
        assert ledger.spent().epsilon <= total
        assert ledger.spent().delta <= 1e-6
        with pytest.raises(BudgetExceeded, match="Nothing was written"):
            fit(path, over, total if over <= total else None)
        assert path.read_bytes() == rows
        assert ledger.verify()


@pytest.mark.parametrize(
    ("epsilon", "fits", "total"), [(1.0, 3, 3.0), (1 / 3, 3, 1.0), (0.1, 10, 1.0), (0.1, 3, 0.3), (0.7, 2, 1.4)]
)
def test_equal_fits_fill_the_total_exactly(tmp_path: Path, epsilon: float, fits: int, total: float) -> None:
    for _ in range(fits):
        fit(tmp_path / "a.ledger", epsilon, total)
    with pytest.raises(BudgetExceeded):
        fit(tmp_path / "a.ledger", epsilon / 100)


@given(st.floats(1e-3, 50), st.floats(1e-12, 1e-2), st.floats(1e-3, 0.999))
def test_the_two_budgets_of_a_split_never_cost_more_than_the_whole(epsilon: float, delta: float, share: float) -> None:
    whole = Budget(epsilon, delta, allow_large_delta=True)
    parts = split_budget(whole, share)
    for write in (round_up, to_decimal):  # as an accountant's result is written, and as a declared number is
        assert sum(write(part.epsilon) for part in parts) <= to_decimal(epsilon)
        assert write(parts[0].epsilon) <= to_decimal(share) * to_decimal(epsilon)
    assert sum(to_decimal(part.delta) for part in parts) <= to_decimal(delta)
    assert all(part.allow_large_delta for part in parts)
    assert parts[0].epsilon == pytest.approx(share * epsilon, rel=1e-12)
    assert parts[0].epsilon + parts[1].epsilon == pytest.approx(epsilon, rel=1e-12)
    assert parts[0].delta + parts[1].delta == pytest.approx(delta, rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=20), st.floats(1e-9, 1e-4))
def test_the_parts_of_delta_sum_to_the_total_at_most(epsilons: list[float], delta: float) -> None:
    total = Budget(above(sum(map(to_decimal, epsilons), Decimal())), delta)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.open(Path(folder) / "a", dataset="x", budget=total)
        parts = [fit_budget(ledger, Budget(epsilon, 0.5)) for epsilon in epsilons]
    assert sum(to_decimal(part.delta) for part in parts) <= to_decimal(delta)
    assert sum(part.delta for part in parts) == pytest.approx(delta, rel=1e-9)


def test_a_new_ledger_without_a_total_is_of_this_fit_and_says_so(tmp_path: Path) -> None:
    opened = fit(tmp_path / "a.ledger", 1.0)
    assert opened.created
    assert opened.ledger.budget == opened.budget == Budget(1.0, 1e-6)
    assert (opened.ledger.mode, opened.ledger.bound) == ("adaptive", "basic")
    assert opened.before == Balance(Budget(1.0, 1e-6), Cost(0.0, 0.0), Cost(1.0, 1e-6))
    assert opened.balance().spent.epsilon == pytest.approx(1.0)
    assert "takes all of it" in opened.sentences()[1]
    assert "--total 2" in opened.sentences()[1]


def test_what_is_spent_and_left_is_said_before_a_fit(tmp_path: Path) -> None:
    first = fit(tmp_path / "a.ledger", 1.0, 3.0)
    assert first.sentences() == (
        "ledger a.ledger was made, for a total of epsilon 3 at delta 1e-06.",
        "This fit takes epsilon 1 at delta 3.33e-07.",
    )
    second = fit(tmp_path / "a.ledger", 2.0, 3.0)
    assert not second.created
    assert second.sentences()[0] == ("ledger a.ledger: epsilon 1 of 3 is spent, 2 is left; delta 3.33e-07 of 1e-06.")
    assert "0 is left" in str(second.balance())


def test_a_fit_takes_no_more_delta_than_it_asks_for(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "a", dataset="x", budget=Budget(2.0, 1e-5))
    assert fit_budget(ledger, Budget(1.0, 1e-7)).delta == 1e-7
    assert fit_budget(ledger, Budget(1.0, 1e-4, allow_large_delta=True)) == Budget(1.0, 5e-6)
    assert fit_budget(tmp_path / "a", Budget(1.0, 1e-4)) == Budget(1.0, 5e-6)
    assert fit_budget(None, Budget(1.0, 1e-4)) == fit_budget(tmp_path / "none", Budget(1.0, 1e-4)) == Budget(1.0, 1e-4)


@pytest.mark.parametrize(("mode", "bound"), [("adaptive", "rdp"), ("adaptive", "gdp"), ("precommitted", "pld")])
def test_other_bounds_use_delta_once(tmp_path: Path, mode: str, bound: str) -> None:
    ledger = Ledger.open(tmp_path / "a", dataset="x", budget=Budget(2.0, 1e-5), mode=mode, bound=bound)
    assert fit_budget(ledger, Budget(1.0, 1e-5)) == Budget(1.0, 1e-5)
    opened = open_for_fit(tmp_path / "a", dataset="x", budget=Budget(1.0, 1e-5), size=1000)
    opened.commit([("fit", Gaussian(1 / gdp_mu(opened.budget)))])
    if mode == "adaptive":
        assert extend_total(ledger, 3.0, reason="more") == Budget(3.0, 1e-5)
    else:
        with pytest.raises(BudgetExceeded, match="nothing more"):
            open_for_fit(tmp_path / "a", dataset="x", budget=Budget(1.0, 1e-5))


def test_a_fit_takes_what_others_left_of_delta_if_that_is_worth_it(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "a", dataset="x", budget=Budget(2.0, 1e-5))
    with ledger.reserve(ApproxDP(0.5, 6e-6)):
        pass
    assert fit_budget(ledger, Budget(1.0, 1e-5)).delta == 4e-6
    with ledger.reserve(ApproxDP(0.5, 4e-6)):
        pass
    with pytest.raises(BudgetExceeded, match=r"--total 3 "):
        open_for_fit(tmp_path / "a", dataset="x", budget=Budget(1.0, 1e-5))


def test_terms_are_checked_before_a_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with pytest.raises(InvalidInput, match=r"total is 0\.5"):
        fit(path, 1.0, 0.5)
    with pytest.raises(InvalidInput, match="total is -1"):
        fit(path, 1.0, -1.0)
    with pytest.raises(InvalidInput, match="1/size"):
        open_for_fit(path, dataset="x", budget=Budget(1.0, 1e-3), size=1000)
    assert not path.exists()


def test_a_total_that_is_named_must_be_the_ledgers(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    fit(path, 1.0, Budget(3.0, 1e-6))
    fit(path, 1.0, Budget(3.0, 1e-6))
    with pytest.raises(LedgerError, match=r"--total 4 --reason"):
        fit(path, 1.0, 4.0)
    with pytest.raises(LedgerError, match=r"Leave it out\.$"):
        fit(path, 1.0, 2.0)


def test_what_another_process_spends_meanwhile_is_refused_with_the_commands(tmp_path: Path) -> None:
    opened = open_for_fit(tmp_path / "a.ledger", dataset="x", budget=Budget(1.0, 1e-6), data="my data.csv")
    with Ledger.open(tmp_path / "a.ledger", dataset="x").reserve(PureDP(0.75)):
        pass
    rows = opened.ledger.path.read_bytes()
    with pytest.raises(BudgetExceeded, match=r"extend 'my data\.csv' --total 1\.75 .*--epsilon 0\.25\."):
        opened.commit([("fit", Gaussian(1 / gdp_mu(opened.budget)))])
    assert opened.ledger.path.read_bytes() == rows


@settings(max_examples=10, deadline=None)
@given(st.lists(amounts, min_size=1, max_size=3), amounts, st.booleans())
def test_the_commands_of_a_refusal_help(epsilons: list[float], more: float, smaller: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "my data.ledger"
        total = float(sum(map(to_decimal, epsilons))) + more / 2
        for epsilon in epsilons:
            fit(path, epsilon, total)
        with pytest.raises(BudgetExceeded) as refused:
            fit(path, more)
        said = str(refused.value)
        if smaller:
            (left,) = re.findall(r"--epsilon (\S+)\.$", said)
            fit(path, float(left))
            return
        (command,) = re.findall(r'dpilot (ledger extend .* --reason "[^"]*")', said)
        assert main(shlex.split(command)) == 0
        fit(path, more)


def test_extending_keeps_the_parts_of_delta_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    for _ in range(3):
        fit(path, 1.0, 3.0)
    ledger = Ledger.open(path, dataset="x")
    new = extend_total(ledger, 5.0, reason="two more questions")
    assert new == ledger.budget
    assert (new.epsilon, new.delta) == (5.0, pytest.approx(5e-6 / 3))
    assert to_decimal(new.delta) >= Decimal(5) * Decimal("1e-6") / 3
    (extension,) = ledger.extensions()
    assert (extension.budget, extension.reason, extension.seq) == (new, "two more questions", 7)
    for _ in range(2):
        fit(path, 1.0)
    with pytest.raises(BudgetExceeded):
        fit(path, 0.01)
    with pytest.raises(InvalidInput, match="expected more"):
        extend_total(ledger, 4.0, reason="less")
    assert extend_total(ledger, 5.0, delta=1e-5, reason="delta alone") == Budget(5.0, 1e-5)
    assert [each.reason for each in ledger.extensions()] == ["two more questions", "delta alone"]


def test_two_data_sets_do_not_touch_each_other(tmp_path: Path) -> None:
    one, two = (locate_ledger(tmp_path / name, environment={}) for name in ("one.csv", "two.csv"))
    fit(one, 1.0)
    fit(two, 1.0)
    for path in (one, two):
        with pytest.raises(BudgetExceeded):
            fit(path, 1.0)


RACE = """
import sys
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import PureDP
from dpilot.privacy.ledger import open_for_fit
print("ready", flush=True); sys.stdin.readline()
opened = open_for_fit(sys.argv[1], dataset="x", budget=Budget(1.0, 1e-6), total=3.0)
print(opened.created)
opened.commit([("fit", PureDP(1.0))])
"""


def test_processes_that_create_and_spend_at_once_share_one_ledger(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    runs = [subprocess.Popen([sys.executable, "-c", RACE, str(path)], text=True, **pipes) for _ in range(4)]
    for run in runs:
        assert run.stdout is not None
        run.stdout.readline()
    for run in runs:  # all wait: let them go
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    said = [run.communicate(timeout=60) for run in runs]
    ended = sorted(run.returncode for run in runs)
    assert ended == [0, 0, 0, 1]  # three fit the total
    assert sum(out == "True\n" for out, _ in said) == 1
    assert sum("BudgetExceeded" in err for _, err in said) == 1
    assert 2.99 < Ledger.read(path).spent().epsilon <= 3.0


def test_calibrated_plans_fill_the_total_too(tmp_path: Path) -> None:
    for _ in range(3):
        opened = open_for_fit(tmp_path / "a", dataset="x", budget=Budget(0.1, 1e-6), total=0.3, size=1000)
        health, rest = split_budget(opened.budget, HEALTH)
        sigma = noise_multiplier(rest, sample_rate=0.01, steps=200)
        opened.commit([("health", PureDP(health.epsilon))], health)
        opened.commit([("fit", Repeated(PoissonSampled(0.01, Gaussian(sigma)), 200), "train", "s")], rest)
    assert opened.balance().spent.epsilon > 0.29
