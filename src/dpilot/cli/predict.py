"""``dpilot predict RUN DATA``: predictions of a fitted table. Costs nothing: the model was released."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dpilot.cli import console

if TYPE_CHECKING:
    import pandas as pd

    from dpilot.data.files import Table
    from dpilot.export import OnnxModel
    from dpilot.fit.model import FittedModel

_PICTURE: Final = "picture"  # the column of a folder's files


def predict(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder that dpilot fit wrote, or its .safetensors, .onnx or .skops.", show_default=False
        ),
    ],
    data: Annotated[
        Path,
        typer.Argument(help="A csv or parquet file with the features, or a folder of pictures.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Where the predictions go, .csv or .parquet.")] = Path("predictions.csv"),
    encoding: Annotated[str, typer.Option(help="The encoding of a csv file.")] = "utf-8",
    delimiter: Annotated[str, typer.Option(help="What stands between the columns of a csv file.")] = ",",
    public: Annotated[bool, typer.Option("--public", help="DATA is public and has targets: score it exactly.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """One prediction a record, in the order of DATA; empty where a record is outside the declared domain.

    Of a folder of pictures, those of every file in it and in the folders in it, with their names.
    """
    from dpilot.data.files import Table
    from dpilot.export import load

    fitted = load(run)
    _check_ending(out)
    table = Table.open(data, fitted.schema.inputs_only(), encoding=encoding, delimiter=delimiter)
    rows = _write(fitted, table, out)
    summary: dict[str, Any] = {"predictions": str(out), "records": rows}
    if public:
        summary["metrics"] = [_metric_dict(metric) for metric in _score(fitted, table)]
    if json:
        console.json(summary)
        return
    console.line(f"{rows:,} predictions written to {out}")
    if public:
        rows_shown = [[each["name"], each["of"], each["value"]] for each in summary["metrics"]]
        console.table("Exact figures of records that were declared public", ["metric", "of", "value"], rows_shown)


def _score(fitted: FittedModel | OnnxModel, table: Table) -> Any:
    from dpilot.errors import InvalidInput
    from dpilot.fit.model import FittedModel

    if not isinstance(fitted, FittedModel):
        raise InvalidInput("public is True of an ONNX model, which scores nothing: expected a run folder or skops.")
    return fitted.score_public(table)


def _check_ending(out: Path) -> None:
    from dpilot.errors import InvalidInput

    if out.suffix.lower() not in (".csv", ".parquet") or not out.resolve().parent.is_dir():
        raise InvalidInput(f"out is {str(out)!r}: expected a .csv or .parquet file in a folder that is there.")


def _write(fitted: FittedModel | OnnxModel, table: Table, out: Path) -> int:
    """Write the predictions of some records at a time, so that a file of any size takes the same memory."""
    from dpilot.errors import InvalidInput

    rows = 0
    try:
        is_parquet = out.suffix.lower() == ".parquet"
        with _open_parquet(out, fitted) if is_parquet else _open_csv(out) as write:
            for frame in _predictions(fitted, table):
                write(frame)
                rows += len(frame)
    except OSError as problem:
        raise InvalidInput(f"out is {str(out)!r}: expected a file that can be written ({problem}).") from None
    return rows


@contextmanager
def _open_csv(out: Path) -> Iterator[Callable[[pd.DataFrame], None]]:
    with out.open("w", encoding="utf-8", newline="") as file:
        first = [True]  # the header is written once
        yield lambda frame: frame.to_csv(file, index=False, header=bool(first) and first.pop())


@contextmanager
def _open_parquet(out: Path, fitted: FittedModel | OnnxModel) -> Iterator[Callable[[pd.DataFrame], None]]:
    import pyarrow as pa
    from pyarrow import parquet

    predicted = pa.array(list(fitted.classes)).type if fitted.classes else pa.float64()
    types = {_PICTURE: pa.string(), fitted.schema.target.name: predicted}
    with ExitStack() as opened:
        writers: list[Any] = []

        def write(frame: pd.DataFrame) -> None:
            """Columns of one type in every piece, also in one without a prediction."""
            form = pa.schema([(name, types.get(name, pa.float64())) for name in frame.columns])
            piece = pa.Table.from_pandas(frame, form, preserve_index=False)
            if not writers:
                writers.append(opened.enter_context(parquet.ParquetWriter(out, piece.schema)))
            writers[0].write_table(piece)

        yield write


def _predictions(fitted: FittedModel | OnnxModel, table: Table) -> Iterator[pd.DataFrame]:
    import pandas as pd

    for frame in table.frames():
        listed = {}
        if table.form == "folder":
            listed[_PICTURE] = [file.name.encode("utf-8", "backslashreplace").decode() for file in frame[_PICTURE]]
        yield pd.DataFrame({**listed, **fitted.predict_columns(frame)})


def _metric_dict(metric: Any) -> dict[str, Any]:
    return {"name": metric.name, "of": metric.of, "value": metric.value, "exact": metric.exact}
