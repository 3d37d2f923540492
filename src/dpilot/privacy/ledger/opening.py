"""A ledger as callers give it: itself, the path it lies at or shall lie at, or none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger.committed import Committed
from dpilot.privacy.ledger.history import Stage
from dpilot.privacy.ledger.ledger import Ledger


def as_ledger(ledger: Ledger | str | os.PathLike[str], budget: Budget, dataset: str | None = None) -> Ledger:
    """The ledger, or the one at the path: reopened as it is, or made for ``budget`` and named by ``dataset``.

    Edge cases:
        no name    a new ledger is named by its file
    """
    if isinstance(ledger, Ledger):
        return ledger
    path = Path(ledger)
    return reopen(path) if path.exists() else Ledger.open(path, dataset=dataset or path.stem, budget=budget)


def reopen(path: str | os.PathLike[str]) -> Ledger:
    """The ledger at ``path``, whatever data set it is of."""
    return Ledger.open(path, dataset=Ledger.read(path).dataset)


@contextmanager
def commitment(
    stages: Sequence[Stage],
    budget: Budget,
    ledger: Ledger | str | os.PathLike[str] | None,
    dataset: str,
    *,
    size: float | None,
) -> Iterator[tuple[Committed, Cost]]:
    """Commit ``stages`` at once, within ``budget``, in ``ledger`` or in one made for them, then run the body.

    Guarantee:
        The whole price is on disk before the body runs; what does not fit raises BudgetExceeded and writes nothing.
        A crash, a kill or an exception leaves all of it spent, stages that never began included.

    Edge cases:
        size         the declared number of records, for which delta must be small; None where it is to be bought
        no ledger    a precommitted one of ``budget``, named ``dataset``, is made, and dropped after the body
        a ledger     is charged what it makes of the stages; the cost that comes out is the whole ``budget``
    """
    budget.check_size(size)
    with tempfile.TemporaryDirectory(prefix="dpilot-") as folder:
        if ledger is None:
            book = Ledger.open(Path(folder) / "own.ledger", dataset=dataset, budget=budget, mode="precommitted")
        else:
            book = as_ledger(ledger, budget)
        made = book.commit(stages, delta=budget.delta if book.bound == "basic" else None)
        yield made, book.spent() if ledger is None else Cost(budget.epsilon, budget.delta)
