"""``dpilot ledger show|verify FILE``: what a data set has lost, and whether the record of it was touched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dpilot.cli import console
from dpilot.privacy.ledger import Entry, Ledger

app = typer.Typer(help="Look at a ledger, or check it.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The ledger file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Head = Annotated[str | None, typer.Option("--head", help="A head noted earlier: the ledger must have grown from it.")]


@app.command()
def show(file: File, json: Json = False) -> None:
    """The total, what is left, and every entry."""
    ledger = Ledger.read(file)
    facts = _facts(ledger)
    entries = ledger.entries()
    if json:
        console.json({**facts, "entries": [entry.as_dict() for entry in entries]})
        return
    spent, left, budget = facts["spent"], facts["remaining"], facts["budget"]
    console.line(f"data set  {facts['dataset']}, {facts['mode']}, bound {facts['bound']}")
    console.line(f"budget    epsilon {budget['epsilon']:g} at delta {budget['delta']:g}")
    console.line(f"spent     epsilon {spent['epsilon']:.6g} at delta {spent['delta']:.3g}")
    console.line(f"left      epsilon {left['epsilon']:.6g} at delta {left['delta']:.3g}")
    console.line(f"head      {facts['head']}")
    console.table("entries", Entry.COLUMNS, [entry.cells() for entry in entries])


@app.command()
def verify(file: File, json: Json = False, head: Head = None) -> None:
    """Fail if a row was altered, removed, reordered or cut off; else print the head, to be kept elsewhere."""
    current = Ledger.read(file).verify(head)
    if json:
        console.json({"file": str(file), "verified": True, "head": current})
        return
    console.line(f"{file}: {current.partition(':')[0]} rows, nothing altered. head {current}")


def _facts(ledger: Ledger) -> dict[str, Any]:
    spent, left, budget = ledger.spent(), ledger.remaining(), ledger.budget
    return {
        "dataset": ledger.dataset,
        "mode": ledger.mode,
        "bound": ledger.bound,
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
        "remaining": {"epsilon": left.epsilon, "delta": left.delta},
        "head": ledger.head(),
    }
