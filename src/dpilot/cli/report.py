"""``dpilot report RUN``: the page of a fit, written anew from its record. Reads no data, spends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpilot.cli import console


def report(
    run: Annotated[Path, typer.Argument(help="A run folder, with a fit.json in it.", show_default=False)],
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Privacy report",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write RUN/report.html from RUN/fit.json. The same record gives the same page."""
    from dpilot.report import page, promise, reading

    record = reading.read(run)
    written = page.write(record, run / reading.PAGE, title)
    told = promise.promise(record)
    if json:
        total = {name: record.privacy[name] for name in ("epsilon", "delta")}
        console.json({"report": str(written), **total, "private": told.private, "stamps": list(record.stamps)})
    else:
        console.line(f"{written}: epsilon {told.epsilon} at delta {told.delta}")
    if not told.private:
        console.note(f"this run is not private: {'; '.join(told.alarms)}")
