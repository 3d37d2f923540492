"""Processes of our own that answer requests on pipes: one that dies takes no other with it, and all end with us."""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["WorkerPool", "WorkerProcess", "processors"]

READY: Final = b"R"
"""What a process writes when it can be asked."""
_SILENCE: Final = 300.0  # seconds by the clock without an answer: a file system that hangs
_FROM_OUTSIDE: Final = tuple(
    -getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT") if hasattr(signal, name)
)


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One process that runs ``script``; ``answers`` are those it has given since it was started.

    What it writes on standard error goes nowhere: it may be a record's.
    """

    script: str
    process: Any = None
    answers: int = 0
    _selector: Any = field(default=None, repr=False)

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> bool:
        """Whether it is there and ready; what was left of an earlier one is put away."""
        self.stop()
        paths = os.pathsep.join(each for each in sys.path if each)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(self.script))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
            )
        except OSError:
            return False
        self.answers, self._selector = 0, selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        if self.take(len(READY)) == READY:
            return True
        self.stop()
        return False

    def ask(self, request: bytes) -> None:
        with suppress(OSError, ValueError):  # it died: ``take`` will say so
            self.process.stdin.write(request)
            self.process.stdin.flush()

    def take(self, size: int) -> bytes | None:
        """So many bytes of what it answers; None where it ends, or is silent, before."""
        room = bytearray(size)
        return bytes(room) if self.fill(memoryview(room)) else None

    def fill(self, room: memoryview) -> bool:
        """Fill ``room`` from what the process writes; False where it ends, or is silent, before."""
        filled = 0
        while filled < len(room):
            there = not self.process.stdout.closed and self._selector.select(_SILENCE)
            count = self.process.stdout.raw.readinto(room[filled:]) if there else 0
            if not count:
                return False
            filled += count
        return True

    def was_killed(self) -> bool:
        """Whether it has ended by a signal that comes from outside: it is no fault of what it was asked."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(1.0) in _FROM_OUTSIDE
        return False

    def stop(self) -> None:
        if self.process is None:
            return
        self._selector.close()
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                pipe.close()
        self.process.wait()


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """Processes that run one script, started where they are wanted and kept until this process ends.

    Edge cases:
        Who takes workers holds ``lock`` for as long as they are asked: two callers would read each other's answers.
    """

    def __init__(self, script: str, most: int, available: Callable[[], int] = processors) -> None:
        self.script, self.most, self._available = script, most, available
        self.lock = threading.Lock()
        self._started: dict[int, list[WorkerProcess]] = {}  # by process: a fork has workers of its own
        atexit.register(self.stop)

    @property
    def workers(self) -> list[WorkerProcess]:
        return self._started.setdefault(os.getpid(), [])

    def take(self, most: int) -> list[WorkerProcess]:
        """Workers that run: as many as there are processors, at most ``most``; fewer where they cannot be started."""
        held, wanted = self.workers, min(most, self.most, self._available())
        held += [WorkerProcess(self.script) for _ in range(wanted - len(held))]
        return [worker for worker in held[:wanted] if worker.is_alive or worker.start()]

    def stop(self) -> None:
        for worker in self._started.pop(os.getpid(), []):
            worker.stop()
