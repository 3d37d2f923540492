"""A receipt admits what was reserved: as often, at that noise, in that process, and nothing else."""

from __future__ import annotations

import copy
import math
import multiprocessing
import pickle
import threading
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.privacy.events import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    OneOf,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
)
from dpilot.privacy.receipt import Receipt, TrialReceipts, divide, step_noise_multiplier

STEP = PoissonSampled(0.1, Gaussian(1.0))


def admitted(receipt, event, most=50):
    """How many releases of ``event`` a receipt still admits."""
    for times in range(most):
        try:
            receipt.draw(event)
        except BudgetExceeded:
            return times
    return most


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_each_release_is_admitted_as_often_as_it_was_reserved(times, outer, single):
    event = Composed([Repeated(Repeated(STEP, times), outer), *[Gaussian(2.0)] * single, PureDP(1.0)])
    receipt = Receipt(event)
    assert admitted(receipt, Gaussian(2.0)) == single
    assert admitted(receipt, STEP) == times * outer
    assert admitted(receipt, PureDP(1.0)) == 1
    assert admitted(receipt, STEP) == 0


@pytest.mark.parametrize(
    "other", [Gaussian(1.0), PoissonSampled(0.2, Gaussian(1.0)), PoissonSampled(0.1, Gaussian(0.9)), PureDP(0.1)]
)
def test_other_releases_are_refused_and_take_nothing(other):
    receipt = Receipt(STEP)
    with pytest.raises(BudgetExceeded, match="not reserved"):
        receipt.draw(other)
    assert admitted(receipt, STEP) == 1


def test_a_full_batch_is_drawn_either_way():
    for reserved in (Gaussian(1.0), PoissonSampled(1.0, Gaussian(1.0)), Repeated(Gaussian(1.0), 1)):
        for drawn in (Gaussian(1.0), PoissonSampled(1, Gaussian(1.0))):
            assert admitted(Receipt(reserved), drawn) == 1


def test_a_closed_receipt_admits_nothing():
    receipt = Receipt(Repeated(STEP, 3))
    receipt.draw(STEP)
    receipt.close()
    assert admitted(receipt, STEP) == 0


def test_what_was_drawn_before_is_taken_off():
    assert admitted(Receipt(Repeated(STEP, 5), drawn=Repeated(STEP, 3)), STEP) == 2
    with pytest.raises(InvalidInput, match="part of the reserved"):
        Receipt(Repeated(STEP, 5), drawn=Repeated(STEP, 6))


def agreed(event, begun):
    """A ledger that agrees to everything."""


def test_settling_leaves_the_rest_of_the_smaller_event():
    receipt = Receipt(Repeated(STEP, 5), agree=agreed)
    receipt.draw(STEP)
    receipt.settle(Repeated(STEP, 3))
    assert receipt.settled == Repeated(STEP, 3)
    assert admitted(receipt, STEP) == 2


def test_settling_covers_what_was_drawn():
    receipt = Receipt(Repeated(STEP, 5), agree=agreed)
    receipt.draw(STEP)
    receipt.draw(STEP)
    with pytest.raises(InvalidInput, match="drawn already"):
        receipt.settle(STEP)
    assert admitted(receipt, STEP) == 3


def test_the_ledger_is_told_whether_anything_was_drawn():
    told = []
    receipt = Receipt(Repeated(STEP, 5), agree=lambda event, begun: told.append(begun))
    receipt.settle(Repeated(STEP, 4))
    receipt.draw(STEP)
    receipt.settle(Repeated(STEP, 3))
    assert told == [False, True]


def test_only_an_open_receipt_of_a_ledger_settles():
    closed = Receipt(STEP, agree=agreed)
    closed.close()
    for receipt in (closed, Receipt(STEP)):
        with pytest.raises(InvalidInput, match="settle"):
            receipt.settle(STEP)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_receipt_cannot_be_copied(copier):
    with pytest.raises(InvalidInput, match="one process"):
        copier(Receipt(ExponentialMechanism(1.0)))


def in_child(receipt, pipe):
    pipe.send(admitted(receipt, STEP))


def test_a_forked_child_draws_nothing():
    receipt = Receipt(Repeated(STEP, 3))
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(receipt, there))
    child.start()
    assert here.poll(30)
    assert here.recv() == 0
    child.join()
    assert admitted(receipt, STEP) == 3


def settle_in_child(receipt, pipe):
    try:
        receipt.settle(STEP)
    except InvalidInput as problem:
        pipe.send(str(problem))
    else:
        pipe.send("settled")


def test_a_forked_child_settles_nothing():
    told = []
    receipt = Receipt(Repeated(STEP, 3), agree=lambda event, begun: told.append(event))
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=settle_in_child, args=(receipt, there))
    child.start()
    assert here.poll(30)
    assert "in the process that reserved it" in here.recv()
    child.join()
    assert admitted(receipt, STEP) == 3


def test_threads_draw_each_release_once():
    receipt, drawn = Receipt(Repeated(STEP, 500)), []

    def draw():
        drawn.append(admitted(receipt, STEP, most=100))

    team = [threading.Thread(target=draw) for _ in range(8)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    assert sum(drawn) == 500


def test_a_replay_counts_as_drawn_when_it_settles():
    told = []
    receipt = Receipt(Repeated(STEP, 3), drawn=STEP, agree=lambda event, begun: told.append(begun))
    receipt.settle(STEP)
    assert told == [True]
    assert admitted(receipt, STEP) == 0


def test_a_ledger_that_refuses_to_settle_changes_nothing():
    def refuse(event, begun):
        raise InvalidInput("no")

    receipt = Receipt(Repeated(STEP, 3), agree=refuse)
    with pytest.raises(InvalidInput, match="no"):
        receipt.settle(STEP)
    assert receipt.settled is None
    assert admitted(receipt, STEP) == 3


@given(st.floats(1e-3, 1e6), st.integers(1, 10_000))
def test_divided_steps_cost_no_more_than_the_whole_in_exact_arithmetic(whole, steps):
    each = step_noise_multiplier(whole, steps)
    assert steps / Fraction(each) ** 2 <= 1 / Fraction(whole) ** 2
    assert each <= whole * math.sqrt(steps) * (1 + 1e-14)


def test_dividing_draws_the_whole_once_and_admits_its_steps_only():
    receipt = Receipt(Gaussian(3.0))
    steps = divide(receipt, 3.0, 7)
    assert admitted(receipt, Gaussian(3.0)) == 0
    assert admitted(steps, Gaussian(3.0)) == 0
    assert admitted(steps, Gaussian(step_noise_multiplier(3.0, 7))) == 7
    with pytest.raises(BudgetExceeded):
        divide(receipt, 3.0, 7)


def test_dividing_with_less_noise_than_was_reserved_is_refused():
    receipt = Receipt(Gaussian(3.0))
    with pytest.raises(BudgetExceeded):
        divide(receipt, 2.9, 7)
    assert admitted(receipt, Gaussian(3.0)) == 1


def test_a_sampled_whole_divides_on_its_sample_and_again():
    receipt = Receipt(PoissonSampled(0.1, Gaussian(2.0)))
    with pytest.raises(BudgetExceeded):
        divide(receipt, 2.0, 4)
    pieces = divide(receipt, 2.0, 4, sample_rate=0.1)
    assert divide(pieces, 4.0, 9).event == Repeated(Gaussian(12.0), 9)
    assert admitted(pieces, Gaussian(4.0)) == 3


def test_what_was_divided_ends_with_the_whole():
    receipt = Receipt(Gaussian(3.0))
    steps = divide(divide(receipt, 3.0, 1), 3.0, 4)
    receipt.close()
    assert admitted(steps, Gaussian(6.0)) == 0


SELECTION = RepeatAndSelect(OneOf([Repeated(STEP, 3), Repeated(STEP, 5)]), 4)


def test_a_selection_hands_out_its_trials_and_no_more():
    receipts = TrialReceipts(Receipt(SELECTION), SELECTION, trials=2)
    assert admitted(receipts.of(Repeated(STEP, 5)), STEP) == 5
    assert admitted(receipts.of(Repeated(STEP, 3)), STEP) == 3
    with pytest.raises(BudgetExceeded, match="new spend"):
        receipts.of(Repeated(STEP, 3))


def test_a_trial_does_what_was_announced_only():
    receipts = TrialReceipts(Receipt(SELECTION), SELECTION, trials=2)
    with pytest.raises(BudgetExceeded, match="not announced"):
        receipts.of(Repeated(STEP, 4))
    assert admitted(receipts.of(Repeated(STEP, 3)), STEP) == 3


def test_a_selection_is_drawn_once_and_its_trials_end_with_it():
    receipt = Receipt(SELECTION)
    trial = TrialReceipts(receipt, SELECTION, trials=3).of(Repeated(STEP, 3))
    with pytest.raises(BudgetExceeded):
        TrialReceipts(receipt, SELECTION, trials=3)
    receipt.close()
    assert admitted(trial, STEP) == 0


def test_no_trials_at_all_and_the_number_does_not_show():
    receipts = TrialReceipts(Receipt(SELECTION), SELECTION, trials=0)
    with pytest.raises(BudgetExceeded):
        receipts.of(Repeated(STEP, 3))
    assert repr(receipts).split(" at ")[0] == "<dpilot.privacy.receipt.TrialReceipts object"


def trial_in_child(receipts, pipe):
    pipe.send(admitted(receipts.of(Repeated(STEP, 3)), STEP))


def test_a_forked_child_runs_no_trial():
    receipts = TrialReceipts(Receipt(SELECTION), SELECTION, trials=3)
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=trial_in_child, args=(receipts, there))
    child.start()
    assert here.poll(30)
    assert here.recv() == 0
    child.join()
