"""At what price a commitment is admitted, and when it may be lowered."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from dpilot.errors import InvalidInput
from dpilot.privacy._decimals import DOWN
from dpilot.privacy.amounts import Amount, Price
from dpilot.privacy.events import Event
from dpilot.privacy.ledger.history import History, Stage


def affordable(history: History, stages: Sequence[Stage], delta: Decimal | None) -> tuple[Price, bool]:
    """The first price that fits among the shares of delta to try, or the last one tried and False.

    The choice looks at the history and the events alone, never at what this commitment will release: so the deltas
    are fixed in advance of it, as the filter needs.
    """
    history.check_splits(stages)
    placed = [(stage.event, stage.cell) for stage in stages]
    shares = history.shares({stage.cell for stage in stages}) if delta is None else (delta,)
    for share in shares:
        price = history.bound.price(placed, share)
        if not history.closed and history.admits(price):
            return price, True
        if share is None and price.charges[0].amount.loss.is_finite():
            break  # what declares its cost is charged that, and no delta, unless asked
    return price, False


def refusal(history: History, stages: Sequence[Stage], price: Price) -> str:
    """Why a commitment was not admitted, in one sentence with the remedy."""
    names = ", ".join(repr(stage.purpose) for stage in stages)
    if history.closed:
        return f"{names} comes after the commitment of a precommitted ledger: nothing more is admitted. Open another."
    needed = history.bound.cost(history.total(price.charges), history.budget)
    spent = history.cost(history.total())
    return (
        f"{names} does not fit: the total would be epsilon {float(needed.loss):.6g} at delta "
        f"{float(needed.delta):.3g}, {spent.epsilon:.6g} is spent, and the budget is {history.budget}. "
        "Nothing was written. Use more noise, fewer steps, a smaller sample rate or a smaller delta, or ledger.extend "
        "with a reason."
    )


def lowered(history: History, seq: int, place: int, event: Event, drawn: bool) -> Amount:
    """The amount for which a begun stage may settle, or InvalidInput.

    Guarantee:
        after a first draw only sums over releases are lowered (rdp, gdp, declared epsilons): the filter is valid at
        every stopping point of those. A PLD price is one number for the whole commitment, so it is lowered before the
        first draw or not at all.
    """
    (commitment,) = (each for each in history.commitments if each.seq == seq)
    price = commitment.price
    if history.mode != "adaptive":
        raise InvalidInput("a precommitted ledger reports what was planned: a stage that stops early settles nothing.")
    if len(price.charges) != len(commitment.stages):
        raise InvalidInput("the stages of this commitment share one price: none of them settles alone.")
    if drawn and not price.additive:
        raise InvalidInput(
            'a release was drawn already, and bound "basic" prices the commitment as a whole: settle before the first '
            'draw, reserve in smaller pieces, or open the ledger with bound="rdp" or "gdp".'
        )
    reserved, stage = price.charges[place].amount, commitment.stages[place]
    found = history.bound.price([(event, stage.cell)], None).charges[0].amount
    if history.bound_name == "basic" and not drawn and not found.within(reserved):
        left = DOWN.subtract(reserved.delta, found.delta)
        found = history.bound.price([(event, stage.cell)], left).charges[0].amount
    if not found.within(reserved):
        raise InvalidInput(f"{event!r} costs more than what was reserved: expected less. Reserve it on its own.")
    return found
