"""A receipt is a right: used once, by one process, and never more than was reserved."""

from __future__ import annotations

import copy
import os
import pickle
import threading

import pytest

from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.privacy.events import Composed, Event, Gaussian, PoissonSampled, PureDP, Repeated
from dpilot.privacy.receipt import Receipt


def test_exactly_what_was_reserved_can_be_drawn() -> None:
    receipt = Receipt(Composed([Repeated(Gaussian(2.0), 2), PureDP(0.1)]))
    for event in (Gaussian(2.0), PureDP(0.1), Gaussian(2.0)):
        receipt.draw(event)
    for event in (Gaussian(2.0), PureDP(0.1), Gaussian(3.0), PoissonSampled(0.5, Gaussian(2.0))):
        with pytest.raises(BudgetExceeded):
            receipt.draw(event)


def test_a_full_batch_is_the_batch() -> None:
    receipt = Receipt(Repeated(PoissonSampled(1.0, Gaussian(2.0)), 2))
    receipt.draw(Gaussian(2.0))
    receipt.draw(PoissonSampled(1.0, Repeated(Gaussian(2.0), 1)))
    with pytest.raises(BudgetExceeded):
        receipt.draw(Gaussian(2.0))


def test_a_refused_draw_takes_nothing() -> None:
    receipt = Receipt(Gaussian(2.0))
    with pytest.raises(BudgetExceeded):
        receipt.draw(Gaussian(1.0))
    receipt.draw(Gaussian(2.0))


def test_closing_ends_it() -> None:
    receipt = Receipt(Gaussian(2.0))
    receipt.close()
    with pytest.raises(BudgetExceeded):
        receipt.draw(Gaussian(2.0))


def test_it_cannot_be_copied() -> None:
    receipt = Receipt(Gaussian(2.0))
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidInput, match="one process"):
            way(receipt)


def test_it_is_worth_nothing_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = Receipt(Gaussian(2.0))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(BudgetExceeded):
        receipt.draw(Gaussian(2.0))


def test_threads_draw_each_release_once() -> None:
    receipt, drawn = Receipt(Repeated(Gaussian(2.0), 500)), []

    def draw() -> None:
        for _ in range(100):
            try:
                receipt.draw(Gaussian(2.0))
                drawn.append(1)
            except BudgetExceeded:
                pass

    team = [threading.Thread(target=draw) for _ in range(8)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    assert len(drawn) == 500


def test_what_was_drawn_before_is_gone() -> None:
    receipt = Receipt(Repeated(Gaussian(2.0), 3), drawn=Repeated(Gaussian(2.0), 2))
    receipt.draw(Gaussian(2.0))
    with pytest.raises(BudgetExceeded):
        receipt.draw(Gaussian(2.0))
    with pytest.raises(InvalidInput, match="drawn"):
        Receipt(Gaussian(2.0), drawn=Repeated(Gaussian(2.0), 2))


class TestSettling:
    def test_it_asks_whether_anything_was_drawn(self) -> None:
        asked: list[tuple[Event, bool]] = []
        receipt = Receipt(Repeated(Gaussian(2.0), 3), agree=lambda event, drawn: asked.append((event, drawn)))
        receipt.settle(Repeated(Gaussian(2.0), 2))
        receipt.draw(Gaussian(2.0))
        receipt.settle(Gaussian(2.0))
        assert asked == [(Repeated(Gaussian(2.0), 2), False), (Gaussian(2.0), True)]
        assert receipt.settled == Gaussian(2.0)
        with pytest.raises(BudgetExceeded):
            receipt.draw(Gaussian(2.0))

    def test_a_replay_counts_as_drawn(self) -> None:
        asked: list[bool] = []
        receipt = Receipt(Repeated(Gaussian(2.0), 3), drawn=Gaussian(2.0), agree=lambda _, drawn: asked.append(drawn))
        receipt.settle(Gaussian(2.0))
        assert asked == [True]
        with pytest.raises(BudgetExceeded):
            receipt.draw(Gaussian(2.0))

    def test_it_must_cover_what_was_drawn(self) -> None:
        receipt = Receipt(Repeated(Gaussian(2.0), 3), agree=lambda *_: None)
        receipt.draw(Gaussian(2.0))
        for event in (Composed(()), Gaussian(4.0)):
            with pytest.raises(InvalidInput, match="does not cover"):
                receipt.settle(event)
        assert receipt.settled is None
        receipt.draw(Gaussian(2.0))

    def test_a_refusal_changes_nothing(self) -> None:
        def refuse(event: Event, drawn: bool) -> None:
            raise InvalidInput("no")

        receipt = Receipt(Repeated(Gaussian(2.0), 3), agree=refuse)
        with pytest.raises(InvalidInput, match="no"):
            receipt.settle(Gaussian(2.0))
        for _ in range(3):
            receipt.draw(Gaussian(2.0))
        assert receipt.settled is None

    def test_only_an_open_receipt_of_a_ledger_settles(self) -> None:
        with pytest.raises(InvalidInput, match="cannot be lowered"):
            Receipt(Gaussian(2.0)).settle(Gaussian(2.0))
        receipt = Receipt(Gaussian(2.0), agree=lambda *_: None)
        receipt.close()
        with pytest.raises(InvalidInput, match="cannot be lowered"):
            receipt.settle(Gaussian(2.0))
