"""How the golden ledgers were made: ``python -m tests.privacy.golden.make FOLDER``.

The files of a version that was released are never made again: they show that later code still reads what earlier code
wrote. A new format adds files and keeps these.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpilot.privacy.budget import Budget
from dpilot.privacy.events import ApproxDP, Composed, Gaussian, PoissonSampled, PureDP, Repeated, nothing
from dpilot.privacy.ledger import Ledger, Stage

NAMES = ("basic", "rdp", "gdp", "precommitted")
STEP = PoissonSampled(0.125, Gaussian(4.0))


def make(folder: Path) -> None:
    """One ledger of every mode and bound, with every kind of row, and what it says."""
    for name in NAMES:
        ledger = _opened(folder, name)
        _FILL[name](ledger)
        (folder / f"{name}.json").write_text(json.dumps(told(ledger), indent=1) + "\n")


def told(ledger: Ledger) -> dict[str, Any]:
    """Everything a ledger says about itself, as data."""
    spent, left = ledger.spent(), ledger.remaining()
    return {
        "dataset": ledger.dataset,
        "mode": ledger.mode,
        "bound": ledger.bound,
        "budget": [ledger.budget.epsilon, ledger.budget.delta],
        "spent": [spent.epsilon, spent.delta],
        "remaining": [left.epsilon, left.delta],
        "head": ledger.head(),
        "entries": [entry.as_dict() for entry in ledger.entries()],
    }


def _opened(folder: Path, name: str) -> Ledger:
    mode, bound = ("adaptive", name) if name != "precommitted" else (name, None)
    return Ledger.open(folder / f"{name}.ledger", dataset="gölden", budget=Budget(2.0, 1e-5), mode=mode, bound=bound)


def _basic(ledger: Ledger) -> None:
    with ledger.reserve(PureDP(0.1), purpose="count") as receipt:
        receipt.draw(PureDP(0.1))
    with ledger.reserve(Repeated(STEP, 10), purpose="trial", part="train", split="s") as receipt:
        receipt.settle(Repeated(STEP, 5))
    with suppress(RuntimeError), ledger.reserve(ApproxDP(0.05, 1e-7), purpose="crashed", part="held-out", split="s"):
        raise RuntimeError
    with suppress(RuntimeError), ledger.resume(5):
        raise RuntimeError
    ledger.extend(Budget(3.0, 1e-5), reason="agreed")
    committed = ledger.commit([("a", Gaussian(8.0)), ("b", Composed([Gaussian(16.0), PureDP(0.01)]), "train", "s")])
    with committed.stage("b"):
        pass


def _sums(ledger: Ledger) -> None:
    with ledger.reserve(Repeated(Gaussian(20.0), 4), purpose="x") as receipt:
        receipt.draw(Gaussian(20.0))
        receipt.settle(Gaussian(20.0))
    with ledger.reserve(Gaussian(20.0), purpose="y", part="train"):
        pass
    with ledger.commit([("z", Gaussian(30.0)), ("nothing", nothing())]).stage("z"):
        pass


def _precommitted(ledger: Ledger) -> None:
    stages = [
        ("bounds", PureDP(0.1)),
        Stage("train", Repeated(STEP, 10), "train"),
        Stage("score", Gaussian(9.0), "test"),
    ]
    committed = ledger.commit(stages)
    with committed.stage("bounds"):
        pass
    with suppress(RuntimeError), committed.stage("train"):
        raise RuntimeError


_FILL = {"basic": _basic, "rdp": _sums, "gdp": _sums, "precommitted": _precommitted}

if __name__ == "__main__":
    make(Path(sys.argv[1]))
