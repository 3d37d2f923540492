"""What a ledger promises to those who spend from it."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import dpilot
from dpilot.errors import BudgetExceeded, InvalidInput, LedgerError
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import ApproxDP, Composed, Event, Gaussian, PoissonSampled, PureDP, Repeated, nothing
from dpilot.privacy.filters import Amount
from dpilot.privacy.ledger import Ledger, Stage, book
from dpilot.privacy.receipt import Receipt

BUDGET = Budget(1.0, 1e-5)
STEPS = Repeated(PoissonSampled(0.01, Gaussian(2.0)), 10)


def made(tmp_path: Path, name: str = "a.ledger", budget: Budget = BUDGET, **terms: str) -> Ledger:
    return Ledger.open(tmp_path / name, dataset="d", budget=budget, **terms)


def _settle_and_fail(receipt: Receipt) -> None:
    receipt.settle(PureDP(0.1))
    raise RuntimeError("ours")


def _draw_and_fail(receipt: Receipt, event: Event, times: int) -> None:
    for _ in range(times):
        receipt.draw(event)
    raise RuntimeError("ours")


def test_any_name_will_do(tmp_path: Path) -> None:
    for name in ("a?mode=memory", "b#c", "d%20e f", "gölden", "'q'"):
        ledger = made(tmp_path, name)
        with ledger.reserve(PureDP(0.1), purpose="x"):
            pass
        assert made(tmp_path, name).spent().epsilon == 0.1
        assert (tmp_path / name).stat().st_size > 0
    assert len(list(tmp_path.iterdir())) == 5


def test_the_public_name_is_the_ledger() -> None:
    assert dpilot.Ledger is Ledger


def test_a_new_ledger_has_spent_nothing(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    assert ledger.spent() == Cost(0.0, 0.0)
    assert ledger.remaining() == Cost(1.0, 1e-5)
    assert ledger.entries() == ()
    assert (ledger.dataset, ledger.budget, ledger.mode, ledger.bound) == ("d", BUDGET, "adaptive", "basic")


def test_the_reservation_is_on_disk_before_the_body_and_committed_after(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    with ledger.reserve(PureDP(0.3), purpose="count") as receipt:
        (during,) = Ledger.read(ledger.path).entries()
        assert Ledger.read(ledger.path).spent() == Cost(0.3, 0.0)
        receipt.draw(PureDP(0.3))
    (after,) = ledger.entries()
    assert (during.state, after.state) == ("reserved", "committed")
    assert after.as_dict() | {"time": ""} == {
        "seq": 1,
        "stage": 0,
        "time": "",
        "purpose": "count",
        "part": None,
        "split": None,
        "event": {"type": "PureDP", "epsilon": 0.3},
        "cost": {"epsilon": 0.3, "delta": 0.0},
        "state": "committed",
        "bound_used": "basic:sum",
    }


def test_an_exception_leaves_it_spent_and_closes_the_receipt(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    with pytest.raises(RuntimeError, match="ours"), ledger.reserve(PureDP(0.3), purpose="x") as receipt:
        _settle_and_fail(receipt)
    assert ledger.spent().epsilon == 0.3
    assert ledger.entries()[0].state == "reserved"
    with pytest.raises(BudgetExceeded):
        receipt.draw(PureDP(0.1))


def test_the_receipt_dies_with_the_body(tmp_path: Path) -> None:
    with made(tmp_path).reserve(PureDP(0.3), purpose="x") as receipt:
        pass
    with pytest.raises(BudgetExceeded):
        receipt.draw(PureDP(0.3))


def test_what_does_not_fit_writes_nothing(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    before = ledger.head()
    assert not ledger.fits(PureDP(1.1))
    with (
        pytest.raises(BudgetExceeded, match=r"'big' does not fit.*1\.1.*extend"),
        ledger.reserve(PureDP(1.1), purpose="big"),
    ):
        pytest.fail("the body ran")
    assert ledger.head() == before


def test_ten_tenths_fit_exactly_and_an_eleventh_does_not(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    for _ in range(10):
        with ledger.reserve(PureDP(0.1), purpose="x"):
            pass
    assert ledger.spent().epsilon == 1.0
    assert ledger.remaining().epsilon == 0.0
    assert not ledger.fits(PureDP(1e-9))


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"dataset": "e"}, "dataset"),
        ({"budget": Budget(2.0, 1e-5)}, "budget"),
        ({"budget": Budget(1.0, 1e-6)}, "budget"),
        ({"mode": "precommitted"}, "mode"),
        ({"bound": "gdp"}, "bound"),
    ],
)
def test_other_terms_are_refused_and_change_nothing(tmp_path: Path, other: dict[str, object], word: str) -> None:
    ledger = made(tmp_path)
    content = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match=f"{word} is .* but the ledger was opened for"):
        Ledger.open(ledger.path, **{"dataset": "d", **other})  # type: ignore[arg-type]
    assert ledger.path.read_bytes() == content


def test_the_same_terms_or_fewer_reopen(tmp_path: Path) -> None:
    ledger = made(tmp_path, mode="adaptive", bound="basic")
    with ledger.reserve(PureDP(0.25), purpose="x"):
        pass
    again = made(tmp_path, mode="adaptive", bound="basic")
    assert again.entries() == Ledger.open(ledger.path, dataset="d").entries() == ledger.entries()


@pytest.mark.parametrize(
    "terms",
    [{"mode": "loose"}, {"bound": "pld"}, {"bound": "renyi"}, {"mode": "precommitted", "bound": "basic"}],
)
def test_unknown_terms_make_no_file(tmp_path: Path, terms: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        made(tmp_path, **terms)
    with pytest.raises(InvalidInput, match="budget"):
        Ledger.open(tmp_path / "a.ledger", dataset="d")
    with pytest.raises(InvalidInput, match="dataset"):
        Ledger.open(tmp_path / "a.ledger", dataset=" ", budget=BUDGET)
    assert list(tmp_path.iterdir()) == []


def test_reading_is_only_reading(tmp_path: Path) -> None:
    path = made(tmp_path).path
    reader = Ledger.read(path)
    with pytest.raises(LedgerError, match="reading only"), reader.reserve(PureDP(0.1), purpose="x"):
        pytest.fail("the body ran")
    with pytest.raises(LedgerError, match="reading only"):
        reader.extend(Budget(2.0, 1e-5), reason="x")
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger.read(tmp_path / "none")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_extending_needs_more_and_a_reason_and_is_on_record(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    for wrong in (BUDGET, Budget(0.5, 1e-5), Budget(2.0, 1e-6)):
        with pytest.raises(InvalidInput, match="expected more"):
            ledger.extend(wrong, reason="x")
    with pytest.raises(InvalidInput, match="reason"):
        ledger.extend(Budget(2.0, 1e-5), reason="")
    assert not ledger.fits(PureDP(1.5))
    ledger.extend(Budget(2.0, 1e-5), reason="the board agreed")
    assert ledger.budget == Budget(2.0, 1e-5)
    assert ledger.fits(PureDP(1.5))
    with pytest.raises(LedgerError, match="budget"):
        made(tmp_path)
    assert Ledger.open(ledger.path, dataset="d", budget=Budget(2.0, 1e-5)).remaining().epsilon == 2.0


def test_copies_are_the_same_ledger_and_pickles_find_it_again(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    assert copy.deepcopy([ledger])[0] is ledger
    assert copy.copy(ledger) is ledger
    sent = pickle.dumps(ledger)
    with pickle.loads(sent).reserve(PureDP(0.5), purpose="elsewhere"):
        pass
    assert ledger.spent().epsilon == 0.5
    ledger.path.unlink()
    made(tmp_path)
    with pytest.raises(LedgerError, match="another ledger"):
        pickle.loads(sent)
    with pytest.raises(LedgerError, match="another ledger"):
        ledger.spent()


def test_a_pickled_reader_stays_a_reader(tmp_path: Path) -> None:
    reader = pickle.loads(pickle.dumps(Ledger.read(made(tmp_path).path)))
    with pytest.raises(LedgerError, match="reading only"), reader.reserve(PureDP(0.1), purpose="x"):
        pass


def test_threads_share_one_budget(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    won: list[int] = []

    def spend() -> None:
        try:
            with ledger.reserve(PureDP(0.25), purpose="x"):
                won.append(1)
        except BudgetExceeded:
            pass

    team = [threading.Thread(target=spend) for _ in range(6)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    assert len(won) == len(ledger.entries()) == 4


def test_labels_are_one_printable_line(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    for label in ("", "  ", "a\nb", "\x1b[2J", "x" * 501, 7):
        with pytest.raises(InvalidInput, match="purpose"), ledger.reserve(PureDP(0.1), purpose=label):  # type: ignore[arg-type]
            pass
    with pytest.raises(InvalidInput, match="part"), ledger.reserve(PureDP(0.1), purpose="x", part=""):
        pass
    with pytest.raises(InvalidInput, match="Name both"), ledger.reserve(PureDP(0.1), purpose="x", split="s"):
        pass
    with pytest.raises(InvalidInput, match="event"), ledger.reserve("Gaussian", purpose="x"):  # type: ignore[arg-type]
        pass
    assert ledger.entries() == ()


def test_every_attempt_has_a_key_of_its_own(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    for _ in range(2):
        with ledger.reserve(PureDP(0.1), purpose="same"):
            pass
    keys = [row.key for row in ledger._book.rows()]
    assert len(set(keys)) == len(keys) == 5
    assert all(re.fullmatch("[0-9a-f]{32}", key) for key in keys)
    assert ledger.spent().epsilon == 0.2


def test_html_escapes_whatever_was_typed(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "a&b", dataset="<script>d", budget=BUDGET)
    with ledger.reserve(PureDP(0.1), purpose="<img src=x>", part="<b>", split='"s"'):
        pass
    page = ledger._repr_html_()
    assert "<script>" not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert "&lt;img src=x&gt;" in page
    assert "a&amp;b" in page


def test_nothing_but_declared_things_is_written(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    with ledger.reserve(PureDP(0.1), purpose="p"):
        pass
    opened, reserved, done = (row.content() for row in ledger._book.rows())
    fields = {"format", "ledger", "dataset", "budget", "mode", "bound", "order", "neighbours", "writer"}
    assert set(opened) == fields
    assert set(reserved) == {"begun", "bound_used", "additive", "charges", "stages", "writer"}
    assert set(reserved["stages"][0]) == {"purpose", "part", "split", "event", "loss", "delta"}
    assert done == {"of": 1, "stage": 0}


class TestSettling:
    def test_before_the_first_draw_it_pays_for_what_is_then_used(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        half = Repeated(PoissonSampled(0.01, Gaussian(2.0)), 5)
        with ledger.reserve(STEPS, purpose="x") as receipt:
            full = ledger.spent()
            receipt.settle(half)
            for _ in range(5):
                receipt.draw(PoissonSampled(0.01, Gaussian(2.0)))
            with pytest.raises(BudgetExceeded):
                receipt.draw(PoissonSampled(0.01, Gaussian(2.0)))
        (entry,) = ledger.entries()
        assert (entry.state, entry.event) == ("settled", half)
        assert ledger.spent() == entry.cost
        assert 0 < ledger.spent().epsilon < full.epsilon
        assert ledger.spent().delta == full.delta

    def test_a_stage_that_touched_nothing_settles_for_nothing(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(STEPS, purpose="x") as receipt:
            receipt.settle(nothing())
        assert ledger.spent() == Cost(0.0, 0.0)

    def test_basic_does_not_settle_a_composed_price_after_a_draw(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(STEPS, purpose="x") as receipt:
            receipt.draw(PoissonSampled(0.01, Gaussian(2.0)))
            with pytest.raises(InvalidInput, match="prices the commitment as a whole"):
                receipt.settle(Repeated(PoissonSampled(0.01, Gaussian(2.0)), 5))
            full = ledger.spent()
        assert ledger.spent() == full
        assert ledger.entries()[0].state == "committed"

    def test_declared_epsilons_settle_after_draws_too(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(Repeated(PureDP(0.1), 5), purpose="x") as receipt:
            receipt.draw(PureDP(0.1))
            receipt.settle(PureDP(0.1))
        assert ledger.spent() == Cost(0.1, 0.0)

    @pytest.mark.parametrize("bound", ["rdp", "gdp"])
    def test_sums_settle_at_any_time_for_all_that_was_drawn(self, tmp_path: Path, bound: str) -> None:
        ledger = made(tmp_path, bound=bound)
        with ledger.reserve(Repeated(Gaussian(20.0), 9), purpose="x") as receipt:
            receipt.draw(Gaussian(20.0))
            receipt.draw(Gaussian(20.0))
            with pytest.raises(InvalidInput, match="does not cover"):
                receipt.settle(Gaussian(20.0))
            receipt.settle(Repeated(Gaussian(20.0), 2))
        other = made(tmp_path, "b", bound=bound)
        with other.reserve(Repeated(Gaussian(20.0), 2), purpose="x"):
            pass
        assert ledger.spent() == other.spent()

    def test_no_settling_upwards(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        for smaller, larger in ((PureDP(0.1), PureDP(0.2)), (STEPS, Repeated(STEPS, 2)), (PureDP(0.1), STEPS)):
            with ledger.reserve(smaller, purpose="x") as receipt, pytest.raises(InvalidInput, match="costs more"):
                receipt.settle(larger)

    def test_after_a_draw_a_sum_settles_for_a_sum_only(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, budget=Budget(9.0, 1e-5))
        many = Repeated(PureDP(0.1), 60)  # 6 as a sum, less than 4.1 when composed
        reserved = Composed([ApproxDP(0.1, 1e-6), Repeated(PureDP(0.1), 40)])
        with ledger.reserve(reserved, purpose="x") as receipt:
            receipt.draw(PureDP(0.1))
            with pytest.raises(InvalidInput, match="costs more"):
                receipt.settle(many)
        with ledger.reserve(reserved, purpose="x") as receipt:
            receipt.settle(many)
        assert 3 < ledger.entries()[1].cost.epsilon < 4.1

    def test_a_pair_may_not_settle_for_a_larger_delta(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(ApproxDP(0.5, 1e-7), purpose="x") as receipt, pytest.raises(InvalidInput):
            receipt.settle(ApproxDP(0.1, 1e-6))


class TestPrecommitted:
    STAGES = (("bounds", PureDP(0.1)), Stage("train", STEPS, "train"), Stage("score", Gaussian(9.0), "held-out"))

    def test_every_stage_is_paid_at_once_and_runs_once(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, mode="precommitted")
        assert ledger.remaining() == Cost(1.0, 1e-5)
        committed = ledger.commit(self.STAGES)
        paid = ledger.spent()
        assert [entry.state for entry in ledger.entries()] == ["planned"] * 3
        with committed.stage("bounds") as receipt:
            receipt.draw(PureDP(0.1))
        with ledger.reserve(STEPS, purpose="train", part="train"):
            assert [entry.state for entry in ledger.entries()] == ["committed", "reserved", "planned"]
        for again in ("bounds", "other"):
            with pytest.raises(BudgetExceeded, match="begun already"), committed.stage(again):
                pytest.fail("the body ran")
        with pytest.raises(BudgetExceeded, match="each runs once"), ledger.reserve(PureDP(0.1), purpose="bounds"):
            pytest.fail("the body ran")
        with Ledger.open(ledger.path, dataset="d").committed().stage("score"):
            pass
        assert ledger.spent() == paid
        assert {entry.bound_used for entry in ledger.entries()} == {"precommitted:pld"}
        assert [entry.state for entry in ledger.entries()] == ["committed"] * 3

    def test_nothing_more_is_admitted(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, mode="precommitted")
        with ledger.reserve(PureDP(0.1), purpose="only"):
            pass
        head = ledger.head()
        assert ledger.remaining() == Cost(0.0, 0.0)
        assert not ledger.fits(PureDP(0.1))
        with pytest.raises(BudgetExceeded), ledger.reserve(PureDP(0.1), purpose="more"):
            pytest.fail("the body ran")
        with pytest.raises(BudgetExceeded, match="nothing more is admitted"):
            ledger.commit([("more", PureDP(0.1))])
        with pytest.raises(InvalidInput, match="admits nothing"):
            ledger.extend(Budget(2.0, 1e-5), reason="x")
        assert ledger.head() == head

    def test_a_second_commitment_is_refused_even_where_it_would_fit(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, mode="precommitted")
        ledger.commit([("a", ApproxDP(0.1, 1e-7))])
        assert not ledger.fits(ApproxDP(0.1, 1e-7))
        with pytest.raises(BudgetExceeded, match="nothing more is admitted"):
            ledger.commit([("b", ApproxDP(0.1, 1e-7))])
        assert len(ledger.entries()) == 1

    def test_stopping_early_still_reports_what_was_planned(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, mode="precommitted")
        with ledger.reserve(STEPS, purpose="train") as receipt:
            planned = ledger.spent()
            with pytest.raises(InvalidInput, match="planned"):
                receipt.settle(nothing())
        assert ledger.spent() == planned

    def test_a_stage_that_crashed_cannot_begin_again(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, mode="precommitted")
        committed = ledger.commit(self.STAGES)
        with pytest.raises(RuntimeError), committed.stage("train"):
            raise RuntimeError
        with pytest.raises(BudgetExceeded), committed.stage("train"):
            pytest.fail("the body ran")

    def test_it_can_be_extended_before_the_commitment(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, mode="precommitted")
        ledger.extend(Budget(3.0, 1e-5), reason="x")
        with ledger.reserve(PureDP(2.5), purpose="x"):
            pass
        assert ledger.spent().epsilon <= 2.5

    def test_what_does_not_fit_together_is_refused_together(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, mode="precommitted")
        with pytest.raises(BudgetExceeded):
            ledger.commit([("a", PureDP(0.6)), ("b", PureDP(0.6))])
        assert ledger.entries() == ()
        with pytest.raises(InvalidInput, match="empty"):
            ledger.commit([])


class TestCommitmentsOfAdaptiveLedgers:
    def test_stages_are_composed_by_one_pld(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        committed = ledger.commit([("a", STEPS), ("b", STEPS)], delta=1e-6)
        alone = [entry.cost.epsilon for entry in ledger.entries()]
        assert ledger.spent().delta == 1e-6
        assert max(alone) < ledger.spent().epsilon < sum(alone)
        with committed.stage("a") as receipt, pytest.raises(InvalidInput, match="share one price"):
            receipt.settle(nothing())
        with pytest.raises(BudgetExceeded), committed.reserve(Gaussian(50.0), purpose="b"):
            pytest.fail("the body ran")
        with committed.reserve(STEPS, purpose="b"):
            pass
        assert [entry.state for entry in committed.entries()] == ["committed"] * 2

    def test_stages_of_a_sum_settle_alone(self, tmp_path: Path) -> None:
        ledger = made(tmp_path, bound="gdp")
        committed = ledger.commit([("a", Gaussian(10.0)), ("b", Gaussian(10.0))])
        both = ledger.spent()
        with committed.stage("b") as receipt:
            receipt.settle(nothing())
        with committed.stage("a"):
            pass
        assert ledger.spent().epsilon < both.epsilon
        assert [entry.state for entry in ledger.entries()] == ["committed", "settled"]

    def test_each_handle_begins_the_stages_of_its_own_commitment(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        first, second = (ledger.commit([("a", PureDP(0.25))]) for _ in range(2))
        with second.stage("a"):
            pass
        assert [entry.state for entry in ledger.entries()] == ["planned", "committed"]
        with pytest.raises(BudgetExceeded), second.reserve(PureDP(0.25), purpose="a"):
            pytest.fail("the body ran")
        with first.reserve(PureDP(0.25), purpose="a"):
            pass
        assert [entry.state for entry in ledger.entries()] == ["committed", "committed"]

    def test_a_plain_reserve_is_a_new_spend(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        ledger.commit([("a", PureDP(0.25))])
        with ledger.reserve(PureDP(0.25), purpose="a"):
            pass
        assert ledger.spent().epsilon == 0.5
        with pytest.raises(InvalidInput, match="seq"):
            ledger.committed()
        assert ledger.committed(1).entries()[0].state == "planned"


class TestResuming:
    def test_an_interrupted_stage_goes_on_without_paying_again(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        step = PoissonSampled(0.01, Gaussian(2.0))
        with pytest.raises(RuntimeError), ledger.reserve(STEPS, purpose="x"):
            raise RuntimeError
        paid = ledger.spent()
        with ledger.resume(1, drawn=Repeated(step, 8)) as receipt:
            receipt.draw(step)
            receipt.draw(step)
            with pytest.raises(BudgetExceeded):
                receipt.draw(step)
        assert ledger.spent() == paid
        assert ledger.entries()[0].state == "committed"

    def test_only_what_was_interrupted_and_reserved(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(PureDP(0.1), purpose="x"):
            pass
        for seq in (1, 2, 9):
            with pytest.raises(InvalidInput, match="not interrupted"), ledger.resume(seq):
                pytest.fail("the body ran")
        with pytest.raises(RuntimeError), ledger.reserve(PureDP(0.1), purpose="y"):
            raise RuntimeError
        head = ledger.head()
        with pytest.raises(InvalidInput, match="drawn"), ledger.resume(3, drawn=Composed([PureDP(0.1), PureDP(0.1)])):
            pytest.fail("the body ran")
        assert ledger.head() == head

    @pytest.mark.parametrize("bound", ["basic", "rdp", "gdp"])
    @pytest.mark.parametrize("drawn", [None, Repeated(Gaussian(20.0), 9)])
    def test_a_resumed_stage_never_settles(self, tmp_path: Path, bound: str, drawn: Event | None) -> None:
        ledger = made(tmp_path, bound=bound)
        with pytest.raises(RuntimeError), ledger.reserve(Repeated(Gaussian(20.0), 10), purpose="x") as receipt:
            _draw_and_fail(receipt, Gaussian(20.0), 9)
        paid = ledger.spent()
        with ledger.resume(1, drawn=drawn) as receipt:
            with pytest.raises(InvalidInput, match="before any resume"):
                receipt.settle(Repeated(Gaussian(20.0), 9))
            receipt.draw(Gaussian(20.0))
        assert ledger.spent() == paid
        assert ledger.entries()[0].state == "committed"

    def test_a_stage_may_be_resumed_again_and_stays_reserved_until_it_ends(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with pytest.raises(RuntimeError), ledger.reserve(PureDP(0.1), purpose="x"):
            raise RuntimeError
        for _ in range(2):
            with pytest.raises(RuntimeError), ledger.resume(1):
                raise RuntimeError
            assert ledger.entries()[0].state == "reserved"
        with ledger.resume(1):
            pass
        assert ledger.entries()[0].state == "committed"

    def test_no_settle_row_follows_a_resume_row(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with pytest.raises(RuntimeError), ledger.reserve(PureDP(0.1), purpose="x"):
            raise RuntimeError
        with pytest.raises(RuntimeError), ledger.resume(1):
            raise RuntimeError
        head = ledger.head()
        with pytest.raises(LedgerError, match="is resumed, not reserved"), ledger._book.page() as page:
            page.append("settle", book.settle_body(1, 0, nothing(), Amount()))
        assert ledger.head() == head

    def test_an_end_that_was_booked_already_is_not_booked_twice(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with pytest.raises(RuntimeError), ledger.reserve(PureDP(0.1), purpose="x"):
            raise RuntimeError
        body, lock = ExitStack(), tmp_path / ".a.ledger.1.0.lock"
        body.enter_context(ledger.resume(1))
        lock.unlink()
        lock.touch()  # by hand, against the advice
        with ledger.resume(1):
            pass
        with pytest.warns(RuntimeWarning, match="was not booked.*a second holder may have existed"):
            body.close()
        assert ledger.entries()[0].state == "committed"
        ledger.verify()
