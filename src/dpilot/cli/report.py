"""``dpilot report RUN``: the page of a run, written anew from its record. Reads no data, spends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpilot.cli import console


def report(
    run: Annotated[Path, typer.Argument(help="A run folder, of a fit, a Trainer or a tuner.", show_default=False)],
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Privacy report",
    about: Annotated[
        Path | None, typer.Option(help="A toml file: controller, contact, purpose, data_origin, intended_use, ...")
    ] = None,
    baseline: Annotated[
        float | None, typer.Option(help="The first figure without privacy, from public data; never from the records.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write RUN/report.html from the record of the run. The same record gives the same page."""
    from dpilot.report import page
    from dpilot.report.promise import promise
    from dpilot.train.checkpoint.statement import cover_file

    record = page.read(run)
    written = page.write(record, run / page.PAGE, title, about=about, baseline=baseline)
    covered = cover_file(run, written)
    statement = promise(record)
    if json:
        total = {name: record.privacy[name] for name in ("epsilon", "delta")}
        private = {"unit": statement.unit, "private": statement.private, "stamps": list(record.stamps)}
        console.json({"report": str(written), **total, **private})
    else:
        console.line(f"{written}: epsilon {statement.epsilon} at delta {statement.delta}, {statement.unit}")
    if not covered:
        console.note("the run folder is signed, and this page is not covered: sign again, or set DPILOT_KEY.")
    if not statement.private:
        console.note(f"this run is not private: {'; '.join(statement.alarms)}")
