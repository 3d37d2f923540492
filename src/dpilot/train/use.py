"""A plan is used once: the meeting place of whoever draws its batches and whoever takes its steps."""

from __future__ import annotations

import weakref
from typing import Any

from dpilot.errors import InvalidInput
from dpilot.keys import Chain
from dpilot.sampling import PoissonSampler
from dpilot.train.plan import Plan


class Use:
    """One use of a plan: its sampler, and whether its price is on disk so that records may be read."""

    __slots__ = ("form", "paid", "sampler")

    def __init__(self, plan: Plan, state: Chain | None = None) -> None:
        self.sampler = PoissonSampler(plan.sample_rate, plan.steps, state=state)
        self.paid = False
        self.form: Any = None  # of the records, where whoever takes the steps was given an example

    def rewind(self) -> PoissonSampler:
        """A sampler that issues again what was issued and never claimed; batches still on their way are void."""
        old = self.sampler
        self.sampler = PoissonSampler(old.rate, old.steps, state=old.state)
        return self.sampler


_USES: dict[int, Use] = {}


def use_of(plan: Plan) -> Use:
    """The plan's current use; the first to ask begins one."""
    if id(plan) not in _USES:
        _USES[id(plan)] = Use(plan)
        weakref.finalize(plan, _USES.pop, id(plan), None)
    return _USES[id(plan)]


def check_unused(plan: Plan, *, own_ledger: bool) -> None:
    """Refuse a second use of a plan that brings its own ledger: two runs would each claim to be all that happened."""
    if own_ledger and id(plan) in _USES and _USES[id(plan)].paid:
        raise InvalidInput(
            "the plan was used already: expected a plan for each run, as its ledger counts one. Pass one ledger "
            "to both runs, and they share its budget."
        )


def begin(plan: Plan, state: Chain | None = None) -> Use:
    """The use whose price was just paid: the one a loader waits for, or a new one (or one with given coins)."""
    waiting = use_of(plan)
    if waiting.paid or state is not None:
        waiting = _USES[id(plan)] = Use(plan, state)
    waiting.paid = True
    return waiting
