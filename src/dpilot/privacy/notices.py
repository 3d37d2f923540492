"""What a person is told who fits without a ledger, or whose fit a ledger refused: as a PrivacyWarning.

Warnings, because scikit-learn's searches fit many times in one call, and turn any exception into a score of nan.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Final

from dpilot.errors import BudgetExceeded, PrivacyWarning
from dpilot.privacy._decimals import UP, ZERO, above, show_up, to_decimal
from dpilot.privacy.budget import Budget


@dataclass(frozen=True, slots=True)
class _Count:
    """The fits without a ledger, and the sums of what they cost."""

    fits: int = 0
    epsilon: Decimal = ZERO
    delta: Decimal = ZERO

    def and_one(self, budget: Budget) -> _Count:
        epsilon, delta = to_decimal(budget.epsilon), to_decimal(budget.delta)
        return _Count(self.fits + 1, UP.add(self.epsilon, epsilon), UP.add(self.delta, delta))

    def sentence(self) -> str:
        cost = f"epsilon {show_up(above(self.epsilon))} at delta {show_up(above(self.delta))}"
        counted = 'Pass ledger="NAME.ledger", and all fits of a data set are counted in one total.'
        if self.fits == 1:
            return f"no ledger was given: {cost} covers this fit alone. {counted}"
        return (
            f"no ledger was given to {self.fits} fits of this program: records that were in all of them have lost "
            f"{cost}, the sums over the fits. {counted}"
        )

    def to_json(self) -> str:
        return json.dumps([self.fits, str(self.epsilon), str(self.delta)])

    @classmethod
    def from_json(cls, text: str) -> _Count:
        """What was written; nothing counted where nothing was, or it was not ours."""
        try:
            fits, epsilon, delta = json.loads(text)
            return cls(int(fits), Decimal(epsilon), Decimal(delta))
        except (ValueError, TypeError, ArithmeticError):
            return cls()


_INSIDE: Final = ("dpilot", "contextlib", "numpy")  # numpy's errstate wraps what dpilot runs
_PLACE: Final = "DPILOT_FITS"
"""The environment variable that names the file in which a program and its worker processes count together."""
_lock: Final = threading.Lock()


def _new_place() -> str:
    """A file of this program's own, which is gone when the program ends."""
    place = Path(tempfile.gettempdir()) / f"dpilot-fits-{secrets.token_hex(16)}"
    mine = os.getpid()
    atexit.register(lambda: place.unlink(missing_ok=True) if os.getpid() == mine else None)
    return str(place)


os.environ.setdefault(_PLACE, _new_place())  # before any worker is started


def warn_unledgered(budget: Budget) -> None:
    """Say that a fit of ``budget`` is counted nowhere; from the second in a process on, with the running total.

    The total is the plain sum of epsilons and deltas, which holds for any fits in any order. Each fit warns, with
    another text, so that Python's filters decide what is shown. Worker processes, such as those of ``n_jobs``, count
    with the program that started them.

    Edge cases:
        warnings are errors               the fit is not counted, as it does not take place
        no temporary folder to write to   each fit says that it alone is covered
    """
    with _lock, _shared() as file:
        after = _Count.from_json("" if file is None else file.read()).and_one(budget)
        warnings.warn(after.sentence(), PrivacyWarning, stacklevel=_outside())
        if file is not None:
            file.seek(0)
            file.truncate()
            file.write(after.to_json())


@contextmanager
def _shared() -> Iterator[IO[str] | None]:
    """The count of this program, for this process alone; None where no file can be had."""
    try:
        handle = os.open(os.environ[_PLACE], os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except (OSError, KeyError):
        yield None
        return
    with os.fdopen(handle, "r+") as file:
        with suppress(ImportError):  # where there is no fcntl, threads alone take turns
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@contextmanager
def warn_of_refusal() -> Iterator[None]:
    """Let a BudgetExceeded out of the body, with a warning before it: who catches the exception still hears of it.

    scikit-learn catches it: ``cross_val_score`` and searches put nan in its place, and ``validation_curve`` does so
    without any warning of its own.
    """
    try:
        yield
    except BudgetExceeded as refused:
        with suppress(PrivacyWarning):  # where warnings are errors, the refusal is the one to raise
            warnings.warn(f"the ledger refused this fit: {refused}", PrivacyWarning, stacklevel=_outside())
        raise


@contextmanager
def count_apart() -> Iterator[None]:
    """Count fits without a ledger from zero in the body, as in a program of its own; then go on as before it."""
    before, os.environ[_PLACE] = os.environ.get(_PLACE), _new_place()
    try:
        yield
    finally:
        Path(os.environ.pop(_PLACE)).unlink(missing_ok=True)
        if before is not None:
            os.environ[_PLACE] = before


def _outside() -> int:
    """The stack level of whoever called dpilot, as seen from the caller of this function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    return level
