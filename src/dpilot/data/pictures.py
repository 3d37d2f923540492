"""Pixels of picture files, read in worker processes: what one file does to its decoder happens to no other file.

A worker reads one file at a time (``picture_worker``). If it dies over a file, by a crash, for want of memory or
because ten seconds of the processor were not enough, the file is given to a fresh worker; if that one dies over it too,
the file cannot be read. So what a file is read as follows from the file alone.
"""

from __future__ import annotations

import atexit
import os
import selectors
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot.data import picture_worker
from dpilot.data.picture_worker import FINE, OTHER_MODE, READY, REQUEST, UNREADABLE
from dpilot.errors import InvalidInput

__all__ = ["FINE", "OTHER_MODE", "UNREADABLE", "PictureFile", "PictureForm", "read_pictures"]

_WORKERS: Final = 8
_AHEAD: Final = 1 << 15  # bytes of requests that wait for an answer: fewer than a pipe holds, so that nobody waits
_LONGEST: Final = 1 << 12  # bytes of a root, or a name
_FEW: Final = 16  # files that one worker alone reads
_SILENCE: Final = 300.0  # seconds by the clock without an answer: a file system that hangs


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A file by its name below a root; what lies outside the root cannot be read."""

    root: str
    name: str


@dataclass(frozen=True, slots=True)
class PictureForm:
    """The declared form of every picture of a column; those of another mode are ``convert``-ed, or have no pixels."""

    width: int
    height: int
    channels: int
    convert: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels


def read_pictures(files: Sequence[PictureFile], form: PictureForm) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (n, height, width, channels) and a code for each file: FINE, OTHER_MODE or UNREADABLE; zeros where none.

    Guarantee:
        What is found of a file follows from that file and from ``form``. Nothing raises or ends the process because of
        a file, nothing is written about it, and none takes more than 20 seconds of the processor.
    """
    pixels = np.zeros((len(files), *form.shape), dtype=np.uint8)
    codes = np.full(len(files), UNREADABLE, dtype=np.uint8)
    roots = {root: os.fsencode(os.path.realpath(root)) for root in {file.root for file in files}}
    requests = [(place, _request(roots[file.root], file.name, form)) for place, file in enumerate(files)]
    waiting = [(place, request) for place, request in requests if request is not None]
    if not waiting:
        return pixels, codes
    with _pool_lock:
        workers = _pool(1 if len(waiting) <= _FEW else _WORKERS)
        shares = [deque(waiting[start :: len(workers)]) for start in range(len(workers))]
        with ThreadPoolExecutor(len(workers)) as threads:
            for _ in threads.map(_read_share, workers, shares, [pixels] * len(workers), [codes] * len(workers)):
                pass
    return pixels, codes


def _request(root: bytes, name: str, form: PictureForm) -> bytes | None:
    try:
        path = os.fsencode(name)
    except UnicodeError:
        return None
    if not path or b"\0" in path or max(len(path), len(root)) > _LONGEST:
        return None
    head = REQUEST.pack(len(root), len(path), form.width, form.height, form.channels, form.convert)
    return head + root + path


Waiting = deque[tuple[int, bytes]]


def _read_share(worker: _Worker, waiting: Waiting, pixels: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
    """Have one worker read what is waiting, each file into its own place."""
    asked: Waiting = deque()
    ahead = 0
    while asked or waiting:
        while waiting and (not asked or ahead + len(waiting[0][1]) <= _AHEAD):
            request = waiting.popleft()
            worker.ask(request[1])
            asked.append(request)
            ahead += len(request[1])
        place, request_bytes = asked[0]
        answered = worker.answer(pixels[place])
        if answered is None:  # it died: all that was asked is asked of a fresh one, unless this was such a one
            fresh = worker.answers == 0
            worker.restart()
            if fresh:
                asked.popleft()
            waiting.extendleft(reversed(asked))
            asked.clear()
            ahead = 0
            continue
        codes[place] = answered
        asked.popleft()
        ahead -= len(request_bytes)


@dataclass(slots=True)
class _Worker:
    """One process that decodes; ``answers`` are those it has given since it was started."""

    process: Any = None
    answers: int = 0
    _selector: Any = field(default=None, repr=False)

    def start(self) -> None:
        paths = os.pathsep.join(each for each in sys.path if each)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(picture_worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.answers, self._selector = 0, selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        if self._take(memoryview(bytearray(1))) != READY:
            self.stop()
            raise InvalidInput(
                "the process that decodes pictures cannot start: expected a Python that can run and import Pillow "
                "(pip install 'dpilot[images]')."
            )

    def ask(self, request: bytes) -> None:
        with suppress(OSError):  # it died: ``answer`` will say so
            self.process.stdin.write(request)
            self.process.stdin.flush()

    def answer(self, pixels: NDArray[np.uint8]) -> int | None:
        """The code of the next file, its pixels written to ``pixels``; None where the worker died over it."""
        code = self._take(memoryview(bytearray(1)))
        if code is None:
            return None
        if code[0] != UNREADABLE and self._take(pixels.reshape(-1).data) is None:
            pixels[:] = 0
            return None
        self.answers += 1
        return code[0]

    def restart(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        self._selector.close()
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                pipe.close()
        self.process.wait()

    def _take(self, room: memoryview) -> bytes | None:
        """Fill ``room`` from what the process writes; None where it ends, or is silent, before."""
        filled = 0
        while filled < len(room):
            there = self._selector.select(_SILENCE)
            count = self.process.stdout.raw.readinto(room[filled:]) if there else 0
            if not count:
                return None
            filled += count
        return bytes(room[:1])


_pool_lock = threading.Lock()
_started: dict[int, list[_Worker]] = {}  # by process: a fork has workers of its own


def _pool(most: int) -> list[_Worker]:
    """Workers of this process, started where they are missing: as many as there are processors, and ``most``."""
    workers = _started.setdefault(os.getpid(), [])
    wanted = min(most, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    while len(workers) < wanted:
        worker = _Worker()
        worker.start()
        workers.append(worker)
    return workers[:wanted]


def _stop(workers: Iterable[_Worker]) -> None:
    for worker in workers:
        worker.stop()


atexit.register(lambda: _stop(_started.pop(os.getpid(), [])))
