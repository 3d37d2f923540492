"""A ledger as callers give it: itself, or the path it lies at or shall lie at."""

from __future__ import annotations

import os
from pathlib import Path

from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger.ledger import Ledger


def given(ledger: Ledger | str | os.PathLike[str], budget: Budget, dataset: str | None = None) -> Ledger:
    """The ledger, or the one at the path: reopened as it is, or made for ``budget`` and named by ``dataset``.

    Edge cases:
        no name    a new ledger is named by its file
    """
    if isinstance(ledger, Ledger):
        return ledger
    path = Path(ledger)
    if path.exists():
        return Ledger.open(path, dataset=Ledger.read(path).dataset)
    return Ledger.open(path, dataset=dataset or path.stem, budget=budget)
