"""``dpilot compare RUN RUN ...``: what runs cost, how good they are, and how they differ. Reads no data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpilot.cli import console


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two run folders or more.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Write the page to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Runs beside one another: epsilon, figures with intervals, which none beats, and settings that differ."""
    from dpilot.report import comparison, page

    names = [run.name for run in runs]
    named = {run.name if names.count(run.name) == 1 else str(run): page.read(run) for run in runs}
    found = comparison.compare(named)
    written = None if out is None else page.write_page(page.render_comparison(found), out)
    if json:
        console.json({**found.to_dict(), **({} if written is None else {"page": str(written)})})
        return
    console.table("runs, with 95 % intervals for the population", *comparison.rows(found))
    if found.settings:
        console.table(
            "settings that differ",
            ["what", *found.runs],
            [[line, *values.values()] for line, values in found.settings.items()],
        )
    for sentence in found.best:
        console.line(sentence)
    if written is not None:
        console.line(f"Page {written}")
