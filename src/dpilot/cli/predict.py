"""``dpilot predict RUN DATA``: predictions of a fitted table. Costs nothing: the model was released."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpilot.cli import console

if TYPE_CHECKING:
    import pandas as pd

    from dpilot.data.files import Table
    from dpilot.fit.model import FittedModel


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder that dpilot fit wrote.", show_default=False)],
    data: Annotated[Path, typer.Argument(help="A csv or parquet file with the features.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Where the predictions go, .csv or .parquet.")] = Path("predictions.csv"),
    encoding: Annotated[str, typer.Option(help="The encoding of a csv file.")] = "utf-8",
    delimiter: Annotated[str, typer.Option(help="What stands between the columns of a csv file.")] = ",",
    public: Annotated[bool, typer.Option("--public", help="DATA is public and has targets: score it exactly.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """One prediction a record, in the order of DATA; empty where a record is outside the declared domain."""
    from dpilot.data.files import Table
    from dpilot.fit.model import load_fit

    fitted = load_fit(run)
    _check_ending(out)
    table = Table.open(data, fitted.schema.inputs_only(), encoding=encoding, delimiter=delimiter)
    rows = _write(fitted, table, out)
    summary: dict[str, Any] = {"predictions": str(out), "records": rows}
    if public:
        summary["metrics"] = [_metric_dict(metric) for metric in fitted.score_public(table)]
    if json:
        console.json(summary)
        return
    console.line(f"{rows:,} predictions written to {out}")
    if public:
        rows_shown = [[each["name"], each["of"], each["value"]] for each in summary["metrics"]]
        console.table("Exact figures of records that were declared public", ["metric", "of", "value"], rows_shown)


def _check_ending(out: Path) -> None:
    from dpilot.errors import InvalidInput

    if out.suffix.lower() not in (".csv", ".parquet") or not out.resolve().parent.is_dir():
        raise InvalidInput(f"out is {str(out)!r}: expected a .csv or .parquet file in a folder that is there.")


def _write(fitted: FittedModel, table: Table, out: Path) -> int:
    import pandas as pd

    from dpilot.errors import InvalidInput

    predictions = pd.concat(list(_predictions(fitted, table)), ignore_index=True)
    try:
        write = predictions.to_csv if out.suffix.lower() == ".csv" else predictions.to_parquet
        write(out, index=False)
    except OSError as problem:
        raise InvalidInput(f"out is {str(out)!r}: expected a file that can be written ({problem}).") from None
    return len(predictions)


def _predictions(fitted: FittedModel, table: Table) -> Iterator[pd.DataFrame]:
    import pandas as pd

    from dpilot.fit.figures import softmax

    target = fitted.schema.target
    for frame in table.frames():
        outputs = fitted.outputs(frame)  # once: an encoder takes its time
        columns: dict[str, Any] = {target.name: fitted.decide(outputs)}
        if target.categories is not None:
            chances = softmax(outputs)
            columns |= {f"probability {name}": chances[:, place] for place, name in enumerate(target.categories)}
        yield pd.DataFrame(columns)


def _metric_dict(metric: Any) -> dict[str, Any]:
    return {"name": metric.name, "of": metric.of, "value": metric.value, "exact": metric.exact}
