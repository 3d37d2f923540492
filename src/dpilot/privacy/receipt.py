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

from collections import Counter

from dpilot.errors import BudgetExceeded
from dpilot.privacy.events import Event, PoissonSampled, Repeated, leaves

__all__ = ["Receipt"]


class Receipt:
    """What may still be released under one reserved ``event``.

    Guarantee:
        The multiset of events drawn is contained in the multiset of the reserved event's parts, so what was
        reserved is an upper bound of what was released.

    Edge cases:
        PoissonSampled(1, e) is e: a full batch is drawn either way.
        A closed receipt admits nothing more.
    """

    def __init__(self, event: Event) -> None:
        self.event = event
        self._left: Counter[Event] = Counter()
        self._open = True
        for part, times in leaves(event):
            self._left[_canonical(part)] += times

    def draw(self, event: Event) -> None:
        """Take one release, or raise BudgetExceeded and take nothing."""
        part = _canonical(event)
        if not self._open or self._left[part] < 1:
            raise BudgetExceeded(
                f"a release of {event!r} was not reserved, or was drawn already. "
                "Reserve it in the ledger first; a reservation is used once and in full noise."
            )
        self._left[part] -= 1

    def close(self) -> None:
        """Admit nothing more. What was not drawn stays spent."""
        self._open = False


def _canonical(event: Event) -> Event:
    if isinstance(event, PoissonSampled) and event.rate == 1:
        return _canonical(event.event)
    if isinstance(event, Repeated) and event.times == 1:
        return _canonical(event.event)
    return event
