"""What a person is told who fits without a ledger, or whose fit a ledger refused: as a PrivacyWarning.

Warnings, because scikit-learn's searches fit many times in one call, and turn any exception into a score of nan.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

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
            f"no ledger was given to {self.fits} fits in this process: records that were in all of them have lost "
            f"{cost}, the sums over the fits. {counted}"
        )


_INSIDE: Final = ("dpilot", "contextlib", "numpy")  # numpy's errstate wraps what dpilot runs
_lock: Final = threading.Lock()
_count = _Count()


def warn_unledgered(budget: Budget) -> None:
    """Say that a fit of ``budget`` is counted nowhere; from the second in a process on, with the running total.

    The total is the plain sum of epsilons and deltas, which holds for any fits in any order. Each fit warns, with
    another text, so that Python's filters decide what is shown. Other processes, those of ``n_jobs`` included, count
    for themselves.

    Edge cases:
        warnings are errors    the fit is not counted, as it does not take place
    """
    global _count
    with _lock:
        after = _count.and_one(budget)
        warnings.warn(after.sentence(), PrivacyWarning, stacklevel=_outside())
        _count = after


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
    """Count fits without a ledger from zero in the body, as in a process of its own; then go on as before it."""
    global _count
    before, _count = _count, _Count()
    try:
        yield
    finally:
        _count = before


def _outside() -> int:
    """The stack level of whoever called dpilot, as seen from the caller of this function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    return level
