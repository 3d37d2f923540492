"""The lock held while a stage runs: it distinguishes a stage that is running from one that crashed.

A file's lock is the kernel's (flock) on ``.NAME.SEQ.STAGE.lock`` beside the ledger. It is taken before the row that
begins the stage is on disk and ends with the process, however that ends. The file stays while the stage is unfinished
and goes when its end is booked; so where it is missing, it was removed by hand, and the two cannot be distinguished.

A forked child may not draw from its parent's receipt, so it does not keep the parent's lock alive either: its copy is
closed at the fork. Threads of one process exclude each other like processes do.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from dpilot.errors import LedgerError

_FLAGS: Final = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_open_here: Final[set[int]] = set()


class StageLock(Protocol):
    """The lock of stage ``place`` of row ``seq``, held until ``release`` or ``remove``, or until the process ends."""

    seq: int
    place: int

    @property
    def own(self) -> bool:
        """Whether this is the process that took it, and not a fork of it."""
        ...

    def release(self) -> None:
        """Release an unfinished stage, which may be resumed."""
        ...

    def remove(self) -> None:
        """Release a finished stage, which cannot be resumed."""
        ...


class FileLock:
    """The lock of stage ``place`` of row ``seq``, held by this process until ``release`` or ``remove``."""

    def __init__(self, ledger: Path, seq: int, place: int, *, again: bool = False) -> None:
        """Take the lock, or raise LedgerError; ``again`` for a stage that began before, whose file is there."""
        self.seq, self.place = seq, place
        self._file = ledger.with_name(f".{ledger.name}.{seq}.{place}.lock")
        self._process = os.getpid()
        self._handle = self._open_file(again)
        _open_here.add(self._handle)
        try:
            self._lock(again)
        except BaseException:
            self.release()
            raise

    @property
    def own(self) -> bool:
        return self._process == os.getpid()

    def release(self) -> None:
        """Release an unfinished stage; its file stays, for a later resume."""
        if self.own and self._handle in _open_here:
            _open_here.remove(self._handle)  # first, so that no fork closes a number that means another file by then
            os.close(self._handle)

    def remove(self) -> None:
        """Release a finished stage, which cannot be resumed, and remove its file."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
        self.release()

    def _open_file(self, again: bool) -> int:
        try:
            return os.open(self._file, _FLAGS if again else _FLAGS | os.O_CREAT, 0o666)
        except FileNotFoundError:
            raise LedgerError(
                f"{self._file} is missing: expected the file whose lock tells a stage that is running from one that "
                f"crashed. Make sure that nobody works on stage {self.place} of row {self.seq}; then make the file, "
                "empty, and resume again."
            ) from None
        except OSError as problem:
            raise LedgerError(
                f"{self._file} cannot be opened ({problem.strerror}): expected a file of the ledger's folder to lock "
                f"while stage {self.place} of row {self.seq} runs. Nothing was written; see to its permissions."
            ) from problem

    def _lock(self, again: bool) -> None:
        try:
            import fcntl
        except ImportError:
            if not again:
                return
            raise LedgerError(
                "this system has no flock, so a stage that is running cannot be told from one that crashed: expected "
                "a POSIX system to resume on. Reserve the rest anew."
            ) from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(
                f"stage {self.place} of row {self.seq} is running: its holder has the lock of {self._file}. Expected a "
                "stage that was interrupted; resume it when its process has ended."
            ) from None
        except OSError as problem:
            raise LedgerError(
                f"{self._file} cannot be locked ({problem.strerror}): expected a local disk with flock. Nothing was "
                "written; keep the ledger elsewhere."
            ) from problem


def _let_go() -> None:
    """In a forked child: drop the copies of the parent's locks, which stay the parent's."""
    for handle in tuple(_open_here):
        with suppress(OSError):
            os.close(handle)
    _open_here.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
