"""A thread that rounds to two digits, down, and forbids floats pays what every other thread pays."""

from __future__ import annotations

from contextlib import AbstractContextManager
from decimal import ROUND_DOWN, Context, FloatOperation, localcontext
from pathlib import Path

from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import ApproxDP, Composed, Event, Gaussian, PoissonSampled, PureDP, Repeated
from dpilot.privacy.ledger import Ledger

STEPS = Repeated(PoissonSampled(0.01, Gaussian(1.5)), 100)


def careless() -> AbstractContextManager[Context]:
    return localcontext(Context(prec=2, rounding=ROUND_DOWN, traps=[FloatOperation]))


def made(path: Path, epsilon: float = 3.0, **terms: str) -> Ledger:
    return Ledger.open(path, dataset="d", budget=Budget(epsilon, 1e-5), **terms)


def spend(ledger: Ledger, event: Event) -> None:
    with ledger.reserve(event, purpose="x"):
        pass


def test_declared_epsilons_are_multiplied_in_full(tmp_path: Path) -> None:
    ledger = made(tmp_path / "a", epsilon=1.0)
    with careless():
        for _ in range(9):
            spend(ledger, Repeated(PureDP(0.0109), 10))
        assert not ledger.fits(Repeated(PureDP(0.0109), 10))
    assert ledger.spent().epsilon == 0.981


def test_declared_pairs_are_multiplied_in_full(tmp_path: Path) -> None:
    ledger = made(tmp_path / "a")
    with careless():
        spend(ledger, Repeated(ApproxDP(0.0109, 1.09e-9), 11))
    assert ledger.spent() == Cost(0.1199, 1.199e-8)


def test_the_share_of_delta_has_three_digits(tmp_path: Path) -> None:
    ledger = made(tmp_path / "a", epsilon=9.0)
    with careless():
        spend(ledger, PureDP(0.1))
        spend(ledger, Gaussian(9.0))
    assert ledger.entries()[1].cost.delta == 3.33e-6


def test_a_settlement_is_priced_at_all_the_delta_it_reserved(tmp_path: Path) -> None:
    def settled(name: str) -> Cost:
        ledger = made(tmp_path / name)
        whole, part = (Composed([ApproxDP(0.1, 1e-9), Repeated(Gaussian(9.0), n)]) for n in (3, 2))
        with ledger.reserve(whole, purpose="x", delta=1.2345e-6) as receipt:
            receipt.settle(part)
        return ledger.spent()

    with careless():
        there = settled("there")
    assert there == settled("here")


def test_every_bound_comes_to_the_same(tmp_path: Path) -> None:
    def found(name: str) -> list[Cost]:
        costs = []
        for bound in ("basic", "gdp", "rdp"):
            ledger = made(tmp_path / f"{name}-{bound}", bound=bound)
            spend(ledger, Gaussian(7.77))
            spend(ledger, Repeated(Gaussian(33.3), 3))
            costs += [ledger.spent(), ledger.remaining(), *(entry.cost for entry in ledger.entries())]
        planned = made(tmp_path / f"{name}-planned", mode="precommitted")
        spend(planned, Composed([STEPS, ApproxDP(0.1, 1.2345e-6)]))
        return [*costs, planned.spent()]

    with careless():
        there = found("there")
    assert there == found("here")
