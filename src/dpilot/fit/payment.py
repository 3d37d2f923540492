"""Where a fit pays: its ledger, found or made; its commitments, each made once, however often the fit is repeated."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dpilot.errors import InvalidInput
from dpilot.fit.source import IN_MEMORY
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Committed, Ledger, Stage, as_ledger
from dpilot.privacy.notices import warn_unledgered
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.train.payment import LEDGER

__all__ = ["Payments", "open_payments"]


@dataclass(frozen=True, slots=True)
class Payments:
    """The ledger of a fit; ``own`` says that it is of this fit alone, ``repeat`` that an interrupted one goes on."""

    book: Ledger
    own: bool
    repeat: Callable[[], AbstractContextManager[None]] | None = None
    unit: PrivacyUnit = RECORD

    def check_room(self, *commitments: tuple[Sequence[Stage], Budget]) -> None:
        """Raise BudgetExceeded, and pay nothing, unless the ledger holds all that the fit has not paid yet."""
        unpaid = [(stages, budget) for stages, budget in commitments if self._find(stages) is None]
        self.book.check_room(*((stages, self._delta(budget)) for stages, budget in unpaid), unit=self.unit)

    def commit(self, stages: Sequence[Stage], budget: Budget) -> Committed:
        """Put the price of ``stages`` on disk as one commitment, or find the one that an interrupted fit made.

        Guarantee:
            Some stage of every commitment bears the public name of the fit's key, so another fit's is never taken.
        """
        return self._find(stages) or self.book.commit(stages, delta=self._delta(budget), unit=self.unit)

    def _find(self, stages: Sequence[Stage]) -> Committed | None:
        """The commitment of ``stages`` that an interrupted fit made, if it came to that."""
        if self.repeat is None:
            return None
        wanted = [(stage.purpose, stage.event, stage.part, stage.split) for stage in stages]
        for seq in dict.fromkeys(entry.seq for entry in self.book.entries()):
            made = self.book.committed(seq, repeat=self.repeat)
            if (
                made.unit == self.unit
                and [(each.purpose, each.event, each.part, each.split) for each in made.entries()] == wanted
            ):
                return made
        return None

    def _delta(self, budget: Budget) -> float | None:
        return budget.delta if self.book.bound == "basic" else None

    def cost(self, budget: Budget) -> Cost:
        """What the fit cost: all that its own ledger says, or the budget it was given in another's."""
        return self.book.spent() if self.own else Cost(budget.epsilon, budget.delta)


def open_payments(
    ledger: Ledger | str | Path | None,
    budget: Budget,
    name: str,
    folder: Path | None,
    *,
    gaussian: bool,
    repeat: Callable[[], AbstractContextManager[None]] | None = None,
    unit: PrivacyUnit = RECORD,
) -> Payments:
    """The ledger that was given, the one at a path (made if it is not there), or one of this fit's own.

    One's own, of which a PrivacyWarning says that it counts nothing else, adds squared mu where everything released is
    a ``gaussian``, which is exact; else epsilons of commitments.
    """
    if ledger is not None:
        book = as_ledger(ledger, budget, None if name == IN_MEMORY else name, unit)
        if book.mode == "precommitted":
            raise InvalidInput(
                f"{book.path} is a precommitted ledger, which admits one commitment: expected an adaptive one, as a "
                'fit commits its health check, then the rest. Open it with mode="adaptive".'
            )
        return Payments(book, False, repeat, unit)
    if repeat is None:
        warn_unledgered(budget)
    home = Path(tempfile.mkdtemp(prefix="dpilot-fit-")) if folder is None else folder
    home.mkdir(parents=True, exist_ok=True)
    bound = "gdp" if gaussian else "basic"
    book = Ledger.open(home / LEDGER, dataset=name, budget=budget, bound=bound, unit=unit.name)
    if folder is None:
        weakref.finalize(book, shutil.rmtree, home, ignore_errors=True)
    return Payments(book, True, repeat, unit)
