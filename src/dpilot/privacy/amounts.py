"""Amounts, where they fall, and how they add: parts of one split are disjoint, so only the worst of them counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dpilot.privacy import _decimals
from dpilot.privacy._decimals import ZERO

Cell = tuple[str, str] | None  # (split, part); None: all records


@dataclass(frozen=True, slots=True)
class Amount:
    """A loss in the bound's own unit (epsilon, Renyi divergence or mu^2) and the delta that goes with it."""

    loss: Decimal = ZERO
    delta: Decimal = ZERO

    def within(self, other: Amount) -> bool:
        return self.loss <= other.loss and self.delta <= other.delta


@dataclass(frozen=True, slots=True)
class Charge:
    """An amount that falls on the records of one cell."""

    amount: Amount
    cell: Cell = None


@dataclass(frozen=True, slots=True)
class Price:
    """What a commitment costs: its charges, each stage's own amount (for display), and the bound that was used.

    ``additive``: the price is a sum over releases, so releases that never happen may be given back afterwards.
    """

    charges: tuple[Charge, ...]
    stages: tuple[Amount, ...]
    bound_used: str
    additive: bool


def total(charges: Iterable[Charge]) -> Amount:
    """Add within each cell, take the worst part of each split, add the splits and what falls on everybody.

    >>> one, two = Amount(Decimal(1)), Amount(Decimal(2))
    >>> total([Charge(one), Charge(one, ("s", "a")), Charge(two, ("s", "b")), Charge(one, ("other", "a"))]).loss
    Decimal('4')
    """
    cells: dict[Cell, list[Amount]] = defaultdict(list)
    for charge in charges:
        cells[charge.cell].append(charge.amount)
    summed = {cell: add(amounts) for cell, amounts in cells.items()}
    worst: dict[str, list[Amount]] = defaultdict(list)
    for cell, amount in summed.items():
        if cell is not None:
            worst[cell[0]].append(amount)
    return add([summed.get(None, Amount()), *map(worst_of, worst.values())])


def add(amounts: Sequence[Amount]) -> Amount:
    """The sum, rounded up."""
    return Amount(_decimals.total(a.loss for a in amounts), _decimals.total(a.delta for a in amounts))


def worst_of(amounts: Sequence[Amount]) -> Amount:
    """The larger of each coordinate."""
    return Amount(max(a.loss for a in amounts), max(a.delta for a in amounts))
