"""``dpilot ledger``: make the ledger of a data set, see what is left, check the record of it, raise its total."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpilot.cli import console
from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy._decimals import show_down, show_up
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import (
    Balance,
    Entry,
    Ledger,
    dataset_name,
    extend_total,
    find_ledger,
    ledger_exists,
    migrate,
    reopen,
)
from dpilot.privacy.ledger.discovery import FOLDER, SUFFIX, check_data, locate
from dpilot.privacy.ledger.ledger import open_store
from dpilot.privacy.ledger.postgres import PostgresUrl, ledgers_in
from dpilot.privacy.ledger.store import Location, is_postgres
from dpilot.privacy.unit import PrivacyUnit

app = typer.Typer(help="The ledger of a data set: make it, look at it, check it, extend it.", no_args_is_help=True)

Data = Annotated[
    str,
    typer.Argument(help="The data (a file, a folder or a pattern), or the ledger itself: a file, or postgresql://..."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Head = Annotated[str | None, typer.Option("--head", help="A head noted earlier: the ledger must have grown from it.")]


@app.command()
def create(
    data: Data,
    total: Annotated[float, typer.Option(help="Total epsilon of everything that will ever be done with the data.")],
    delta: Annotated[float | None, typer.Option(help="Total delta; without it min(1e-5, 1/(10 size)).")] = None,
    size: Annotated[
        int | None,
        typer.Option(help="The number of records (of units, with --unit), declared; without it delta is 1e-6."),
    ] = None,
    allow_large_delta: Annotated[bool, typer.Option(help="Accept delta >= 1/size, which protects little.")] = False,
    unit: Annotated[
        str | None, typer.Option(help="Whom it protects: the column of ids, such as patient_id; without it a record.")
    ] = None,
    json: Json = False,
) -> None:
    """Make the ledger of a data set, with its total fixed; one that is there already must have the same total."""
    path = open_store(find_ledger(data), dataset=dataset_name(data)).path
    if not is_postgres(data) and path != Path(data).resolve():
        check_data(data)
    budget = Budget.of_size(total, delta, size, allow_large_delta=allow_large_delta)
    created = Ledger.create(path, dataset=dataset_name(data), budget=budget, unit=unit)
    ledger = reopen(path)
    if unit is not None:
        ledger.check_unit(PrivacyUnit.of(unit))
    asked = budget if delta is not None or size is not None else Budget(total, ledger.budget.delta)
    if not created and ledger.budget != asked:
        raise LedgerError(
            f"{path} exists, with {ledger.budget}, and {asked} is asked for: expected one ledger for one data set. "
            "Use it as it is, or raise its total: dpilot ledger extend."
        )
    _say(ledger, f"{path} {'was made' if created else 'is there already'}", {"created": created}, json=json)


@app.command("list")
def list_ledgers(
    folder: Annotated[
        str | None,
        typer.Argument(help=f"A folder or a database; without it {FOLDER}, or here.", show_default=False),
    ] = None,
    json: Json = False,
) -> int:
    """The ledgers in a folder or a database: what each data set has lost and has left."""
    where = folder or os.environ.get(FOLDER) or "."
    found: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for place in _ledgers_in(where):
        try:
            found[str(place)] = _facts(Ledger.read(place))
        except LedgerError as problem:
            problems[str(place)] = str(problem)
    if json:
        console.json({"ledgers": [{"file": path, **facts} for path, facts in found.items()], "problems": problems})
    elif found:
        shown = (("budget", show_down), ("spent", show_up), ("remaining", show_down))
        rows = []
        for path, facts in found.items():
            amounts = [write(facts[part]["epsilon"]) for part, write in shown]
            rows.append([locate(path).name, facts["dataset"], *amounts, facts["commitments"]])
        columns = ("file", "data set", "total epsilon", "spent", "left", "commitments")
        console.table(f"ledgers in {locate(where)}", columns, rows)
    else:
        console.line(f"no ledger lies in {locate(where)}: dpilot ledger create DATA --total E makes one.")
    for message in problems.values():
        console.fail(message)
    return 2 if problems else 0


@app.command()
def show(data: Data, json: Json = False) -> None:
    """The total, what is left, and every entry."""
    ledger = Ledger.read(_find(data))
    facts = _facts(ledger)
    entries, extensions = ledger.entries(), ledger.extensions()
    if json:
        lists = {"entries": [each.as_dict() for each in entries], "extensions": [each.as_dict() for each in extensions]}
        console.json({**facts, **lists})
        return
    spent, left, budget = facts["spent"], facts["remaining"], facts["budget"]
    console.line(f"data set  {facts['dataset']}, {facts['mode']}, bound {facts['bound']}, unit {facts['unit']}")
    console.line(f"budget    epsilon {budget['epsilon']:g} at delta {budget['delta']:g}")
    console.line(f"spent     epsilon {show_up(spent['epsilon'])} at delta {spent['delta']:.3g}")
    console.line(f"left      epsilon {show_down(left['epsilon'])} at delta {left['delta']:.3g}")
    console.line(f"head      {facts['head']}")
    for each in extensions:
        total = f"epsilon {each.budget.epsilon:g} at delta {each.budget.delta:.3g}"
        console.line(f"raised    to {total} in row {each.seq}, {each.time}: {each.reason}")
    console.table("entries", Entry.COLUMNS, [entry.cells() for entry in entries])


@app.command()
def verify(data: Data, json: Json = False, head: Head = None) -> None:
    """Fail if a row was altered, removed, reordered or cut off; else print the head, to be kept elsewhere."""
    file = _find(data)
    current = Ledger.read(file).verify(head)
    if json:
        console.json({"file": str(file), "verified": True, "head": current})
        return
    console.line(f"{file}: {current.partition(':')[0]} rows, nothing altered. head {current}")


@app.command()
def extend(
    data: Data,
    total: Annotated[float, typer.Option(help="The new total epsilon, what is spent included.")],
    reason: Annotated[str, typer.Option(help="Why; it stays in the ledger.")],
    delta: Annotated[
        float | None, typer.Option(help="The new total delta; without it, it grows in proportion to epsilon.")
    ] = None,
    json: Json = False,
) -> None:
    """Raise the total, for good and on record: every earlier promise weakens to the new one."""
    ledger = reopen(_find(data))
    old = ledger.budget
    new = extend_total(ledger, total, reason=reason, delta=delta)
    grown = f"epsilon {old.epsilon:g} at delta {old.delta:.3g}, and is {new.epsilon:g} at {new.delta:.3g}"
    _say(ledger, f"{ledger.path}: the total was {grown}", {"reason": reason}, json=json)


@app.command("migrate")
def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The data or its ledger: a file, or postgresql://...")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Where it goes on: a new file, or postgresql://...#NAME")],
    json: Json = False,
) -> None:
    """Move a ledger, with every row and its hash; the old one is closed and names the new one."""
    ledger = migrate(_find(source), target)
    _say(ledger, f"the ledger is at {ledger.path} now, head {ledger.head()}", {}, json=json)


@app.command()
def grant(
    ledger: Annotated[str, typer.Argument(metavar="URL", help="postgresql://host/database#NAME")],
    to: Annotated[str, typer.Option(help="A user of the server.")],
    role: Annotated[str, typer.Option(help='"spend" or "read".')],
    cap: Annotated[float | None, typer.Option(help="The most epsilon that this user may spend in all.")] = None,
    json: Json = False,
) -> None:
    """Let a user of the server read a ledger, or spend of it up to a cap; only its owner may."""
    book = reopen(_find(ledger))
    book.grant(to, role=role, cap=cap)
    grants = [{"to": each.to, "role": each.role, "cap": each.cap} for each in book.grants()]
    most = "" if cap is None else f", epsilon {cap:g} at most"
    _say(book, f"{to} may {role} {book.path}{most}", {"grants": grants}, json=json)


def _find(data: str) -> Location:
    path = find_ledger(data)
    if not ledger_exists(path):
        raise LedgerError(
            f"{path} does not exist: expected the ledger of {data}. dpilot fit makes it, or dpilot ledger create."
        )
    return path


def _ledgers_in(where: str) -> Sequence[Location]:
    if is_postgres(where):
        return ledgers_in(PostgresUrl.parse(where))
    if not Path(where).is_dir():
        raise InvalidInput(f"the folder is {where!r}: expected one that is there.")
    return sorted(Path(where).glob(f"*{SUFFIX}"))


def _say(ledger: Ledger, what: str, more: dict[str, Any], *, json: bool) -> None:
    if json:
        console.json({"file": str(ledger.path), **_facts(ledger), **more})
        return
    console.line(f"{what}.")
    console.line(f"{Balance.of(ledger)}.")


def _facts(ledger: Ledger) -> dict[str, Any]:
    return {
        "dataset": ledger.dataset,
        "mode": ledger.mode,
        "bound": ledger.bound,
        "unit": ledger.unit,
        **Balance.of(ledger).as_dict(),
        "commitments": len({entry.seq for entry in ledger.entries()}),
        "head": ledger.head(),
    }
