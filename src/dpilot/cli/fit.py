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
    from dpilot.fit.declaration import Declaration
    from dpilot.fit.model import FittedModel
    from dpilot.fit.pipeline import FitStopped
    from dpilot.privacy.ledger import Balance, OpenedLedger
    from dpilot.records import FitRecord, MetricRecord

REPORT: Final = "report.html"
STOPPED: Final = 4
"""The exit code of a fit that its health check stopped."""
INTERRUPTED: Final = 130
"""That of one that Ctrl-C ended."""
_FOLDER: Final = Path("out/fit")


def fit(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="A csv or parquet file, a folder or pattern of parquet files, or one of pictures.", show_default=False
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(help="The schema, TOML or JSON; dpilot schema init writes a skeleton. A folder needs none."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Total epsilon, everything included.")] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict, if the schema does not say.")] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="A column of texts, in place of a schema; may be repeated.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Reads the texts in place of hashed words: minilm, or a folder."),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help='The classes, as neg,pos, or "buy" (those of many records, paid): beside --text, or of a folder of '
            "pictures in place of its names."
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Total delta; without it min(1e-5, 1/(10 size)).")] = None,
    allow_large_delta: Annotated[bool, typer.Option(help="Accept delta >= 1/size, which protects little.")] = False,
    protected: Annotated[
        list[str] | None, typer.Option(help="A column whose groups are compared; may be repeated.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="Whom to protect with all their rows: the column of ids, such as patient_id.")
    ] = None,
    rows_per_unit: Annotated[
        str | None, typer.Option(help='At most so many rows of a unit count; 8 by default, "buy" a noisy quantile.')
    ] = None,
    missing_unit: Annotated[
        str, typer.Option(help='Rows without an id: "null" leaves them out, "row" protects each as a row only.')
    ] = "null",
    model: Annotated[
        str, typer.Option(help="auto (grids where they pay), grids, additive, logistic, linear, mlp or finetune.")
    ] = "auto",
    objective: Annotated[
        str, typer.Option(help="What tuning aims at: accuracy, macro, worst_class, worst_group or recall:CLASS.")
    ] = "accuracy",
    class_weight: Annotated[
        list[str] | None,
        typer.Option(help='"balanced", by noisy counts that are paid, or CLASS=WEIGHT; may be repeated.'),
    ] = None,
    weight_cap: Annotated[float, typer.Option(help="The most that one class weight is over another.")] = 10.0,
    decision: Annotated[
        str | None, typer.Option(help='"likeliest", or "prior": by probabilities over noisy shares of the classes.')
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="The most passes over the records of one run.")] = None,
    held_out: Annotated[
        float | None, typer.Option(help="Share of the records kept apart for the metrics; 0.1, or 0.05 to 0.1 by auto.")
    ] = None,
    size: Annotated[str, typer.Option(help='"public", "private", or the number of records, declared.')] = "public",
    stop_below: Annotated[float, typer.Option(help="Stop if fewer records than this share can be used.")] = 0.5,
    ledger: Annotated[
        str | None,
        typer.Option(help="The data set's ledger, a file or postgresql://...; by default DATA's own, beside it."),
    ] = None,
    total: Annotated[float | None, typer.Option(help="Total epsilon of all fits, where the ledger is made.")] = None,
    out: Annotated[Path, typer.Option(help="The run folder.")] = _FOLDER,
    resume: Annotated[Path | None, typer.Option(help="Go on with the interrupted fit in this run folder.")] = None,
    encoding: Annotated[str, typer.Option(help="The encoding of a csv file.")] = "utf-8",
    delimiter: Annotated[str, typer.Option(help="What stands between the columns of a csv file.")] = ",",
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Made-up records: nothing is read or spent.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a private model of a table, score it on held-out records, and write the run folder with its report."""
    from dpilot.errors import InvalidInput

    if resume is not None:
        if data is not None:
            raise InvalidInput("DATA is given beside --resume: expected one of them, as the run folder names its data.")
        _go_on(resume, json=json)
        return
    from dpilot.data.files import is_picture_folder

    is_folder = data is not None and is_picture_folder(data)
    declares_itself = is_folder or bool(text)
    if data is None or (schema is None and not declares_itself) or epsilon is None:
        wanted = (("DATA", data), ("--schema", schema or declares_itself or None), ("--epsilon", epsilon))
        absent = [name for name, given in wanted if given is None]
        raise InvalidInput(
            f"{' and '.join(absent)} not given: expected dpilot fit DATA --schema FILE --epsilon E (dpilot schema init "
            "DATA writes a schema to fill in), or, of texts alone, dpilot fit DATA --text COLUMN --target COLUMN "
            "--classes neg,pos --epsilon E, or, of pictures in class folders, dpilot fit FOLDER --epsilon E."
        )
    if text or encoder:
        if schema is not None or is_folder:
            raise InvalidInput("--text or --encoder beside --schema or a folder: expected them in the schema.")
        declared, published = _declare_texts(text or [], target, classes, encoder), tuple[str, ...]()
    else:
        declared, published = _schema(data, schema, classes)
    given: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "allow_large_delta": allow_large_delta,
        "size": int(size) if size.isdecimal() else size,
        "target": target,
        "protected": protected or None,
        "unit": unit,
        "rows_per_unit": int(rows_per_unit) if rows_per_unit and rows_per_unit.isdecimal() else rows_per_unit,
        "missing_unit": missing_unit,
        "unprotected": published,
    }
    chosen: dict[str, Any] = {
        "model": model,
        "objective": objective,
        "class_weight": _class_weight(class_weight),
        "weight_cap": weight_cap,
        "decision": decision,
        "epochs": epochs,
        "held_out": held_out,
        "device": device,
        "stop_below": stop_below,
    }
    table = _open(data, declared, given, encoding=encoding, delimiter=delimiter)
    if dry_run:
        _rehearse(table, declared, {**given, **chosen}, json=json)
        return
    judged = _check(table, declared, {**given, **chosen}, out)
    opened = _open_ledger(data, ledger, judged, total)
    if not json:
        for sentence in opened.sentences():
            console.line(sentence)
    _fit(table, declared, {**given, **chosen, "ledger": opened.ledger}, out, resume=False, json=json)


def _declare_texts(text: list[str], target: str | None, classes: str | None, encoder: str | None) -> Schema:
    """The schema that --text, --target and --classes come to; columns that are not named are ignored."""
    from dpilot.data.schema import Schema
    from dpilot.data.types.base import BUY
    from dpilot.errors import InvalidInput

    if target is None or classes is None:
        raise InvalidInput("--text without --target and --classes: expected both, as --target label --classes neg,pos.")
    reader = {} if encoder is None else {"encoder": encoder}
    columns: dict[str, Any] = {name: {"type": "text", **reader} for name in text}
    own = {"levels": BUY} if classes == BUY else {"categories": _names(classes)}
    columns[target] = {"type": "categorical", **own, "role": "target"}
    return Schema.from_dict({"columns": columns, "defaults": {"others": "ignored"}})


def _schema(data: Path, schema: Path | None, classes: str | None) -> tuple[Schema, tuple[str, ...]]:
    """What is declared of DATA, and what of it was taken from the names of folders, which is published so."""
    from dpilot.data.folders import CLASS_FOLDERS, folder_schema
    from dpilot.data.schema import Schema
    from dpilot.data.types.base import BUY
    from dpilot.errors import InvalidInput

    if schema is not None:
        if classes is not None:
            raise InvalidInput("--classes beside --schema: expected them in the schema.")
        return Schema.load(schema), ()
    if classes is not None:
        return folder_schema(data, BUY if classes == BUY else _names(classes)), ()
    return folder_schema(data), (CLASS_FOLDERS,)


def _names(classes: str) -> list[str]:
    return [each.strip() for each in classes.split(",")]


def _class_weight(given: list[str] | None) -> str | dict[str, float] | None:
    """What --class-weight declares: "balanced", or the weights of classes."""
    from dpilot.errors import InvalidInput

    if not given or given == ["balanced"]:
        return given[0] if given else None
    weights: dict[str, float] = {}
    for each in given:
        name, _, weight = each.rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise InvalidInput(f"--class-weight is {each!r}: expected balanced alone, or CLASS=WEIGHT.") from None
    return weights


def _open_ledger(data: Path, ledger: str | None, judged: Declaration, total: float | None) -> OpenedLedger:
    """The data set's own ledger, found or made; refused where the fit is over what is left there."""
    from dpilot.privacy.ledger import dataset_name, locate_ledger, open_for_fit

    path = locate_ledger(data, ledger=ledger)
    return open_for_fit(
        path,
        dataset=dataset_name(data),
        budget=judged.budget,
        total=total,
        size=judged.size,
        data=data,
        unit=judged.unit,
    )


def _open(data: Path, schema: Schema, given: dict[str, Any], *, encoding: str, delimiter: str) -> Table:
    from dpilot.data.files import Table, column_names

    names = column_names(data, encoding=encoding, delimiter=delimiter)
    roles = schema.with_roles(target=given["target"], protected=given["protected"], unit=given["unit"])
    return Table.open(data, roles.resolve(names, source=data.name), encoding=encoding, delimiter=delimiter)


def _go_on(folder: Path, *, json: bool) -> None:
    """Repeat an interrupted fit with the arguments that it began with: what is paid is not paid again."""
    from dpilot.data.schema import Schema
    from dpilot.errors import InvalidInput
    from dpilot.fit.folder import read_arguments

    given = read_arguments(folder)
    data, schema = given.pop("data"), Schema.from_dict(given.pop("schema"))
    if data is None:
        raise InvalidInput(f"{folder} holds a fit of a table in memory: go on with it from Python, by the same call.")
    encoding, delimiter = given.pop("encoding"), given.pop("delimiter")
    table = _open(Path(data), schema, given, encoding=encoding, delimiter=delimiter)
    _fit(table, schema, given, folder, resume=True, json=json)


def _fit(table: Table, schema: Schema, how: dict[str, Any], out: Path, *, resume: bool, json: bool) -> None:
    from dpilot.fit.learners.base import silent
    from dpilot.fit.pipeline import FitStopped
    from dpilot.fit.table import fit_table

    try:
        with console.training_bar() as bar:
            run = fit_table(
                table, schema, run_folder=out, resume=resume, progress=bar, reading=bar.read,
                tell=silent if json else console.line, **how,
            )  # fmt: skip
    except FitStopped as stopped:
        _show_stopped(stopped, json=json)
        raise typer.Exit(STOPPED) from None
    except KeyboardInterrupt as stopped:  # here, as the parser would leave without a word
        console.fail(" ".join(["interrupted.", *getattr(stopped, "__notes__", ())]))
        raise typer.Exit(INTERRUPTED) from None
    from dpilot.privacy.ledger import Balance, Ledger
    from dpilot.train.checkpoint.statement import cover_file

    paid = how["ledger"]
    balance = Balance.of(paid if isinstance(paid, Ledger) else Ledger.read(paid))
    report = run.record.write_report(out / REPORT)
    cover_file(out, report)
    _show(run, report, out, balance, json=json)


def _check(data: Table, schema: Schema, given: dict[str, Any], out: Path) -> Declaration:
    """Refuse what is wrong before a bar is drawn or anything is spent; the folder must hold nothing."""
    from dpilot.errors import InvalidInput

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(f"out is {str(out)!r}: expected a folder that is empty or not there. Name another.")
    return _declare(data, schema, given)


def _declare(data: Table, schema: Schema, given: dict[str, Any]) -> Declaration:
    """What is declared, judged without reading a value and before torch is loaded."""
    from dataclasses import fields

    from dpilot.fit.declaration import FitOptions, declare_fit

    rest = dict(given)
    options = FitOptions(**{each.name: rest.pop(each.name) for each in fields(FitOptions)})
    return declare_fit(data, schema, options=options, **rest)[0]


def _rehearse(data: Table, schema: Schema, given: dict[str, Any], *, json: bool) -> None:
    declared = _declare(data, schema, given)

    from time import process_time

    from dpilot.fit.pipeline import plan_fit
    from dpilot.fit.rehearsal import rehearse
    from dpilot.fit.source import TableSource
    from dpilot.report.entries import describe

    plan = plan_fit(declared, "basic")
    rehearsal = rehearse(plan, loading=process_time(), table=TableSource.of(data, data.schema)).to_dict()
    total = {"epsilon": declared.budget.epsilon, "delta": declared.budget.delta}
    if json:
        console.json({"dry_run": True, **total, **rehearsal})
        return
    stages = rehearsal.pop("stages")
    reasons = rehearsal.pop("reasons")
    facts = {**total, **rehearsal}
    console.table("Dry run on made-up records: nothing was read or spent", ["what", "value"], list(facts.items()))
    rows = [[stage["purpose"], stage["part"] or "all", describe(stage["event"])] for stage in stages]
    console.table("What will be paid before records are read", ["stage", "records", "event"], rows)
    for reason in reasons:
        console.line(f"- {reason}")


def _show_stopped(stopped: FitStopped, *, json: bool) -> None:
    if json:
        cost, left = ({"epsilon": each.epsilon, "delta": each.delta} for each in (stopped.cost, stopped.left))
        health = None if stopped.health is None else stopped.health.to_dict()
        console.json({"stopped": True, "health": health, "spent": cost, "left": left})
        return
    console.line(f"Stopped: {stopped}")


def _show(run: FittedModel, report: Path, out: Path, balance: Balance, *, json: bool) -> None:
    from dpilot.report.condition import condition
    from dpilot.report.verdict import find_untold, verdict

    record = run.record
    if json:
        found, untold = verdict(record.metrics), find_untold(record.metrics)
        console.json(
            {
                **record.privacy,
                "metrics": [_metric_dict(metric, told=metric not in untold) for metric in record.metrics],
                "verdict": None if found is None else {"sentence": found.sentence, "sure": found.sure},
                "health": record.health,
                "stopped": False,
                "decisions": list(record.decisions),
                "unprotected": list(record.unprotected),
                "stamps": list(record.stamps),
                "ledger": balance.as_dict(),
                "run": str(out),
                "report": str(report),
            }
        )
        return
    privacy = record.privacy
    console.line(f"epsilon {privacy['epsilon']:.6g} at delta {privacy['delta']:.3g}, {privacy['unit']}")
    for what in record.unprotected:
        console.line(f"not protected: {what}")
    health = condition(record.health)
    for alarm in health.alarms if health is not None else ():
        console.line(f"LOOK AT THE DATA: {alarm}")
    from dpilot.metrics.figures import LONG

    show_metrics(record, "Held-out metrics, with 95 % intervals", without=LONG)
    console.line(f"Ledger: {balance}.")
    console.line(f"Run folder {out}, report {report}")


def _metric_dict(metric: MetricRecord, *, told: bool) -> dict[str, Any]:
    """``told`` is False where the intervals are too wide for the value to say anything."""
    return {
        "name": metric.name,
        "of": metric.of,
        "value": metric.value,
        "told": told,
        "noise_interval": list(metric.noise),
        "sampling_interval": list(metric.sampling),
        "exact": metric.exact,
    }


def show_metrics(record: FitRecord, title: str, name: str = "metric", *, without: Sequence[str]) -> None:
    """The figures with their intervals, but those that are too long for a terminal, what they mean, and the decisions.

    Where an interval is too wide to say anything, words stand in place of the number.
    """
    from dpilot.report.verdict import find_untold, value_text, verdict

    def say(value: float) -> str:
        return f"{value:.4g}"

    def ends(interval: tuple[float, float]) -> str:
        return f"{say(interval[0])} to {say(interval[1])}"

    untold, found = find_untold(record.metrics), verdict(record.metrics)
    console.table(
        title,
        [name, "of", "value", "these records (noise)", "population (noise and sampling)"],
        [
            [each.name, each.of, value_text(each, untold, say), ends(each.noise), ends(each.sampling)]
            for each in record.metrics
            if each.name not in without
        ],
    )
    if found is not None:
        console.line(found.sentence)
    for decision in record.decisions:
        console.line(f"- {decision}")
