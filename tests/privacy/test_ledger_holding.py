"""One stage, one holder: who runs it books its end, and nobody goes on with it meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from dpilot.errors import LedgerError
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian, Repeated, nothing
from dpilot.privacy.ledger import Ledger, book, stage_lock, store
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


def crashed(tmp_path: Path) -> Ledger:
    ledger = made(tmp_path)
    with pytest.raises(RuntimeError), ledger.reserve(Repeated(STEP, 2), purpose="x"):
        raise RuntimeError
    return ledger


def locks(tmp_path: Path) -> list[str]:
    return sorted(file.name for file in tmp_path.iterdir() if file.suffix == ".lock")


def resumes(ledger: Ledger, seq: int = 1) -> str:
    """What a resume answers, without an end."""
    try:
        with ledger.resume(seq):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        return "resumed"
    except LedgerError as problem:
        return str(problem)


RUNNING = "stage 0 of row 1 is running"


class TestOneHolder:
    def test_a_running_stage_is_not_resumed(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(Repeated(STEP, 2), purpose="x"):
            head = ledger.head()
            assert RUNNING in resumes(ledger)
            assert RUNNING in in_fork(lambda: resumes(ledger))
            assert ledger.head() == head
        assert [row.kind for row in ledger._book.rows()] == ["open", "reserve", "commit"]

    def test_a_resumed_stage_is_not_resumed_twice(self, tmp_path: Path) -> None:
        ledger = crashed(tmp_path)
        with ledger.resume(1):
            assert RUNNING in resumes(ledger)
        assert [row.kind for row in ledger._book.rows()] == ["open", "reserve", "resume", "commit"]

    def test_a_stage_that_was_left_by_an_exception_is_resumed_any_time(self, tmp_path: Path) -> None:
        ledger = crashed(tmp_path)
        assert [resumes(ledger) for _ in range(3)] == ["resumed"] * 3

    def test_the_lock_of_a_committed_stage_is_its_own(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        committed = ledger.commit([("a", STEP), ("b", STEP)])
        with committed.stage("b"):
            assert locks(tmp_path) == [".a.ledger.1.1.lock"]
            with committed.stage("a"):
                assert locks(tmp_path) == [".a.ledger.1.0.lock", ".a.ledger.1.1.lock"]
                assert RUNNING in resumes(ledger)
        assert locks(tmp_path) == []

    def test_files_go_with_the_end_and_stay_with_the_unfinished(self, tmp_path: Path) -> None:
        ledger = crashed(tmp_path)
        assert locks(tmp_path) == [".a.ledger.1.0.lock"]
        with ledger.reserve(STEP, purpose="y") as receipt:
            receipt.settle(nothing())
        assert locks(tmp_path) == [".a.ledger.1.0.lock"]
        with ledger.resume(1):
            pass
        assert locks(tmp_path) == []

    def test_no_handle_is_left_open(self, tmp_path: Path) -> None:
        ledger = crashed(tmp_path)
        with ledger.resume(1):
            resumes(ledger)
            assert len(stage_lock._open_here) == 1
        assert stage_lock._open_here == set()

    def test_a_refused_spend_leaves_no_lock_held(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ledger = made(tmp_path)

        def fail(*_: object) -> None:
            raise LedgerError("the disk is full")

        with monkeypatch.context() as broken:
            broken.setattr(book, "follow", fail)
            with pytest.raises(LedgerError, match="full"), ledger.reserve(STEP, purpose="x"):
                pytest.fail("the body ran")
        real = store._connect

        def unwilling(path: Path, mode: str) -> Any:
            return _NoCommit(real(path, mode))

        with monkeypatch.context() as broken:
            broken.setattr(store, "_connect", unwilling)
            with pytest.raises(LedgerError, match="disk I/O"), ledger.reserve(STEP, purpose="x"):
                pytest.fail("the body ran")
        assert stage_lock._open_here == set()
        assert ledger.entries() == ()
        with ledger.reserve(STEP, purpose="x"):
            pass
        assert locks(tmp_path) == []


class _NoCommit:
    """A connection to a disk that fails at the last moment."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: Any) -> Any:
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *values)

    def close(self) -> None:
        self._connection.close()


class TestTheFile:
    def test_a_removed_file_hides_no_holder(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        with ledger.reserve(Repeated(STEP, 2), purpose="x"):
            (tmp_path / ".a.ledger.1.0.lock").unlink()
            head = ledger.head()
            assert "is missing" in resumes(ledger)
            assert ledger.head() == head
            assert locks(tmp_path) == []
        assert ledger.entries()[0].state == "committed"

    def test_who_makes_it_again_goes_on(self, tmp_path: Path) -> None:
        ledger = crashed(tmp_path)
        (tmp_path / ".a.ledger.1.0.lock").unlink()
        assert "then make the file, empty" in resumes(ledger)
        (tmp_path / ".a.ledger.1.0.lock").touch()
        assert resumes(ledger) == "resumed"

    @pytest.mark.parametrize("kind", ["folder", "link"])
    def test_nothing_is_spent_where_it_cannot_be_made(self, tmp_path: Path, kind: str) -> None:
        ledger = made(tmp_path)
        lock = tmp_path / ".a.ledger.1.0.lock"
        if kind == "folder":
            lock.mkdir()
        else:
            lock.symlink_to(tmp_path / "elsewhere")
        said = r"lock cannot be opened \(.*Nothing was written"
        with pytest.raises(LedgerError, match=said), ledger.reserve(STEP, purpose="x"):
            pytest.fail("the body ran")
        assert ledger.entries() == ()
        assert not (tmp_path / "elsewhere").exists()

    def test_a_reader_resumes_nothing(self, tmp_path: Path) -> None:
        assert "reading only" in resumes(Ledger.read(crashed(tmp_path).path))

    def test_where_there_is_no_flock_nothing_is_resumed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "fcntl", None)
        assert "no flock" in resumes(crashed(tmp_path))

    def test_a_file_left_by_a_spend_that_was_never_written_is_taken_over(self, tmp_path: Path) -> None:
        ledger = made(tmp_path)
        (tmp_path / ".a.ledger.1.0.lock").touch()
        with ledger.reserve(STEP, purpose="x"):
            assert RUNNING in resumes(ledger)


VICTIM = """
import os, sys, time
from dpilot.privacy.events import Gaussian
from dpilot.privacy.ledger import Ledger
with Ledger.open(sys.argv[1], dataset="d").reserve(Gaussian(20.0), purpose="x"):
    child = os.fork() if sys.argv[2] == "fork" else 0
    if child == 0:
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["plain", "fork"])
def test_a_killed_holder_is_told_from_a_running_one_even_if_its_children_live(tmp_path: Path, kind: str) -> None:
    ledger = made(tmp_path)
    command = [sys.executable, "-c", VICTIM, str(ledger.path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            before = resumes(ledger)
            process.kill()
            process.wait()
            after = resumes(ledger)
        finally:
            if child != process.pid:
                os.kill(child, signal.SIGKILL)
    assert RUNNING in before
    assert after == "resumed"
