"""``dpilot schema init|check|explain``: write a schema, try it before a budget is spent, and read it in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpilot.cli import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpilot.data.check import SampleShares, SchemaFinding
    from dpilot.data.invented import InventedRow
    from dpilot.data.schema import Schema

app = typer.Typer(help="Declare what a table holds.", no_args_is_help=True, rich_markup_mode=None)

SchemaFile = Annotated[Path, typer.Argument(help="The schema, TOML or JSON.", show_default=False)]
CodebookFile = Annotated[
    Path | None,
    typer.Option(help="A csv file with a line a column: name, type, min, max, categories (a|b), role, missing."),
]
PublicSample = Annotated[Path | None, typer.Option(help="A csv or parquet file that is public: its values are read.")]
Encoding = Annotated[str, typer.Option(help="The encoding of a csv file.")]
Delimiter = Annotated[str, typer.Option(help="What stands between the columns of a csv file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def schema() -> None:
    """Declare what a table holds."""


@app.command()
def init(
    csv: Annotated[
        str,
        typer.Argument(help="The csv file (or parquet file), whose header alone is read, or a folder of pictures."),
    ] = "",
    codebook: CodebookFile = None,
    public_sample: PublicSample = None,
    output: Annotated[str, typer.Option(help="Where the schema goes; without it, to the terminal.")] = "",
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = ",",
) -> None:
    """A schema to fill in, from the header alone: no value is read. The first line of a csv file must be its header.

    Of a folder of pictures, one that is complete: its classes are the names of the folders in it.
    With --codebook, from what a codebook says; with --public-sample, from the values of a file that is public.
    """
    from dpilot.data.codebook import Codebook
    from dpilot.data.draft import draft_folder, draft_schema, read_sample
    from dpilot.data.files import column_names, is_picture_folder
    from dpilot.errors import InvalidInput

    if not csv and codebook is None and public_sample is None:
        raise InvalidInput("no file is given: expected a table, or --codebook or --public-sample.")
    names = column_names(csv, encoding=encoding, delimiter=delimiter) if csv else None
    book = None if codebook is None else Codebook.load(codebook)
    listed = Path(csv) if csv and is_picture_folder(csv) else None
    sample = None if listed is None else draft_folder(listed)
    if public_sample is not None:
        sample = read_sample(public_sample, encoding=encoding, delimiter=delimiter)
    draft = draft_schema(names, book, sample)
    text = draft.to_toml(_origin(codebook, public_sample, listed))
    if not output:
        console.line(text.rstrip("\n"))
        return
    _write(text, Path(output))
    rest = len(draft.unfinished)
    last = "check every line" if listed is not None else "name the target, and check every line"
    todo = f"fill in the types and domains of {rest} of them" if rest else last
    console.note(f"{len(draft.columns)} columns written to {output}: {todo}")


@app.command()
def check(
    schema: SchemaFile,
    data: Annotated[str, typer.Argument(hidden=True)] = "",
    header: Annotated[
        Path | None, typer.Option(help="A csv or parquet file; only the names of its columns are read.")
    ] = None,
    codebook: CodebookFile = None,
    public_sample: PublicSample = None,
    allow_null: Annotated[
        float, typer.Option(help="The share of the sample's records that may be null without being a problem.")
    ] = 0.0,
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = ",",
    json: Json = False,
) -> int:
    """Try a schema before a budget is spent: on invented cells, a header, a codebook, or a file that is public.

    Exit code 0 if nothing is wrong, 2 where records would be null or columns useless.
    """
    from dpilot.data import check as checks
    from dpilot.data.codebook import Codebook
    from dpilot.data.files import Table, column_names
    from dpilot.data.invented import invent_rows
    from dpilot.data.schema import Schema
    from dpilot.errors import InvalidInput

    if data:
        raise InvalidInput(
            f"{data!r} is given without what may be read of it: expected --header {data} (the names of its columns "
            f"alone) or --public-sample {data} (its values, exactly: only if it is public)."
        )
    declared, dialect = Schema.load(schema), {"encoding": encoding, "delimiter": delimiter}
    findings = list(checks.check_schema(declared))
    if header is not None:
        findings += checks.check_header(declared, column_names(header, **dialect), header.name)
    if codebook is not None:
        findings += checks.check_codebook(declared, Codebook.load(codebook))
    shares = None
    if public_sample is not None:
        names = column_names(public_sample, **dialect)
        refused = list(checks.check_header(declared, names, public_sample.name))
        findings += refused
        if not refused:
            resolved = declared.resolve(names)
            shares = checks.measure_sample(Table.open(public_sample, resolved, **dialect))
            findings += checks.check_sample(resolved, shares, allowed=allow_null)
    code = 2 if any(finding.is_problem for finding in findings) else 0
    rows = list(invent_rows(declared))
    if json:
        sample = None if shares is None else shares.to_dict()
        told = [finding.to_dict() for finding in findings]
        console.json({"ok": code == 0, "findings": told, "invented": [row.to_dict() for row in rows], "sample": sample})
    else:
        _show_check(rows, shares, findings)
    return code


@app.command()
def explain(schema: SchemaFile, json: Json = False) -> None:
    """A schema in words: one line a column, then what holds for all of it."""
    from dpilot.data.explain import explain as explain_schema
    from dpilot.data.explain import explain_column
    from dpilot.data.schema import Schema

    declared = Schema.load(schema)
    columns = [explain_column(column) for column in declared.columns.values()]
    if json:
        told = [column.to_dict() for column in columns]
        console.json({"columns": told, "schema": explain_schema(declared), "roles": _roles(declared)})
        return
    for column in columns:
        console.line(column.sentence)
    console.line()
    for line in explain_schema(declared):
        console.line(line)


def _roles(declared: Schema) -> dict[str, Any]:
    return {
        "features": [column.name for column in declared.features],
        "target": declared.target.name if declared.has_target else None,
        "protected": [column.name for column in declared.protected_columns],
        "unit": None if declared.unit is None else declared.unit.name,
        "ignored": [column.name for column in declared.columns.values() if not column.needed],
        "bought_bounds": list(declared.to_buy),
        "others": declared.defaults.others,
    }


def _show_check(rows: Sequence[InventedRow], shares: SampleShares | None, findings: Sequence[SchemaFinding]) -> None:
    if shares is None:
        _show_invented(rows)
    else:
        states = ("fine", "missing", "outside", "unknown", "unreadable", "null")
        console.table(
            f"Shares of the {shares.records:,} records of the public sample",
            ["column", *states],
            [[column.name, *(f"{getattr(column, state):.2%}" for state in states)] for column in shares.columns],
        )
    for finding in findings:
        console.line(f"{'problem' if finding.is_problem else 'note'}: {finding}")
    problems = sum(finding.is_problem for finding in findings)
    console.line(f"Problems: {problems}. Notes: {len(findings) - problems}.")


def _show_invented(rows: Sequence[InventedRow]) -> None:
    """One category stands for those of its column: they are all read alike, unless something is wrong."""
    shown = [row for row in rows if not row.what.startswith("category") or row.what == "category 1" or row.unexpected]
    console.table(
        "Invented cells, each in a record that is fine otherwise",
        ["column", "cell", "as", "becomes"],
        [[row.column, row.what, "nothing" if row.cell is None else repr(row.cell), row.becomes] for row in shown],
    )


def _origin(codebook: Path | None, sample: Path | None, folder: Path | None) -> str:
    from dpilot.data.toml import NAMES_ALONE

    files = [f"the codebook {codebook.name!r}"] if codebook is not None else []
    files += [f"the names of the folders in {folder.name!r}"] if folder is not None and sample is None else []
    files += [f"the values of {sample.name!r}, which is declared public"] if sample is not None else []
    return f"Made from {' and '.join(files)}." if files else NAMES_ALONE


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
