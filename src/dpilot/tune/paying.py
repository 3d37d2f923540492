"""Every stage of a tuner on disk before the first record is read, and one receipt at a time after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Committed, Entry, Ledger, Stage, commitment
from dpilot.privacy.receipt import Receipt
from dpilot.tune.task import Task

__all__ = ["TuningPayment", "begin_stages", "commit_stages"]


@dataclass(frozen=True, slots=True)
class TuningPayment:
    """A commitment whose stages can begin, and what it costs."""

    committed: Committed
    cost: Cost

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.committed.entries()


@contextmanager
def commit_stages(
    task: Task, stages: Sequence[Stage], budget: Budget, ledger: Ledger | str | Path | None
) -> Iterator[TuningPayment]:
    """Commit ``stages`` of a tuning at once, within ``budget``, in ``ledger`` or in one of its own, then run it.

    Guarantee:
        The whole price is on disk before the body runs; what does not fit raises BudgetExceeded and writes nothing, and
        a delta of 1/size of the task or more is refused. A crash, a kill or an exception leaves all of it spent, stages
        that never began included.

    Edge cases:
        no ledger    a precommitted one of the tuner's own budget is made, and dropped: the record keeps its entries
        a ledger     is charged what it makes of the stages; the cost reported here is the whole ``budget``
    """
    size = task.size + task.held_out_size
    with commitment(stages, budget, ledger, dataset="one tuning", size=size) as (made, cost):
        yield TuningPayment(made, cost)


@contextmanager
def begin_stages(paid_for: TuningPayment | Committed, purposes: Sequence[str]) -> Iterator[list[Receipt]]:
    """The receipts of several planned stages that run together, one for each purpose."""
    committed = paid_for.committed if isinstance(paid_for, TuningPayment) else paid_for
    with ExitStack() as stack:
        yield [stack.enter_context(committed.stage(purpose)) for purpose in purposes]
