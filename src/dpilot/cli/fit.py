"""``dpilot fit DATA``: from a table and its schema to a private model, its metrics and its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dpilot.cli import console

if TYPE_CHECKING:
    from dpilot.data.files import Table
    from dpilot.data.schema import Schema
    from dpilot.records import FitRecord, MetricRecord
    from dpilot.tables.table_run import TableRun

REPORT: Final = "report.html"


def fit(
    data: Annotated[Path, typer.Argument(help="A csv or parquet file.", show_default=False)],
    schema: Annotated[Path, typer.Option(help="The schema, TOML or JSON; dpilot schema init writes a skeleton.")],
    epsilon: Annotated[float, typer.Option(help="Total epsilon, everything included.")],
    target: Annotated[str | None, typer.Option(help="The column to predict, if the schema does not say.")] = None,
    delta: Annotated[float | None, typer.Option(help="Total delta; without it min(1e-5, 1/(10 size)).")] = None,
    allow_large_delta: Annotated[bool, typer.Option(help="Accept delta >= 1/size, which protects little.")] = False,
    protected: Annotated[str | None, typer.Option(help="The column whose groups are compared.")] = None,
    model: Annotated[str, typer.Option(help="logistic, mlp, or auto: the autopilot tunes its step.")] = "logistic",
    epochs: Annotated[float | None, typer.Option(help="Passes over the records, on average; 10 by default.")] = None,
    held_out: Annotated[
        float | None, typer.Option(help="Share of the records kept apart for the metrics; 0.1, or 0.05 to 0.1 by auto.")
    ] = None,
    size: Annotated[str, typer.Option(help='"public", "private", or the number of records, declared.')] = "public",
    ledger: Annotated[Path | None, typer.Option(help="The data set's ledger; made if it is not there.")] = None,
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("out/fit"),
    encoding: Annotated[str, typer.Option(help="The encoding of a csv file.")] = "utf-8",
    delimiter: Annotated[str, typer.Option(help="What stands between the columns of a csv file.")] = ",",
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Made-up records: nothing is read or spent.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a private model of a table, score it on held-out records, and write the run folder with its report."""
    from dpilot.data.files import Table
    from dpilot.data.schema import Schema

    declared = Schema.load(schema)
    roles = declared.with_roles(target=target, protected=protected)
    table = Table.open(data, roles, encoding=encoding, delimiter=delimiter)
    amount = int(size) if size.isdecimal() else size
    given: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "allow_large_delta": allow_large_delta,
        "target": target,
        "protected": protected,
        "epochs": epochs,
        "model": "logistic" if model == "auto" else model,
    } | ({} if held_out is None else {"held_out": held_out})
    if dry_run:
        _rehearse(table, declared, amount, given, json=json)
        return
    _check(table, declared, amount, given, out)
    how: dict[str, Any] = {"size": amount, "ledger": ledger, "run_folder": out, "device": device, **given}
    run = _autopilot(table, declared, how, quiet=json) if model == "auto" else _train(table, declared, how)
    _show(run.record, run.record.write_report(out / REPORT), out, json=json)


def _train(table: Table, schema: Schema, how: dict[str, Any]) -> TableRun:
    from dpilot.tables.fitting import fit_table

    with console.training_bar() as bar:
        return fit_table(table, schema, progress=bar, **how)


def _autopilot(table: Table, schema: Schema, how: dict[str, Any], *, quiet: bool) -> TableRun:
    from dpilot.tune.pilot.autopilot_table import autopilot_table
    from dpilot.tune.pilot.defaults import AutopilotOptions
    from dpilot.tune.pilot.outcome import silent

    options = AutopilotOptions(held_out=how.pop("held_out", None), epochs=how.pop("epochs"))
    how.pop("model")
    run = autopilot_table(table, schema, options=options, tell=silent if quiet else console.line, **how).table_run()
    run.save(how["run_folder"])
    return run


def _check(data: Table, schema: Schema, size: str | int, given: dict[str, Any], out: Path) -> None:
    """Refuse what is wrong before a bar is drawn or anything is spent; the folder must hold nothing."""
    from dpilot.errors import InvalidInput
    from dpilot.tables.fitting import declare_fit

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(f"out is {str(out)!r}: expected a folder that is empty or not there. Name another.")
    declare_fit(data, schema, size, **given)


def _rehearse(data: Table, schema: Schema, size: str | int, given: dict[str, Any], *, json: bool) -> None:
    from dpilot.tables.fitting import declare_fit
    from dpilot.tables.rehearsing import rehearse

    declared, _ = declare_fit(data, schema, size, **given)
    rehearsal = rehearse(declared)
    total = {"epsilon": declared.budget.epsilon, "delta": declared.budget.delta}
    if json:
        console.json({"dry_run": True, **total, **rehearsal.to_dict()})
        return
    facts = {**total, **{name: value for name, value in rehearsal.to_dict().items() if name != "reasons"}}
    console.table("Dry run on made-up records: nothing was read or spent", ["what", "value"], list(facts.items()))
    for reason in rehearsal.reasons:
        console.line(f"- {reason}")


def _show(record: FitRecord, report: Path, out: Path, *, json: bool) -> None:
    if json:
        console.json(
            {
                **record.privacy,
                "metrics": [_metric_dict(metric) for metric in record.metrics],
                "decisions": list(record.decisions),
                "unprotected": list(record.unprotected),
                "stamps": list(record.stamps),
                "run": str(out),
                "report": str(report),
            }
        )
        return
    privacy = record.privacy
    console.line(f"epsilon {privacy['epsilon']:.6g} at delta {privacy['delta']:.3g}, {privacy['unit']}")
    for what in record.unprotected:
        console.line(f"not protected: {what}")
    show_metrics(record, "Held-out metrics, with 95 % intervals", without=("confusion",))
    console.line(f"Run folder {out}, report {report}")


def _metric_dict(metric: MetricRecord) -> dict[str, Any]:
    return {
        "name": metric.name,
        "of": metric.of,
        "value": metric.value,
        "noise_interval": list(metric.noise),
        "sampling_interval": list(metric.sampling),
        "exact": metric.exact,
    }


def show_metrics(record: FitRecord, title: str, name: str = "metric", *, without: Sequence[str]) -> None:
    """The figures with their intervals, but those that are too long for a terminal, and the decisions."""

    def ends(interval: tuple[float, float]) -> str:
        return f"{interval[0]:.4g} to {interval[1]:.4g}"

    console.table(
        title,
        [name, "of", "value", "these records (noise)", "population (noise and sampling)"],
        [
            [each.name, each.of, each.value, ends(each.noise), ends(each.sampling)]
            for each in record.metrics
            if each.name not in without
        ],
    )
    for decision in record.decisions:
        console.line(f"- {decision}")
