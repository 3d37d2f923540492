"""Processes that die, race or run out of disk while they spend; run as ``python -m tests.privacy.ledger_victim``.

Each scenario prints one JSON document. It forks, which the test process itself should not.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dpilot.errors import BudgetExceeded, LedgerError
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Event, Gaussian, PureDP
from dpilot.privacy.ledger import Ledger, book, store

HUGE = Budget(1e6, 1e-5)


def spend(path: str, witness: str) -> None:
    """One spend whose body leaves a byte behind: evidence that it began."""
    ledger = Ledger.open(path, dataset="d")
    with ledger.reserve(PureDP(1.0), purpose="spend") as receipt:
        touch(witness)
        receipt.draw(PureDP(1.0))


def look_after_spend(path: str, witness: str) -> dict[str, Any]:
    """A spend that may be killed from outside."""
    spend(path, witness)
    return look(path, witness)


def touch(witness: str) -> None:
    handle = os.open(witness, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(handle, b".")
    os.close(handle)


def bodies(witness: str) -> int:
    return os.path.getsize(witness) if os.path.exists(witness) else 0


def forked(action: Callable[[], None]) -> int:
    """Run ``action`` in a child; its status, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            action()
        except BaseException as problem:
            print(repr(problem), file=sys.stderr)
            code = 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def look(path: str, witness: str) -> dict[str, Any]:
    """What is left behind, through a reader and through a writer, both of which check every row."""
    read = Ledger.read(path)
    read.verify()
    again = Ledger.open(path, dataset="d")
    again.verify()
    assert again.entries() == read.entries()
    return {"entries": len(again.entries()), "bodies": bodies(witness), "epsilon": again.spent().epsilon}


def at_every_statement(folder: str, witnesses: str | None = None) -> list[dict[str, Any]]:
    """Kill before the k-th SQL statement, for every k, until a spend survives."""
    found = []
    for k in range(1, 1000):
        path, witness = f"{folder}/{k}.ledger", f"{witnesses or folder}/{k}.witness"
        Ledger.open(path, dataset="d", budget=HUGE)
        status = forked(lambda k=k, path=path, witness=witness: _dying_at(k, lambda: spend(path, witness)))
        found.append({"status": status, **look(path, witness)})
        if status == 0:
            return found
    raise AssertionError("the spend never ended")


def creating_at_every_statement(folder: str) -> list[dict[str, Any]]:
    """Kill at every statement of creating a ledger; afterwards it can be created or is there, whole."""
    found = []
    for k in range(1, 1000):
        path = f"{folder}/{k}.ledger"
        create = lambda path=path: Ledger.open(path, dataset="d", budget=HUGE)  # noqa: E731
        status = forked(lambda k=k, create=create: _dying_at(k, create))
        there = os.path.exists(path)
        create().verify()
        found.append({"status": status, "there": there})
        if status == 0:
            return found
    raise AssertionError("the creation never ended")


def _dying_at(k: int, action: Callable[[], Any]) -> None:
    seen = 0
    real = store._connect

    def count(statement: str) -> None:
        nonlocal seen
        seen += 1
        if seen == k:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect(path: Path, mode: str) -> sqlite3.Connection:
        connection = real(path, mode)
        connection.set_trace_callback(count)
        return connection

    store._connect = connect
    with suppress(ImportError):
        from psycopg import Connection

        execute = Connection.execute

        def counted(self: Any, *arguments: Any, **options: Any) -> Any:
            count("")
            return execute(self, *arguments, **options)

        Connection.execute = counted
    action()


def at_random_moments(folder: str, kills: int, witnesses: str | None = None) -> list[dict[str, Any]]:
    """Kill a process that spends in a loop, after a random time; again on the same file, for a while."""
    found = []
    chance = random.Random(7)
    for k in range(kills):
        path, witness = f"{folder}/{k // 25}.ledger", f"{witnesses or folder}/{k // 25}.witness"
        Ledger.open(path, dataset="d", budget=HUGE)
        before = bodies(witness)
        child = os.fork()
        if child == 0:
            while True:
                spend(path, witness)
        time.sleep(chance.uniform(0.0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found.append({"began": bodies(witness) - before, **look(path, witness)})
    return found


def spend_on(path: str, witness: str) -> None:
    """Spend until the server is gone."""
    while True:
        spend(path, witness)


def create_at_once(path: str, workers: int) -> list[bool]:
    """Processes that wait for each other, then all make one ledger: who says to have made it."""
    context = get_context("fork")
    barrier, queue = context.Barrier(workers), context.Queue()
    team = [context.Process(target=_creator, args=(path, barrier, queue)) for _ in range(workers)]
    for worker in team:
        worker.start()
    answers = [queue.get(timeout=120) for _ in team]
    for worker in team:
        worker.join()
    return answers


def _creator(path: str, barrier: Any, queue: Any) -> None:
    barrier.wait(timeout=60)
    queue.put(Ledger.create(path, dataset="d", budget=HUGE))
    Ledger.open(path, dataset="d", budget=HUGE)


def race(folder: str, workers: int, rounds: int) -> list[dict[str, Any]]:
    """Long-lived workers wait for each other, then all go for the last of one budget; one ledger a round."""
    Ledger.open(f"{folder}/warm", dataset="d", budget=Budget(1.0, 1e-5), bound="gdp").fits(Gaussian(9.0))  # imports
    context = get_context("fork")
    barrier, queue = context.Barrier(workers), context.Queue()
    team = [context.Process(target=_racer, args=(folder, rounds, barrier, queue)) for _ in range(workers)]
    for worker in team:
        worker.start()
    won = [0] * rounds
    for _ in range(workers):
        answer = queue.get(timeout=550)
        if isinstance(answer, str):
            raise AssertionError(answer)
        for each, count in enumerate(answer):
            won[each] += count
    for worker in team:
        worker.join()
    found = []
    for each in range(rounds):
        ledger = Ledger.read(f"{folder}/{each}.ledger")
        ledger.verify()
        spent = ledger.spent()
        kind = RACES[each % len(RACES)]
        found.append(
            {
                "bound": kind[0],
                "won": won[each],
                "entries": len(ledger.entries()),
                "epsilon": spent.epsilon,
                "delta": spent.delta,
                "done": [entry.state for entry in ledger.entries()] == ["committed"] * won[each],
            }
        )
    return found


RACES: tuple[tuple[str, Event], ...] = (("basic", PureDP(0.25)), ("gdp", Gaussian(9.0)), ("basic", Gaussian(16.0)))


def _racer(folder: str, rounds: int, barrier: Any, queue: Any) -> None:
    try:
        queue.put([_round(folder, each, barrier) for each in range(rounds)])
    except Exception as problem:
        barrier.abort()
        queue.put(repr(problem))


def _round(folder: str, each: int, barrier: Any) -> int:
    bound, event = RACES[each % len(RACES)]
    barrier.wait(timeout=120)
    won = 0
    for _ in range(2):
        ledger = Ledger.open(f"{folder}/{each}.ledger", dataset="d", budget=Budget(1.0, 1e-5), bound=bound)
        try:
            with ledger.reserve(event, purpose="race") as receipt:
                receipt.draw(event)
                won += 1
        except BudgetExceeded:
            break
    return won


def full_disk(path: str, witness: str, room: int) -> dict[str, Any]:
    """Spend while the file may not grow by more than ``room`` bytes, until that fails."""

    def action() -> None:
        size = os.path.getsize(path) + room
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        _spend_until_refused(path, witness)

    return {"status": forked(action), **look(path, witness)}


def small_disk(path: str, witness: str) -> dict[str, Any]:
    """Spend on a disk that really is small, until it is full."""
    Ledger.open(path, dataset="d", budget=HUGE)
    return {"status": forked(lambda: _spend_until_refused(path, witness)), **look(path, witness)}


def read_only_folder(path: str, witness: str) -> dict[str, Any]:
    """Try to spend, as a user without rights, in a folder that cannot be written."""

    def action() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        Ledger.read(path).verify()
        _spend_until_refused(path, witness)

    book.writer()  # reads the installed packages, which the other user may not
    folder = Path(path).parent
    folder.chmod(0o555)
    try:
        status = forked(action)
    finally:
        folder.chmod(0o755)
    return {"status": status, **look(path, witness)}


def _spend_until_refused(path: str, witness: str) -> None:
    try:
        for _ in range(10_000):
            spend(path, witness)
    except LedgerError as problem:
        if str(Path(path)) in str(problem):
            return
        raise
    raise AssertionError("nothing was refused")


def main(scenario: str, *arguments: str) -> None:
    import warnings

    if scenario in ("full_disk", "small_disk", "read_only_folder"):
        warnings.simplefilter("ignore", RuntimeWarning)  # the end of a spend could not be booked
    values = [int(argument) if argument.isdecimal() else argument for argument in arguments]
    print(json.dumps(globals()[scenario](*values)))


if __name__ == "__main__":
    main(*sys.argv[1:])
