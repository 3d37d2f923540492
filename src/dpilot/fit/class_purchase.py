"""Classes that nobody declared: bought before anything else of a fit, by thresholded partition selection.

The health check and all that is planned after it need to know the classes, so they are a commitment of their own; the
fit goes on with the rest of the budget as if they had been declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from dpilot.data.frames import Frame
from dpilot.data.states import read_column
from dpilot.errors import InvalidInput
from dpilot.fit.declaration import Declaration
from dpilot.fit.source import RecordSource
from dpilot.mechanism import Noise
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Committed, Stage
from dpilot.privacy.ledger.totals import split_budget
from dpilot.statistics import partition_terms, partitions, partitions_event

__all__ = ["ClassPurchase"]

_SHARE: Final = 0.1
"""Of epsilon and delta: at epsilon 1 and delta 1e-6 a class of about 230 records shows."""
_SHOWN: Final = 8  # classes that a sentence lists
_IMAGINED: Final = ("class 1", "class 2")


@dataclass(frozen=True, slots=True)
class ClassPurchase:
    """What the classes cost, from declared numbers alone: noise multiplier, threshold, ``price``, and what is left."""

    noise_multiplier: float
    threshold: float
    price: Budget
    rest: Budget

    @classmethod
    def plan(cls, budget: Budget) -> Self:
        """That of a fit of ``budget``."""
        price, rest = split_budget(budget, _SHARE)
        return cls(*partition_terms(price), price, rest)

    def commitment(self, name: str) -> tuple[list[Stage], Budget]:
        """The first commitment of a fit, and its price but for the threshold's delta; ``name`` is that of the key."""
        stage = Stage(f"classes of fit {name}", partitions_event(self.noise_multiplier, self.threshold))
        return [stage], replace(self.price, delta=self.price.delta / 2)

    def check_bound(self, bound: str) -> None:
        """Refuse a ledger that has no place for the chance that a class of one record shows."""
        if bound != "basic":
            raise InvalidInput(
                f'the classes are to be bought, and the ledger adds up by bound "{bound}": expected "basic", as the '
                "chance of a class of one record is no Gaussian. Declare the classes, or open another ledger."
            )

    def buy(self, sample: RecordSource, committed: Committed, noise: Noise) -> list[str]:
        """The classes of many records, in order; ``sample`` has one record of each unit.

        Guarantee:
            A record has one class at most, a function of its own cell: ``statistics.partitions``.
        """
        (entry,) = committed.entries()
        with committed.stage(entry.purpose) as receipt:
            return partitions(
                _values(sample),
                noise_multiplier=self.noise_multiplier,
                threshold=self.threshold,
                receipt=receipt,
                noise=noise,
            )

    def settle(self, declared: Declaration, classes: Sequence[str] = _IMAGINED) -> Declaration:
        """The fit that goes on with ``classes`` and the rest of the budget; without them as if there were two."""
        return replace(declared, schema=declared.schema.with_classes(classes), budget=self.rest)

    def reason(self, classes: Sequence[str] | None = None) -> str:
        """What was bought, in a sentence."""
        known = classes or ()
        listed = ", ".join([*known[:_SHOWN], *[f"{len(known)} in all"] * (len(known) > _SHOWN)])
        found = f": {listed}" if known else "; two are reckoned with here"
        return (
            f"{_SHARE:.0%} of epsilon and delta buys the classes, those of about {self.threshold:.0f} records or "
            f"more{found}. Records of others are null."
        )


def _values(sample: RecordSource) -> Iterator[Any]:
    column = sample.schema.target
    for frame in sample.frames():
        yield from read_column(column, Frame.of(frame), sample.schema).values.tolist()
