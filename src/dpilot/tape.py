"""A tape that records every release and every fresh key, so that a run can be replayed.

``dpilot.audit.replay`` records one run and then returns its released values again while the run is repeated on a
neighbouring data set. A tape sees exact, sensitive values; it is a tool for tests on data that may be seen, and nothing
in the library starts one on its own.

Edge cases:
    A tape belongs to the context that started it: a new thread has none unless it runs in a copy of the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TapeEntry:
    """One release as it went through the door: what went in (exact, sensitive), and everything that must be public.

    ``kind`` is "gaussian" (``inputs`` move by at most ``bound`` in joint L2) or "choice" (by ``bound`` in each score).
    ``event`` is what the release cost (``privacy.events``); a tape keeps and compares it, and knows no more of it.
    """

    kind: str
    inputs: tuple[NDArray[Any], ...]
    forms: tuple[str, ...]
    bound: float
    event: object
    stamp: str


class Tape(Protocol):
    """A recorder: it receives a function that makes the output or the key, and returns the value to be used."""

    def release(self, entry: TapeEntry, outputs: Callable[[], Any]) -> Any: ...

    def key(self, purpose: str, fresh: Callable[[], bytes]) -> bytes: ...


_CURRENT: ContextVar[Tape | None] = ContextVar("dpilot_tape", default=None)


def current() -> Tape | None:
    """The tape of this context, if one is running."""
    return _CURRENT.get()


@contextmanager
def tape(recorder: Tape) -> Iterator[None]:
    """Record every release and every fresh key with ``recorder`` until the block ends."""
    token = _CURRENT.set(recorder)
    try:
        yield
    finally:
        _CURRENT.reset(token)
