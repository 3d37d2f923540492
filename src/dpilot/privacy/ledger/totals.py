"""A data set's total, and what one fit may take of it.

A ledger of total (E, D) admits fits of epsilon e until E is used up, in any number and order, because each takes its
part of delta and no more::

    delta of a fit = D e / E, rounded down

so that sums of deltas reach D only when those of epsilon reach E. Amounts are compared as they were typed: ten fits of
0.1 fill a total of 1, three of 1/3 too.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dpilot import _validate
from dpilot.errors import BudgetExceeded, InvalidInput, LedgerError
from dpilot.privacy._decimals import DOWN, UP, above, below, chargeable, round_up, show_down, show_up, to_decimal
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import ApproxDP
from dpilot.privacy.ledger.history import Stage
from dpilot.privacy.ledger.ledger import Ledger, ledger_exists, open_store, reopen
from dpilot.privacy.ledger.spending import Committed
from dpilot.privacy.unit import RECORD, PrivacyUnit


@dataclass(frozen=True, slots=True)
class Balance:
    """A ledger's total, what is spent of it and what is left, at one moment."""

    total: Budget
    spent: Cost
    left: Cost

    @classmethod
    def of(cls, ledger: Ledger) -> Balance:
        return cls(ledger.budget, ledger.spent(), ledger.remaining())

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Plain data, ready for JSON."""
        parts = (("budget", self.total), ("spent", self.spent), ("remaining", self.left))
        return {name: {"epsilon": part.epsilon, "delta": part.delta} for name, part in parts}

    @property
    def usable(self) -> float:
        """The epsilon that is left, rounded down to six digits; 0 for a mere rounding, or where delta is used up."""
        total, left = self.total, self.left
        shown = float(show_down(left.epsilon))
        usable = shown > 1e-6 * total.epsilon and left.delta >= 0.5 * total.delta * shown / total.epsilon
        return shown if usable else 0.0

    def __str__(self) -> str:
        return (
            f"epsilon {show_up(self.spent.epsilon)} of {self.total.epsilon:g} is spent, {self.usable:g} is left; "
            f"delta {self.spent.delta:.3g} of {self.total.delta:.3g}"
        )


@dataclass(frozen=True, slots=True)
class OpenedLedger:
    """A data set's ledger, opened for one fit that fits it.

    ``budget`` is what the fit may cost in all, health included: its epsilon, and its part of the total delta.
    ``before`` is the balance at the opening; ``balance()`` is that of now.
    """

    ledger: Ledger
    budget: Budget
    created: bool
    before: Balance
    data: str  # as commands name it
    unit: PrivacyUnit = RECORD

    def balance(self) -> Balance:
        return Balance.of(self.ledger)

    def commit(self, stages: Iterable[Stage | tuple[Any, ...]], budget: Budget | None = None) -> Committed:
        """Spend ``stages`` as one commitment, at the delta of ``budget``: the fit's, or a part by ``split_budget``.

        Raises:
            BudgetExceeded: with the commands that help, if another process spent what was left; nothing is written.
        """
        share = (budget or self.budget).delta if self.ledger.bound == "basic" else None
        try:
            return self.ledger.commit(stages, delta=share, unit=self.unit)
        except BudgetExceeded as refused:
            raise BudgetExceeded(f"{refused} {_remedies(self.ledger, self.budget, self.data)}") from None

    def sentences(self) -> tuple[str, ...]:
        """What a person is told before the fit."""
        name = self.ledger.path.name
        taken = f"This fit takes epsilon {self.budget.epsilon:g} at delta {self.budget.delta:.3g}."
        if not self.created:
            return (f"ledger {name}: {self.before}.", taken)
        total = self.before.total
        made = f"ledger {name} was made, for a total of epsilon {total.epsilon:g} at delta {total.delta:.3g}."
        if self.budget.epsilon < total.epsilon:
            return (made, taken)
        more = f'{_command(self.data)} --total {2 * total.epsilon:g} --reason "..."'
        return (made, f"This fit takes all of it, as no larger --total was named. For more fits of the data: {more}")


def open_for_fit(
    path: str | os.PathLike[str],
    *,
    dataset: str,
    budget: Budget,
    total: Budget | float | None = None,
    size: float | None = None,
    data: str | os.PathLike[str] | None = None,
    unit: PrivacyUnit = RECORD,
) -> OpenedLedger:
    """Open the ledger at ``path`` for a fit of ``budget``, or make it: adaptive, bound "basic".

    Args:
        path: where it is, as ``locate_ledger`` says.
        dataset: the name that a new ledger gives the data set.
        budget: the fit's; of its delta no more is taken than ``fit_budget`` allows.
        total: of all fits, for a new ledger; a number is its epsilon, and ``budget.delta`` its delta. Without it the
            total is ``budget``. An existing ledger must have this total.
        size: the declared number of units, for which the total delta must be small.
        data: what the commands in a refusal call the data; by default the ledger itself.
        unit: whom the fit protects; a new ledger is made for it, and one for another unit is refused.

    Raises:
        BudgetExceeded: if the fit is over what is left; the ledger is as it was, and the message has the commands.

    Guarantee:
        any fits whose epsilons, as typed, sum to at most the total are admitted, each in commitments that cost at most
        the ``budget`` that comes out. Of processes that make it at once, one does.
    """
    agreed = _agree(budget, total)
    agreed.check_size(size)
    path = open_store(path, dataset=dataset).path
    called = str(path) if data is None else os.fspath(data)
    created = Ledger.create(path, dataset=dataset, budget=agreed, unit=unit.name)
    ledger = reopen(path)
    ledger.check_unit(unit)
    if not created:
        _check_total(ledger, total, called)
    share = fit_budget(ledger, budget)
    if ledger.bound in ("basic", "pld") and not ledger.fits(ApproxDP(share.epsilon, share.delta), unit=unit):
        raise BudgetExceeded(
            f"epsilon {budget.epsilon:g} does not fit the ledger {ledger.path}: {Balance.of(ledger)}. Nothing was "
            f"written. {_remedies(ledger, share, called)}"
        )
    return OpenedLedger(ledger, share, created, Balance.of(ledger), called, unit)


def fit_budget(ledger: Ledger | str | os.PathLike[str] | None, budget: Budget) -> Budget:
    """What a fit of ``budget`` may take of ``ledger``: its epsilon, and of delta at most its part D e / E.

    Edge cases:
        no ledger, or none at the path yet    the whole ``budget``
        bounds "rdp", "gdp", "pld"            the whole ``budget``: they use delta once, for the total
        less than its part is left            what is left, if that is half of it or more
    """
    if ledger is None or (not isinstance(ledger, Ledger) and not ledger_exists(ledger)):
        return budget
    book = ledger if isinstance(ledger, Ledger) else Ledger.read(ledger)
    if book.bound != "basic":
        return budget
    delta, epsilon = (to_decimal(amount) for amount in (book.budget.delta, book.budget.epsilon))
    part = min(below(DOWN.divide(DOWN.multiply(delta, to_decimal(budget.epsilon)), epsilon)), budget.delta)
    left = book.remaining().delta
    return replace(budget, delta=left if part / 2 <= left < part else part)


def split_budget(budget: Budget, share: float) -> tuple[Budget, Budget]:
    """Two budgets, ``share`` of ``budget`` and the rest: commitments within them cost at most ``budget`` together.

    Guarantee:
        holds for what a ledger of bound "basic" writes, every rounding included.

    >>> split_budget(Budget(1.0, 1e-6), 0.25)
    (Budget(epsilon=0.25, delta=2.5e-07), Budget(epsilon=0.75, delta=7.5e-07))
    """
    part = to_decimal(_validate.open_unit(share=share))
    epsilon, delta = to_decimal(budget.epsilon), to_decimal(budget.delta)
    first = Budget(chargeable(DOWN.multiply(part, epsilon)), below(DOWN.multiply(part, delta)))
    charged = max(round_up(first.epsilon), to_decimal(first.epsilon))
    rest = chargeable(DOWN.subtract(epsilon, charged)), below(DOWN.subtract(delta, to_decimal(first.delta)))
    large = budget.allow_large_delta
    return replace(first, allow_large_delta=large), Budget(*rest, allow_large_delta=large)


def extend_total(ledger: Ledger, epsilon: float, *, reason: str, delta: float | None = None) -> Budget:
    """Raise the total of ``ledger`` to ``epsilon``, on record with the ``reason``; the new total.

    Without ``delta``, a ledger of bound "basic" has it grow in proportion, so that fits that fill the new total find
    their part of delta; under the other bounds it stays, as they use it once.
    """
    old = ledger.budget
    if delta is None:
        grown = UP.divide(UP.multiply(to_decimal(old.delta), to_decimal(epsilon)), to_decimal(old.epsilon))
        delta = max(above(grown), old.delta) if ledger.bound == "basic" else old.delta
    new = Budget(epsilon, delta)
    ledger.extend(new, reason=reason)
    return new


def _agree(budget: Budget, total: Budget | float | None) -> Budget:
    """The total of a new ledger."""
    if total is None:
        return budget
    agreed = total if isinstance(total, Budget) else replace(budget, epsilon=_validate.positive(total=total))
    if agreed.epsilon < budget.epsilon:
        raise InvalidInput(
            f"total is {agreed.epsilon:g}: expected at least this fit's epsilon, {budget.epsilon:g}. Raise the total, "
            "or lower epsilon."
        )
    return agreed


def _check_total(ledger: Ledger, total: Budget | float | None, data: str) -> None:
    if total is None or total in (ledger.budget, ledger.budget.epsilon):
        return
    wanted = total.epsilon if isinstance(total, Budget) else total
    raise_it = f', or raise it: {_command(data)} --total {wanted:g} --reason "..."'
    raise LedgerError(
        f"total is {total}, and the ledger {ledger.path} has {ledger.budget}: a total is fixed when a ledger is made. "
        f"Leave it out{raise_it if wanted > ledger.budget.epsilon else ''}."
    )


def _remedies(ledger: Ledger, budget: Budget, data: str) -> str:
    """The commands after which the fit is admitted."""
    if ledger.mode != "adaptive":
        return "A precommitted ledger admits nothing more: name another by --ledger."
    balance = Balance.of(ledger)
    total, spent = balance.total, balance.spent
    used = UP.divide(UP.multiply(to_decimal(spent.delta), to_decimal(total.epsilon)), to_decimal(total.delta))
    needed = UP.add(max(to_decimal(spent.epsilon), used), to_decimal(budget.epsilon))
    ways = [f'raise the total: {_command(data)} --total {show_up(above(needed))} --reason "..."']
    if balance.usable:
        ways.append(f"fit with what is left: --epsilon {balance.usable:g}")
    return f"To go on, {', or '.join(ways)}."


def _command(data: str) -> str:
    return f"dpilot ledger extend {shlex.quote(data)}"
