"""A log of what the releases of a resumable run covered: a keyed hash of each exact sum, on disk before its noise.

A process that goes on with an interrupted run adds the same noise again. Where it comes to another sum (other data,
other code, another machine's rounding) the difference of both releases would have no noise: it is refused instead.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from dpilot.errors import DpilotError, InvalidInput
from dpilot.train.checkpoint import files

AGAIN: Final = "Start a new run: it is a new spend, and the ledger says so."
_LINE: Final = struct.Struct("<8s32s")


class WitnessLog:
    """What every release so far covered, by the public name of its key, in the file at ``path``; for one process.

    Guarantee:
        ``note`` returns only when the line is on disk, or was there before and is the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._seen: dict[bytes, bytes] = {}
        self._frozen = False

    def open(self, *, fresh: bool) -> None:
        """Take the file for this process; the log of an interrupted run is read, that of a ``fresh`` one begins."""
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if fresh else 0)
        try:
            self._handle = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            raise InvalidInput(
                f"{self.path} is not there: without the log nobody can tell which sums the run's noise already covers. "
                f"Keep it beside the secret. {AGAIN}"
            ) from None
        except OSError as problem:
            raise DpilotError(
                f"{self.path} cannot be opened ({problem.strerror}): expected a folder of yours."
            ) from None
        _lock(self._handle, self.path)  # first: whoever does not get it must not touch another's log
        content = b"" if fresh else os.pread(self._handle, os.fstat(self._handle).st_size, 0)
        os.ftruncate(self._handle, len(content) // _LINE.size * _LINE.size)  # a line cut short was never acted on
        self._seen = dict(_LINE.unpack_from(content, at) for at in range(0, len(content) - _LINE.size + 1, _LINE.size))

    def note(self, name: bytes, covered: bytes) -> None:
        """Note what the key called ``name`` covers, or refuse it if it covered something else before."""
        if name in self._seen:
            if self._seen[name] != covered:
                raise InvalidInput(
                    "a release comes to another sum than before the interruption: the data, the code or the "
                    f"arithmetic changed, and the same noise must not cover two sums. {AGAIN}"
                )
            return
        if self._frozen:
            raise InvalidInput(f"{self.path} lacks a release that was made: it was altered. {AGAIN}")
        if self._handle is not None:
            self._append(_LINE.pack(name, covered))
        self._seen[name] = covered

    def _append(self, line: bytes) -> None:
        """A whole line on disk, or none: half of one would shift all that follow."""
        assert self._handle is not None
        before = os.fstat(self._handle).st_size
        try:
            if os.write(self._handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._handle)
        except OSError as problem:
            with suppress(OSError):
                os.ftruncate(self._handle, before)
            raise DpilotError(
                f"{self.path} cannot be written ({problem.strerror}): nothing is released without it. Free the disk, "
                "then go on with the run."
            ) from problem

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Refuse every release that is not in the log: for stages that ended before."""
        before, self._frozen = self._frozen, True
        try:
            yield
        finally:
            self._frozen = before

    def clear(self) -> None:
        """Forget everything: no key before this point can be used again."""
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
        self._seen = {}

    def close(self) -> None:
        """Let another process have the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def delete(self) -> None:
        """Remove the file."""
        files.remove(self.path)


def read_private(path: Path) -> dict[str, Any]:
    """The JSON object in a secret file that nobody else may read, or InvalidInput that says what is wrong."""
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise InvalidInput(f"{path} can be read by others: expected mode 0600. {AGAIN}")
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise InvalidInput(
            f"{path} is not there: without the run's secret its steps cannot be repeated exactly. {AGAIN}"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError):  # whose own fields hold the secret's text
        data = None
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} is no secret of a run: expected a whole JSON object. {AGAIN}")
    return data


def _lock(handle: int, path: Path) -> None:
    with suppress(ImportError):  # where there is no fcntl, one process at a time is the caller's care
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(f"{path} is in use: expected one process a run. Wait for it, or stop it.") from None
