"""``dpilot schema init``: a schema to fill in, from the header of a file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpilot.cli import console

app = typer.Typer(help="Declare what a table holds.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def schema() -> None:
    """Declare what a table holds."""


@app.command()
def init(
    csv: Annotated[str, typer.Argument(help="The csv file (or parquet file); only the names of its columns are read.")],
    output: Annotated[str, typer.Option(help="Where the schema goes; without it, to the terminal.")] = "",
    encoding: Annotated[str, typer.Option(help="The encoding of the header.")] = "utf-8",
    delimiter: Annotated[str, typer.Option(help="What stands between the columns.")] = ",",
) -> None:
    """A skeleton from the header alone: no value is read. The first line of a csv file must be its header."""
    from dpilot.data.files import column_names
    from dpilot.data.toml import skeleton

    names = column_names(csv, encoding=encoding, delimiter=delimiter)
    if not output:
        console.line(skeleton(names).rstrip("\n"))
        return
    _write(skeleton(names), Path(output))
    console.note(f"{len(names)} columns written to {output}: fill in the types and domains")


def _write(text: str, output: Path) -> None:
    from dpilot.errors import InvalidInput

    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(f"output is {str(output)!r}, which exists: expected a new file.") from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "no such name"
        raise InvalidInput(f"output is {str(output)!r}: expected a writable path ({reason}).") from None
