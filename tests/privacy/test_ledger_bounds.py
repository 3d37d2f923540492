"""How commitments add up: each bound against the accountant, parts against all the records one could be."""

from __future__ import annotations

import itertools
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.errors import BudgetExceeded, InternalError, InvalidInput, LedgerError
from dpilot.privacy import _decimals, accountant, filters
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import (
    ApproxDP,
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
)
from dpilot.privacy.filters import Amount, Charge
from dpilot.privacy.ledger import Ledger, Stage

STEPS = Repeated(PoissonSampled(0.01, Gaussian(1.5)), 100)
DELTA = 1e-5


def made(tmp_path: Path, epsilon: float = 3.0, **terms: str) -> Ledger:
    return Ledger.open(tmp_path / "a.ledger", dataset="d", budget=Budget(epsilon, DELTA), **terms)


def spend(ledger: Ledger, event: Event, part: str | None = None, split: str | None = None) -> None:
    with ledger.reserve(event, purpose="x", part=part, split=split):
        pass


class TestBasic:
    def test_each_commitment_is_priced_by_its_own_pld_and_prices_add(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        for _ in range(3):
            spend(ledger, STEPS)
        entries = ledger.entries()
        assert [entry.cost.delta for entry in entries] == [5e-6, 1.66e-6, 8.35e-7]
        for entry in entries:
            assert entry.cost.epsilon >= accountant.epsilon(STEPS, entry.cost.delta)
            assert entry.cost.epsilon == pytest.approx(accountant.epsilon(STEPS, entry.cost.delta), rel=1e-12)
            assert entry.bound_used == "basic:pld"
        total = ledger.spent()
        assert total.epsilon == pytest.approx(sum(entry.cost.epsilon for entry in entries))
        assert total.delta == pytest.approx(5e-6 + 1.66e-6 + 8.35e-7)
        assert total.epsilon > 1.3 * accountant.epsilon(Repeated(STEPS, 3), total.delta)  # no PLD across entries

    def test_delta_lasts_for_any_number_of_commitments(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, epsilon=1e3)
        for _ in range(40):
            spend(ledger, Gaussian(4.0))
        assert 0 < ledger.remaining().delta < DELTA / 35
        last = ledger.entries()[-1].cost
        assert last.delta == pytest.approx(DELTA / (40 * 41), rel=0.05)
        assert last.epsilon < 1.4 * ledger.entries()[0].cost.epsilon

    def test_a_given_delta_is_used(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(STEPS, purpose="x", delta=3e-6):
            pass
        assert ledger.spent().delta == 3e-6
        assert ledger.fits(STEPS, delta=7e-6)
        assert not ledger.fits(STEPS, delta=7.1e-6)
        with pytest.raises(InvalidInput, match="delta"), ledger.reserve(STEPS, purpose="x", delta=0.0):
            pass

    def test_what_needs_all_that_is_left_gets_it(self, tmp_path: Path) -> None:
        from dpilot.privacy.calibrate import noise_multiplier

        budget = Budget(1.0, DELTA)
        for rate, steps in ((0.01, 200), (1.0, 5)):
            sigma = noise_multiplier(budget, sample_rate=rate, steps=steps)
            path = tmp_path / f"{rate}.ledger"
            ledger = Ledger.open(path, dataset="d", budget=budget)
            spend(ledger, Repeated(PoissonSampled(rate, Gaussian(sigma)), steps))
            assert ledger.spent().delta == DELTA
            assert 0.99 < ledger.spent().epsilon <= 1.0
            assert not ledger.fits(Gaussian(100.0))
            assert ledger.fits(PureDP(1e-10)) == (ledger.remaining().epsilon >= 1e-10)

    def test_what_declares_its_cost_is_charged_that(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        event = Composed(
            [Repeated(PureDP(0.01), 3), ExponentialMechanism(0.2), ApproxDP(0.1, 1e-7), ApproxDP(0.1, 1e-7)]
        )
        spend(ledger, event)
        assert ledger.spent() == Cost(0.43, 2e-7)
        assert ledger.entries()[0].bound_used == "basic:sum"

    def test_declared_pairs_add_to_what_is_composed(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(Composed([STEPS, Repeated(ApproxDP(0.1, 1e-7), 2)]), purpose="x", delta=1e-6):
            pass
        assert ledger.spent().delta == pytest.approx(1.2e-6)
        assert ledger.spent().epsilon == pytest.approx(0.2 + accountant.epsilon(STEPS, 1e-6), rel=1e-12)

    def test_a_pure_event_is_composed_when_a_delta_is_given(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, epsilon=20.0)
        many = Repeated(PureDP(0.1), 100)
        with ledger.reserve(many, purpose="x", delta=1e-6):
            pass
        assert ledger.spent().epsilon == pytest.approx(accountant.epsilon(many, 1e-6))
        assert ledger.spent().epsilon < 6

    def test_selection_is_priced_by_its_own_bound(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, epsilon=20.0)
        event = RepeatAndSelect(Gaussian(5.0), 5.0)
        with ledger.reserve(event, purpose="x", delta=1e-6):
            pass
        assert ledger.spent().epsilon == pytest.approx(accountant.epsilon(event, 1e-6))
        with ledger.reserve(Composed([event, Gaussian(9.0)]), purpose="x", delta=1e-6):
            pass
        assert ledger.entries()[1].bound_used == "basic:rdp"
        expected = accountant.epsilon(Composed([event, Gaussian(9.0)]), 1e-6, "rdp")
        assert ledger.entries()[1].cost.epsilon == pytest.approx(expected)

    def test_delta_is_spent_in_parallel_too(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(STEPS, purpose="x", part="a", split="s", delta=9e-6):
            pass
        assert ledger.fits(STEPS, part="b", split="s", delta=9e-6)
        assert not ledger.fits(STEPS, part="a", split="s", delta=9e-6)
        assert not ledger.fits(STEPS, delta=9e-6)
        assert not ledger.fits(STEPS, part="b", split="other", delta=9e-6)
        spend(ledger, STEPS, "b", "s")
        assert ledger.entries()[1].cost.delta == pytest.approx(DELTA / 3, rel=0.01)


class TestRenyi:
    def test_the_total_is_the_sum_at_the_one_order_of_row_0(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, bound="rdp")
        order = float(ledger._book.rows()[0].content()["order"])
        assert order == filters.choose_order(Budget(3.0, DELTA))
        spend(ledger, STEPS)
        spend(ledger, Gaussian(6.0))
        sums = [accountant.rdp(event, [order])[0] for event in (STEPS, Gaussian(6.0))]
        expected = accountant.rdp_epsilon([order], [sum(sums)], DELTA)
        assert expected <= ledger.spent().epsilon <= expected * (1 + 1e-9)
        assert ledger.spent().delta == DELTA
        assert ledger.entries()[0].bound_used == f"rdp:order {order:g}"

    def test_extending_keeps_the_order(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, bound="rdp")
        spend(ledger, Gaussian(6.0))
        before = ledger.spent()
        ledger.extend(Budget(9.0, DELTA), reason="x")
        assert ledger.spent() == before

    def test_it_admits_up_to_the_budget_and_no_further(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, epsilon=1.0, bound="rdp")
        count = 0
        while ledger.fits(Gaussian(12.0)):
            spend(ledger, Gaussian(12.0))
            count += 1
        assert ledger.spent().epsilon <= 1.0
        assert accountant.epsilon(Repeated(Gaussian(12.0), count), DELTA) > 0.75
        with pytest.raises(BudgetExceeded):
            spend(ledger, Gaussian(12.0))

    def test_the_order_admits_the_most_gaussian_signal(self) -> None:
        for epsilon in (0.1, 1.0, 8.0):
            budget = Budget(epsilon, DELTA)
            best = filters.choose_order(budget)

            def room(order: float, budget: Budget = budget) -> float:
                return (budget.epsilon - accountant.rdp_epsilon([order], [0.0], budget.delta)) / order

            assert room(best) >= max(room(order) for order in accountant.ORDERS)
        with pytest.raises(InvalidInput, match="admits nothing"):
            filters.choose_order(Budget(1e-4, 1e-5))

    def test_pairs_have_no_curve_and_delta_no_shares(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, bound="rdp")
        with pytest.raises(InvalidInput, match="ApproxDP"):
            spend(ledger, ApproxDP(0.1, 1e-7))
        with pytest.raises(InvalidInput, match="uses delta once"), ledger.reserve(STEPS, purpose="x", delta=1e-6):
            pass
        assert ledger.entries() == ()

    def test_selection_uses_the_whole_curve(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, epsilon=20.0, bound="rdp")
        event = RepeatAndSelect(Gaussian(5.0), 5.0)
        spend(ledger, event)
        order = filters.choose_order(Budget(20.0, DELTA))
        value = accountant.rdp(event)[accountant.ORDERS.index(order)]
        assert ledger.spent().epsilon == pytest.approx(accountant.rdp_epsilon([order], [value], DELTA))


class TestGaussian:
    def test_the_total_is_exact(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, bound="gdp")
        spend(ledger, Repeated(Gaussian(10.0), 7))
        spend(ledger, PoissonSampled(1.0, Gaussian(5.0)))
        mu = (7 / 100 + 1 / 25) ** 0.5
        assert ledger.spent().epsilon == pytest.approx(accountant.gdp_epsilon(mu, DELTA), rel=1e-8)
        assert ledger.entries()[0].bound_used == "gdp"

    def test_only_unsampled_gaussians(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, bound="gdp")
        for event in (STEPS, PureDP(0.1), ApproxDP(0.1, 1e-7), Composed([Gaussian(9.0), PureDP(0.1)])):
            with pytest.raises(InvalidInput, match="unsampled Gaussians only"):
                spend(ledger, event)
        assert ledger.entries() == ()

    def test_the_whole_budget_fits_and_a_hair_more_does_not(self, tmp_path: Path) -> None:
        from dpilot.privacy.gaussian import gdp_mu

        ledger = made(tmp_path, bound="gdp")
        mu = gdp_mu(Budget(3.0, DELTA))
        assert ledger.fits(Gaussian(1 / mu))
        assert not ledger.fits(Gaussian(1 / (mu * (1 + 1e-8))))
        spend(ledger, Gaussian(1 / mu))
        assert ledger.spent().epsilon <= 3.0
        assert not ledger.fits(Gaussian(1000.0))


class TestParts:
    N, A, B = Gaussian(10.0), Gaussian(5.0), Gaussian(4.0)

    def test_precommitted_composes_first_and_then_takes_the_maximum(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, epsilon=9.0, mode="precommitted")
        ledger.commit([("n", self.N), ("a", self.A, "a"), ("b", self.B, "b"), Stage("b", self.B, "b")])
        with_a = accountant.epsilon(Composed([self.N, self.A]), DELTA)
        with_b = accountant.epsilon(Composed([self.N, self.B, self.B]), DELTA)
        assert ledger.spent().epsilon == pytest.approx(max(with_a, with_b))
        assert with_b > with_a

    def test_precommitted_pairs_take_their_delta_from_the_whole(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, mode="precommitted")
        spend(ledger, Composed([STEPS, ApproxDP(0.1, 1e-6)]))
        assert ledger.spent().delta == DELTA
        assert ledger.spent().epsilon == pytest.approx(0.1 + accountant.epsilon(STEPS, DELTA - 1e-6))

    def test_two_splits_compose(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, epsilon=9.0, mode="precommitted")
        ledger.commit([("n", self.N), ("a", self.A, "a", "s"), ("b", self.B, "b", "s"), ("c", self.A, "a", "t")])
        expected = accountant.epsilon(Composed([self.N, self.B, self.A]), DELTA)
        assert ledger.spent().epsilon == pytest.approx(expected)

    @pytest.mark.parametrize("bound", ["gdp", "rdp", "basic"])
    def test_adaptive_ledgers_add_then_take_the_worst_part(self, tmp_path: Path, bound: str) -> None:
        ledger = made(tmp_path, epsilon=30.0, bound=bound)

        def total() -> float:
            return ledger.spent().epsilon

        spend(ledger, self.N)
        spend(ledger, self.A, "a", "s")
        one = total()
        spend(ledger, Gaussian(50.0), "b", "s")
        assert total() == one  # the other part costs this one nothing
        spend(ledger, self.B, "b", "s")
        two = total()
        assert two > one
        spend(ledger, Gaussian(40.0), "a", "other")
        assert total() > two  # another split cuts across

    def test_gdp_of_parts_by_hand(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, epsilon=30.0, bound="gdp")
        for event, part in ((self.N, None), (self.A, "a"), (self.B, "b"), (self.A, "a")):
            spend(ledger, event, part)
        mu = (1 / 100 + max(2 / 25, 1 / 16)) ** 0.5
        assert ledger.spent().epsilon == pytest.approx(accountant.gdp_epsilon(mu, DELTA), rel=1e-8)

    def test_stages_in_several_parts_are_priced_by_their_worst_case(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, epsilon=9.0)
        ledger.commit([("a", self.A, "a"), ("b", self.B, "b")], delta=1e-6)
        assert ledger.spent().epsilon == pytest.approx(accountant.epsilon(self.B, 1e-6))
        spend(ledger, PureDP(0.5), "a")
        assert ledger.spent().epsilon == pytest.approx(0.5 + accountant.epsilon(self.B, 1e-6))

    def test_a_part_is_of_the_main_split_unless_told(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        spend(ledger, PureDP(0.5), "a")
        spend(ledger, PureDP(0.5), "b", "main")
        assert ledger.spent().epsilon == 0.5
        assert [entry.split for entry in ledger.entries()] == ["main", "main"]

    def test_too_many_ways_to_combine_are_refused(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, mode="precommitted")
        stages = [Stage("x", Gaussian(99.0), part, f"s{split}") for split in range(9) for part in "ab"]
        with pytest.raises(InvalidInput, match="ways"):
            ledger.commit(stages)

    @given(
        st.lists(
            st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from(["s", "t"]), st.integers(0, 9)),
            max_size=12,
        )
    )
    def test_the_total_is_the_worst_that_one_record_can_meet(self, drawn: list[tuple[str | None, str, int]]) -> None:
        charges = [
            Charge(Amount(Decimal(loss), Decimal(9 - loss)), None if part is None else (split, part))
            for part, split, loss in drawn
        ]
        losses, deltas = [], []
        for mine in itertools.product("abc", repeat=2):
            home = dict(zip("st", mine, strict=True))
            met = [c for c in charges if c.cell is None or home[c.cell[0]] == c.cell[1]]
            losses.append(sum(c.amount.loss for c in met))
            deltas.append(sum(c.amount.delta for c in met))
        assert filters.total(charges) == Amount(Decimal(max(losses)), Decimal(max(deltas)))


class TestRounding:
    @given(st.floats(min_value=0, max_value=1e300))
    def test_what_is_computed_is_never_rounded_down(self, number: float) -> None:
        assert _decimals.round_up(number) >= Decimal(number)
        assert float(_decimals.round_up(number)) == number
        assert _decimals.read(_decimals.write(_decimals.round_up(number))) == _decimals.round_up(number)

    @given(st.decimals(min_value=0, max_value=1000, allow_nan=False, places=30))
    def test_what_is_shown_is_on_the_safe_side(self, number: Decimal) -> None:
        assert Decimal(repr(_decimals.above(number))) >= number
        assert Decimal(repr(_decimals.below(number))) <= number
        assert _decimals.above(number) - _decimals.below(number) <= 1e-12

    @given(st.lists(st.decimals(min_value=0, max_value=10, allow_nan=False, places=55), max_size=9))
    def test_sums_and_roots_are_never_rounded_down(self, numbers: list[Decimal]) -> None:
        exact = sum(map(Fraction, numbers), Fraction(0))
        total = _decimals.total(numbers)
        assert exact <= Fraction(total) <= exact + Fraction(1, 10**45)
        root = _decimals.square_root(total)
        assert Fraction(total) <= Fraction(root) ** 2 <= Fraction(total) * (1 + Fraction(1, 10**48))

    def test_a_shortened_delta_is_not_above_what_was_meant(self) -> None:
        assert _decimals.truncate(Decimal("1.6667E-6")) == Decimal("1.66E-6")

    def test_what_is_no_amount_is_refused(self) -> None:
        for wrong in (float("nan"), -1.0):
            with pytest.raises(InternalError):
                _decimals.round_up(wrong)
        with pytest.raises(InternalError):
            _decimals.write(Decimal("Infinity"))
        for text in ("", "x", "NaN", "-1", "Infinity", 1, None):
            with pytest.raises(LedgerError):
                _decimals.read(text)
