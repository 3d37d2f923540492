"""A receipt: the right to make the releases that were paid for, and no others.

A ledger hands one out when it reserves an event; ``mechanism`` draws each release from it, in the same call that adds
the noise. So noise without a receipt, a release more than was reserved, or a smaller noise than was priced cannot
happen by accident. What is never drawn stays spent. One process spends: under a launcher of several ranks each would
pay for itself, and report itself alone (``check_alone``); where ranks train together, rank 0 spends for all.

    >>> from dpilot.privacy.events import Gaussian
    >>> receipt = Receipt(Repeated(Gaussian(2.0), 2))
    >>> receipt.draw(Gaussian(2.0)); receipt.draw(Gaussian(2.0))
    >>> receipt.draw(Gaussian(2.0))
    Traceback (most recent call last):
    dpilot.errors.BudgetExceeded: a release of Gaussian(noise_multiplier=2.0) was not reserved, or was drawn already...
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Final, NoReturn

from dpilot import _validate
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.privacy.events import Event, Gaussian, OneOf, PoissonSampled, RepeatAndSelect, Repeated, leaves

_WORLD_SIZES: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # set by torchrun, Open MPI, MPICH
_FOR_RANKS: ContextVar[bool] = ContextVar("dpilot_for_ranks", default=False)


class Receipt:
    """What may still be released under one reserved ``event``.

    Guarantee:
        The multiset of events drawn is contained in the multiset of the reserved event's parts (after ``settle``:
        of the settled event's), so what the ledger counts is an upper bound of what was released.

    Edge cases:
        PoissonSampled(1, e) is e: a full batch is drawn either way.
        A closed receipt admits nothing more; nor does one that a fork or a copy carried elsewhere, as that would
        double the right. A fork settles nothing either: it does not know what its parent draws.
        A receipt ``within`` another one ends with it.
    """

    def __init__(
        self,
        event: Event,
        *,
        drawn: Event | None = None,
        agree: Callable[[Event, bool], None] | None = None,
        within: Receipt | None = None,
    ) -> None:
        self.event = event
        self.settled: Event | None = None
        self._agree = agree
        self._within = within
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
        check_alone()
        part = _canonical(event)
        with self._lock:
            if not self.admits or self._left[part] < 1:
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
            if self._agree is None or not self.admits:
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

    @property
    def admits(self) -> bool:
        """Whether it is open still, in its own process, and so is whatever it is a part of."""
        return self._open and self._process == os.getpid() and (self._within is None or self._within.admits)

    def close(self) -> None:
        """Admit nothing more. What was not drawn stays spent."""
        self._open = False

    def __reduce__(self) -> NoReturn:
        raise InvalidInput("a receipt is a right of one process: it cannot be copied or sent. Reserve another.")


class TrialReceipts:
    """The receipts of a private selection's ``trials``: that many at most, each for one whole trial.

    They are drawn from ``receipt`` as the one event that the ledger knows, so nothing on disk tells how many there
    are. ``of`` names what a trial does: the announced trial itself or, where that is OneOf several, one of those.

    Guarantee:
        No more than ``trials`` receipts are handed out, none for anything else than the announced trial: a winner
        that is trained again finds none.

    Edge cases:
        The number is secret: the representation does not show it.

    Example:
        >>> selection = RepeatAndSelect(Gaussian(9.0), 10)
        >>> receipts = TrialReceipts(Receipt(selection), selection, trials=1)
        >>> receipts.of(Gaussian(9.0)).draw(Gaussian(9.0))
        >>> receipts.of(Gaussian(9.0))
        Traceback (most recent call last):
        dpilot.errors.BudgetExceeded: one more trial is asked for: expected as many as were drawn before the first...
    """

    __slots__ = ("_allowed", "_left", "_lock", "_receipt")

    def __init__(self, receipt: Receipt, event: RepeatAndSelect, *, trials: int) -> None:
        count = _validate.count(least=0, trials=trials)
        receipt.draw(event)
        inner = event.event
        self._allowed = frozenset(map(_canonical, inner.events if isinstance(inner, OneOf) else (inner,)))
        self._receipt = receipt
        self._left = count
        self._lock = threading.Lock()

    def of(self, event: Event) -> Receipt:
        """The receipt of the next trial, which does ``event``."""
        if _canonical(event) not in self._allowed:
            raise BudgetExceeded(f"a trial of {event!r} was not announced: expected what the selection was priced for.")
        with self._lock:
            if self._left < 1:
                raise BudgetExceeded(
                    "one more trial is asked for: expected as many as were drawn before the first. "
                    "Training the winner again is a new spend."
                )
            self._left -= 1
        return Receipt(event, within=self._receipt)


def divide(receipt: Receipt, noise_multiplier: float, steps: int, *, sample_rate: float = 1.0) -> Receipt:
    """Draw one Gaussian from ``receipt`` and return the right to ``steps`` noisier ones that together cost as much.

    ::

        T-fold composition of (1 / (s sqrt(T)))-GDP is (1/s)-GDP,      whatever T is

    So a run whose number of steps is chosen from earlier releases is reserved beforehand as one Gaussian(s); its
    steps use ``step_noise_multiplier(s, steps)``. With ``sample_rate`` below 1 the drawn event is a Gaussian on a
    Poisson sample, and the steps are full-batch steps on that one sample.

    Guarantee:
        The squared mu of the steps is at most 1/s^2, in exact arithmetic. Right or refusal: what was not reserved is
        BudgetExceeded. The new receipt ends with the old one.

    Example:
        >>> steps = divide(Receipt(Gaussian(10.0)), 10.0, 4)
        >>> steps.event
        Repeated(event=Gaussian(noise_multiplier=20.0), times=4)

    Reference:
        Dong, Roth, Su, "Gaussian Differential Privacy", 2022, Corollary 3.3 and Theorem 3.2 (adaptive composition).
    """
    each = step_noise_multiplier(noise_multiplier, steps)
    whole = Gaussian(noise_multiplier)
    receipt.draw(whole if _validate.rate(sample_rate=sample_rate) == 1 else PoissonSampled(sample_rate, whole))
    return Receipt(Repeated(Gaussian(each), steps), within=receipt)


def step_noise_multiplier(noise_multiplier: float, steps: int) -> float:
    """What each of ``steps`` releases needs that are together one of ``noise_multiplier``: s sqrt(T), rounded up.

    >>> step_noise_multiplier(10.0, 9)
    30.0
    """
    whole, count = _validate.positive(noise_multiplier=noise_multiplier), _validate.count(steps=steps)
    # T / each^2 <= 1 / whole^2 must hold in exact arithmetic, so the float is raised until each^2 >= T whole^2.
    # tests/privacy/test_receipt.py::test_divided_steps_cost_no_more_than_the_whole_in_exact_arithmetic.
    each, needed = whole * math.sqrt(count), count * Fraction(whole) ** 2
    while Fraction(each) ** 2 < needed:
        each = math.nextafter(each, math.inf)
    return each


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


def check_alone() -> None:
    """Refuse to spend as one of several ranks: each would train on the records and report its own epsilon alone.

    Called where a ledger is made, where anything is reserved in one, and where a release is drawn: no entry can
    forget it. Rank 0 of a run that all ranks take part in spends for them (``spend_for_ranks``).
    """
    size, where = world_size()
    if size > 1 and not _FOR_RANKS.get():
        raise InvalidInput(
            f"this process is one of {size} ranks ({where}): expected one process, as every rank would pay, train and "
            "report alone, and the records would lose the sum. Only Trainer and PrivateStep run on several ranks, "
            "started by torchrun; do this in a process of its own, before or after."
        )


@contextmanager
def spend_for_ranks() -> Iterator[None]:
    """Spend for all ranks of one run: in rank 0 alone, which draws what they release together."""
    token = _FOR_RANKS.set(True)
    try:
        yield
    finally:
        _FOR_RANKS.reset(token)


def world_size() -> tuple[int, str]:
    """The number of ranks that this process is one of, and what says so; 1 where nothing says otherwise.

    >>> world_size()
    (1, 'one process')
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found = int(distributed.get_world_size())
        if found > 1:
            return found, "torch.distributed is initialised"
    for name in _WORLD_SIZES:
        declared = os.environ.get(name, "")
        if declared.isdecimal() and int(declared) > 1:
            return int(declared), f"{name} is set in the environment"
    return 1, "one process"
