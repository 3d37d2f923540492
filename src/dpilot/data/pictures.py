"""Pixels of picture files, read in worker processes: what one file does to its decoder happens to no other file.

A worker reads one file at a time (``picture_worker``). If it dies over a file, by a crash, for want of memory or
because ten seconds of the processor were not enough, the file is given to a fresh worker; if that one dies over it too,
the file cannot be read. A worker that somebody else killed has not died over a file. So what a file is read as follows
from the file alone.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpilot.data import picture_worker
from dpilot.data.picture_worker import FINE, OTHER_MODE, REQUEST, UNREADABLE
from dpilot.data.workers import WorkerPool, WorkerProcess
from dpilot.errors import InvalidInput

__all__ = ["FINE", "OTHER_MODE", "UNREADABLE", "PictureFile", "PictureForm", "read_pictures"]

_WORKERS: Final = 8
_AHEAD: Final = 1 << 15  # bytes of requests that wait for an answer: fewer than a pipe holds, so that nobody waits
_LONGEST: Final = 1 << 12  # bytes of a root, or a name
_FEW: Final = 16  # files that one worker alone reads
_KILLS: Final = 5  # times that the system may end a worker over one file, as where memory is short


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


def read_pictures(
    files: Sequence[PictureFile], form: PictureForm, *, pool: WorkerPool | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (n, height, width, channels) and a code for each file: FINE, OTHER_MODE or UNREADABLE; zeros where none.

    The files are decoded by the processes of ``pool``, or of one that is kept until this process ends.

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
    pool = _pool if pool is None else pool
    with pool.lock:
        workers = pool.take(1 if len(waiting) <= _FEW else _WORKERS) or _refuse_start()
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


def _read_share(worker: WorkerProcess, waiting: Waiting, pixels: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
    """Have one worker read what is waiting, each file into its own place."""
    asked: Waiting = deque()
    kills: Counter[int] = Counter()
    ahead = 0
    while asked or waiting:
        while waiting and (not asked or ahead + len(waiting[0][1]) <= _AHEAD):
            request = waiting.popleft()
            worker.ask(request[1])
            asked.append(request)
            ahead += len(request[1])
        place, request_bytes = asked[0]
        answered = _answer(worker, pixels[place])
        if answered is None:  # it died: all that was asked is asked of a fresh one, unless this was such a one
            killed, fresh = worker.was_killed(), worker.answers == 0
            kills[place] += killed
            if not worker.start():
                _refuse_start()
            if (fresh and not killed) or kills[place] >= _KILLS:
                asked.popleft()
            waiting.extendleft(reversed(asked))
            asked.clear()
            ahead = 0
            continue
        codes[place] = answered
        asked.popleft()
        ahead -= len(request_bytes)


def _answer(worker: WorkerProcess, pixels: NDArray[np.uint8]) -> int | None:
    """The code of the next file, its pixels written to ``pixels``; None where the worker died over it."""
    code = worker.take(1)
    if code is None:
        return None
    if code[0] != UNREADABLE and not worker.fill(pixels.reshape(-1).data):
        pixels[:] = 0
        return None
    worker.answers += 1
    return code[0]


def _refuse_start() -> NoReturn:
    raise InvalidInput(
        "the process that decodes pictures cannot start: expected a Python that can run and import Pillow "
        "(pip install 'dpilot[images]')."
    )


_pool = WorkerPool(picture_worker.__file__, _WORKERS)
