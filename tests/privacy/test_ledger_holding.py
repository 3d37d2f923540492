"""One stage, one holder: who runs it books its end, and nobody goes on with it meanwhile."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian, Repeated, nothing
from dpilot.privacy.ledger import Ledger
from dpilot.privacy.receipt import Receipt

STEP = Gaussian(20.0)


def made(tmp_path: Path, bound: str = "gdp") -> Ledger:
    return Ledger.open(tmp_path / "a.ledger", dataset="d", budget=Budget(3.0, 1e-5), bound=bound)


def in_fork(action: Callable[[], object]) -> str:
    """What ``action`` answers or raises in a forked child."""
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_answer, args=(action, there))
    child.start()
    assert here.poll(30)
    answer = str(here.recv())
    child.join()
    return answer


def _answer(action: Callable[[], object], pipe: Connection) -> None:
    try:
        pipe.send(repr(action()))
    except Exception as problem:
        pipe.send(repr(problem))


class TestForkedChildren:
    def test_a_child_that_leaves_the_body_books_nothing(self, tmp_path: Path) -> None:
        ledger, body = made(tmp_path), ExitStack()
        receipt = body.enter_context(ledger.reserve(Repeated(STEP, 3), purpose="x"))
        assert in_fork(body.close) == "None"
        assert ledger.entries()[0].state == "reserved"
        receipt.draw(STEP)
        body.close()
        assert ledger.entries()[0].state == "committed"

    def test_a_child_cannot_settle_what_its_parent_draws(self, tmp_path: Path) -> None:
        ledger, body = made(tmp_path), ExitStack()
        receipt = body.enter_context(ledger.reserve(Repeated(STEP, 3), purpose="x"))
        paid = ledger.spent()

        def settle_and_leave(receipt: Receipt = receipt) -> None:
            with body:
                receipt.settle(nothing())

        assert "in the process that reserved it" in in_fork(settle_and_leave)
        for _ in range(3):
            receipt.draw(STEP)
        body.close()
        assert ledger.spent() == paid
        assert [row.kind for row in ledger._book.rows()] == ["open", "reserve", "commit"]

    def test_a_settlement_agreed_before_the_fork_is_booked_once(self, tmp_path: Path) -> None:
        ledger, body = made(tmp_path), ExitStack()
        receipt = body.enter_context(ledger.reserve(Repeated(STEP, 3), purpose="x"))
        receipt.settle(STEP)
        in_fork(body.close)
        body.close()
        assert [row.kind for row in ledger._book.rows()] == ["open", "reserve", "settle"]
