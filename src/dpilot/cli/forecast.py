"""``dpilot forecast RUN``: what another epsilon or more records would buy. Reads no data, spends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpilot.cli import console

if TYPE_CHECKING:
    from dpilot.report.forecast import KnownFigure


def forecast(
    run: Annotated[Path | None, typer.Argument(help="A run folder with figures.", show_default=False)] = None,
    value: Annotated[float | None, typer.Option(help="Instead of a run: an accuracy that is known.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Instead of a run: the epsilon it was reached with.")] = None,
    size: Annotated[int | None, typer.Option(help="Instead of a run: with how many records.")] = None,
    delta: Annotated[float | None, typer.Option(help="Instead of a run; without it min(1e-5, 1/(10 size)).")] = None,
    to_epsilon: Annotated[list[float] | None, typer.Option(help="Forecast this epsilon; may be repeated.")] = None,
    to_size: Annotated[list[int] | None, typer.Option(help="Forecast this many records; may be repeated.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What half, twice and four times the epsilon, or twice the records, would buy; or what is asked for."""
    from dpilot.report.forecast import LEVEL, usual
    from dpilot.report.forecast import forecast as expect

    known = _known(run, value, epsilon, size, delta)
    asked = [expect(known, epsilon=each) for each in to_epsilon or ()]
    asked += [expect(known, size=each) for each in to_size or ()]
    found = asked or list(usual(known))
    if json:
        now = {"figure": known.figure, "value": known.value, "interval": list(known.interval), "size": known.size}
        total = {"epsilon": known.budget.epsilon, "delta": known.budget.delta}
        console.json({"known": {**now, **total}, "forecasts": [each.to_dict() for each in found]})
        return
    low, high = known.interval
    console.table(
        f"{known.figure} now {known.value:.4g} ({low:.4g} to {high:.4g}), and what other runs would reach",
        ["epsilon", "records", f"{known.figure}, likely", f"{LEVEL:.0%} interval"],
        [
            [each.budget.epsilon, round(each.size), each.value, "{:.4g} to {:.4g}".format(*each.interval)]
            for each in found
        ],
    )
    console.line("From the released figure alone; the law was measured on accuracies of linear heads (docs/report.md).")
    console.line("Another run on the same records costs its own epsilon beside what is spent already.")


def _known(
    run: Path | None, value: float | None, epsilon: float | None, size: int | None, delta: float | None
) -> KnownFigure:
    from dpilot.errors import InvalidInput
    from dpilot.privacy.budget import Budget
    from dpilot.report import page
    from dpilot.report.forecast import KnownFigure, known_of

    declared = (value, epsilon, size)
    if run is not None and any(each is not None for each in (*declared, delta)):
        raise InvalidInput(
            "a run is given and numbers too: expected one of them. Leave --value, --epsilon, --size out."
        )
    if run is not None:
        return known_of(page.read(run))
    if value is None or epsilon is None or size is None:
        raise InvalidInput("no run is given: expected one, or all of --value, --epsilon and --size.")
    return KnownFigure("accuracy", value, (value, value), Budget.of_size(epsilon, delta, size), float(size))
