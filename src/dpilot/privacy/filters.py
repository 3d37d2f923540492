"""How the commitments of a ledger add up to a total: four bounds, each with its theorem (docs/proofs/filters.md).

| bound | loss of a commitment | valid when |
|---|---|---|
| basic | epsilon, each commitment priced by its own PLD at its own delta | commitments are chosen adaptively |
| rdp | Renyi divergence at the one order written in row 0 | commitments, and steps within, are chosen adaptively |
| gdp | mu^2 | the same, and every release is an unsampled Gaussian |
| pld | epsilon of all stages composed | one commitment, everything fixed before data is read |

Losses add. Parts of one split are disjoint, so of them only the worst counts, after adding; splits add up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import product
from typing import Protocol

from dpilot.errors import InvalidInput
from dpilot.privacy import _decimals, accountant
from dpilot.privacy._decimals import ZERO, round_up, to_decimal
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import (
    ApproxDP,
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
    leaves,
    selects,
)

_MOST_COMBINATIONS = 256

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


class Bound(Protocol):
    """One way of adding up; ``delta`` is the share a commitment may use, where the bound gives out shares."""

    def price(self, stages: Sequence[tuple[Event, Cell]], delta: Decimal | None) -> Price: ...

    def cost(self, amount: Amount, budget: Budget) -> Amount: ...

    def fits(self, amount: Amount, budget: Budget) -> bool: ...


@dataclass(frozen=True, slots=True)
class BasicFilter:
    """Sums of (epsilon, delta) over whole commitments, each composed by its own PLD at the ``delta`` it was given.

    Without a delta, what the events themselves declare is added, and anything else is infinite.

    Reference: Rogers, Roth, Ullman, Vadhan, "Privacy Odometers and Filters", NeurIPS 2016 (basic composition).
    """

    def price(self, stages: Sequence[tuple[Event, Cell]], delta: Decimal | None) -> Price:
        return _joint_price("basic", stages, lambda event: _approximate(event, delta))

    def cost(self, amount: Amount, budget: Budget) -> Amount:
        del budget
        return amount

    def fits(self, amount: Amount, budget: Budget) -> bool:
        return amount.within(Amount(to_decimal(budget.epsilon), to_decimal(budget.delta)))


@dataclass(frozen=True, slots=True)
class PldFilter:
    """The PLD of everything, at the whole ``delta``: for the one commitment of a precommitted ledger.

    Reference: Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", 2022.
    """

    delta: Decimal

    def price(self, stages: Sequence[tuple[Event, Cell]], delta: Decimal | None) -> Price:
        _no_delta(delta, "pld")
        return _joint_price("precommitted", stages, self._best)

    def cost(self, amount: Amount, budget: Budget) -> Amount:
        return BasicFilter().cost(amount, budget)

    def fits(self, amount: Amount, budget: Budget) -> bool:
        return BasicFilter().fits(amount, budget)

    def _best(self, event: Event) -> tuple[Amount, str]:
        added, way = _approximate(event, None)
        composed = _approximate(event, _decimals.DOWN.subtract(self.delta, added.delta))
        return min((added, way), composed, key=lambda found: found[0].loss)


@dataclass(frozen=True, slots=True)
class RenyiFilter:
    """Sums of Renyi divergences at one order, fixed before the first spend.

    Reference: Feldman and Zrnic, "Individual Privacy Accounting via a Renyi Filter", NeurIPS 2021.
    """

    order: float

    def price(self, stages: Sequence[tuple[Event, Cell]], delta: Decimal | None) -> Price:
        _no_delta(delta, "rdp")
        charges = tuple(Charge(Amount(round_up(_divergence(event, self.order))), cell) for event, cell in stages)
        return Price(charges, tuple(c.amount for c in charges), f"rdp:order {self.order:g}", additive=True)

    def cost(self, amount: Amount, budget: Budget) -> Amount:
        if not amount.loss:
            return Amount()
        epsilon = accountant.rdp_epsilon([self.order], [_decimals.above(amount.loss)], budget.delta)
        return Amount(round_up(epsilon * (1 + 1e-14)), to_decimal(budget.delta))

    def fits(self, amount: Amount, budget: Budget) -> bool:
        return self.cost(amount, budget).loss <= to_decimal(budget.epsilon)


@dataclass(frozen=True, slots=True)
class GdpFilter:
    """Sums of mu^2 over unsampled Gaussian releases; exact.

    Reference: Smith and Thakurta, "Fully Adaptive Composition for Gaussian Differential Privacy", 2022.
    """

    def price(self, stages: Sequence[tuple[Event, Cell]], delta: Decimal | None) -> Price:
        _no_delta(delta, "gdp")
        charges = tuple(Charge(Amount(_mu_squared(event)), cell) for event, cell in stages)
        return Price(charges, tuple(charge.amount for charge in charges), "gdp", additive=True)

    def cost(self, amount: Amount, budget: Budget) -> Amount:
        if not amount.loss:
            return Amount()
        epsilon = accountant.gdp_epsilon(_mu(amount), budget.delta)
        ceiling = budget.epsilon if self.fits(amount, budget) else math.inf
        return Amount(round_up(min(epsilon, ceiling)), to_decimal(budget.delta))

    def fits(self, amount: Amount, budget: Budget) -> bool:
        return accountant.gdp_delta(_mu(amount), budget.epsilon) * (1 + 1e-10) <= budget.delta


def choose_order(budget: Budget) -> float:
    """The order at which the most Gaussian signal fits: argmax over orders a of (epsilon - overhead(a)) / a.

    A Gaussian release has divergence a mu^2 / 2, so this is the order that admits the largest sum of mu^2. It
    depends on the budget alone, as a filter's order must.

    >>> choose_order(Budget(1.0, 1e-5)), choose_order(Budget(8.0, 1e-5))
    (18.0, 3.9)
    """

    def room(order: float) -> float:
        overhead = math.log1p(-1 / order) - math.log(budget.delta * order) / (order - 1)
        return (budget.epsilon - overhead) / order

    best = max(accountant.ORDERS, key=room)
    if room(best) <= 0:
        raise InvalidInput(f'{budget} admits nothing under bound "rdp": expected a larger epsilon. Use bound="basic".')
    return best


def _joint_price(name: str, stages: Sequence[tuple[Event, Cell]], find: Callable[[Event], tuple[Amount, str]]) -> Price:
    """One joint price for all stages: that of the worst case, in their common cell or on everybody."""
    cases = [find(event) for event in _worst_cases(stages)]
    alone = [find(event)[0] for event, _ in stages] if len(stages) > 1 else [cases[0][0]]
    cells = {cell for _, cell in stages}
    way = cases[0][1] if len({way for _, way in cases}) == 1 else "pld"
    charge = Charge(worst_of([amount for amount, _ in cases]), cells.pop() if len(cells) == 1 else None)
    return Price((charge,), tuple(alone), f"{name}:{way}", additive=way == "sum" and len(stages) == 1)


def _no_delta(delta: Decimal | None, bound: str) -> None:
    if delta is not None:
        raise InvalidInput(f'delta is given, but bound "{bound}" uses delta once, for the total. Leave it out.')


def _worst_cases(stages: Sequence[tuple[Event, Cell]]) -> Iterator[Event]:
    """What one record can be touched by: the events on all records, and those of one part of each split."""
    shared = [event for event, cell in stages if cell is None]
    splits: dict[str, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event, cell in stages:
        if cell is not None:
            splits[cell[0]][cell[1]].append(event)
    if math.prod(map(len, splits.values())) > _MOST_COMBINATIONS:
        raise InvalidInput(f"the parts combine in more than {_MOST_COMBINATIONS} ways: expected fewer splits.")
    for choice in product(*(parts.values() for parts in splits.values())):
        yield _compose([*shared, *(event for part in choice for event in part)])


def _compose(events: Sequence[Event]) -> Event:
    return events[0] if len(events) == 1 else Composed(events)


def _approximate(event: Event, delta: Decimal | None) -> tuple[Amount, str]:
    """(epsilon, delta) of an event and how it was found. Declared pairs add; the rest is composed at ``delta``."""
    parts = list(leaves(event))
    pairs = [(part, times) for part, times in parts if isinstance(part, ApproxDP)]
    rest = [(part, times) for part, times in parts if not isinstance(part, ApproxDP)]
    amount = add(
        [Amount(_decimals.times(n, to_decimal(p.epsilon)), _decimals.times(n, to_decimal(p.delta))) for p, n in pairs]
    )
    pure = [(p.epsilon, times) for p, times in rest if isinstance(p, PureDP | ExponentialMechanism)]
    if len(pure) == len(rest) and (delta is None or not rest):  # everything says what it costs
        return add([amount, *(Amount(_decimals.times(n, to_decimal(epsilon))) for epsilon, n in pure)]), "sum"
    if delta is None or delta <= 0:
        return Amount(Decimal("Infinity"), amount.delta), "pld"
    remainder = event if not pairs else _compose([Repeated(part, times) for part, times in rest])
    way = "rdp" if selects(remainder) else "pld"
    epsilon = _epsilon(remainder, float(delta), way)
    return add([amount, Amount(round_up(epsilon), delta)]), way


@lru_cache(maxsize=512)
def _epsilon(event: Event, delta: float, way: str) -> float:
    while isinstance(event, Repeated) and event.times == 1:
        event = event.event
    if isinstance(event, RepeatAndSelect):
        return accountant.epsilon(event, delta)
    return accountant.epsilon(event, delta, way)


def _divergence(event: Event, order: float) -> float:
    if selects(event):  # the selection bound draws on the whole curve, not on one order
        return float(accountant.rdp(event)[accountant.ORDERS.index(order)])
    return float(accountant.rdp(event, [order])[0])


def _mu_squared(event: Event) -> Decimal:
    total = ZERO
    for part, times in leaves(event):
        while isinstance(part, PoissonSampled) and part.rate == 1:
            part = part.event
        if not isinstance(part, Gaussian):
            raise InvalidInput(
                f'{type(part).__name__} is refused by bound "gdp": expected unsampled Gaussians only. '
                'Open the ledger with bound="basic" or bound="rdp".'
            )
        sigma = Decimal.from_float(part.noise_multiplier)
        total = _decimals.UP.add(total, _decimals.UP.divide(Decimal(times), _decimals.DOWN.multiply(sigma, sigma)))
    return total


def _mu(amount: Amount) -> float:
    return _decimals.above(_decimals.square_root(amount.loss))
