"""A receipt: the right to make the releases that were paid for, and no others.

A ledger hands one out when it reserves an event; ``mechanism`` draws each release from it, in the same call that adds
the noise. So noise without a receipt, a release more than was reserved, or a smaller noise than was priced cannot
happen by accident. What is never drawn stays spent.

    >>> from dpilot.privacy.events import Gaussian
    >>> receipt = Receipt(Repeated(Gaussian(2.0), 2))
    >>> receipt.draw(Gaussian(2.0)); receipt.draw(Gaussian(2.0))
    >>> receipt.draw(Gaussian(2.0))
    Traceback (most recent call last):
    dpilot.errors.BudgetExceeded: a release of Gaussian(noise_multiplier=2.0) was not reserved, or was drawn already...
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.privacy.events import Event, PoissonSampled, Repeated, leaves

__all__ = ["Receipt"]


class Receipt:
    """What may still be released under one reserved ``event``.

    Guarantee:
        The multiset of events drawn is contained in the multiset of the reserved event's parts (after ``settle``:
        of the settled event's), so what the ledger counts is an upper bound of what was released.

    Edge cases:
        PoissonSampled(1, e) is e: a full batch is drawn either way.
        A closed receipt admits nothing more; nor does one that a fork or a copy carried elsewhere, as that would
        double the right. A fork settles nothing either: it does not know what its parent draws.
    """

    def __init__(
        self, event: Event, *, drawn: Event | None = None, agree: Callable[[Event, bool], None] | None = None
    ) -> None:
        self.event = event
        self.settled: Event | None = None
        self._agree = agree
        self._drawn: Counter[Event] = _count(drawn)
        self._left = _count(event)
        self._open = True
        self._lock = threading.Lock()
        self._process = os.getpid()
        if not self._drawn <= self._left:
            raise InvalidInput(f"drawn is {drawn!r}: expected a part of the reserved {event!r}.")
        self._left -= self._drawn

    def draw(self, event: Event) -> None:
        """Take one release, or raise BudgetExceeded and take nothing."""
        part = _canonical(event)
        with self._lock:
            if not self._open or self._process != os.getpid() or self._left[part] < 1:
                raise BudgetExceeded(
                    f"a release of {event!r} was not reserved, or was drawn already. "
                    "Reserve it in the ledger first; a reservation is used once, in full noise, by one process."
                )
            self._left[part] -= 1
            self._drawn[part] += 1

    def settle(self, event: Event) -> None:
        """Pay for ``event`` instead of what was reserved: it must cost no more, and cover all that was drawn.

        From here on only the rest of ``event`` can be drawn. The ledger books it when the reservation is left
        without an exception.

        Edge cases:
            bound "basic": only before the first draw, because a commitment is priced there as a whole
            (docs/proofs/filters.md, "Settling"); events that merely declare their epsilon may settle later too.
            A precommitted ledger settles nothing, nor does a stage that was resumed.
        """
        with self._lock:
            wanted = _count(event)
            if self._agree is None or not self._open or self._process != os.getpid():
                raise InvalidInput(
                    "settle is for the open receipt of an adaptive ledger, in the process that reserved it and before "
                    "any resume: this one cannot be lowered."
                )
            if not self._drawn <= wanted:
                raise InvalidInput(
                    f"{event!r} does not cover what was drawn already: expected at least "
                    f"{dict(+self._drawn)}. Settle for all that was released."
                )
            self._agree(event, self._drawn.total() > 0)
            self._left = wanted - self._drawn
            self.settled = event

    def close(self) -> None:
        """Admit nothing more. What was not drawn stays spent."""
        self._open = False

    def __reduce__(self) -> NoReturn:
        raise InvalidInput("a receipt is a right of one process: it cannot be copied or sent. Reserve another.")


def _count(event: Event | None) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for part, times in leaves(event) if event is not None else ():
        counts[_canonical(part)] += times
    return counts


def _canonical(event: Event) -> Event:
    if isinstance(event, PoissonSampled) and event.rate == 1:
        return _canonical(event.event)
    if isinstance(event, Repeated) and event.times == 1:
        return _canonical(event.event)
    return event
