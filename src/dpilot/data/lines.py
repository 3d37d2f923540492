"""A csv file as records, one line each: no line can change how another one is read.

The usual rules of csv let a quoted cell go on over several lines, so that a quote left open in one record swallows the
records after it. Here a record is a line, from one newline to the next, and a quote ends with its line.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from dpilot.errors import InvalidInput

LONGEST: Final = 1 << 24  # bytes of a line; a longer one is the null record, so that memory stays bounded
_BLOCK: Final = 1 << 20
_MARKS: Final = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16", b"\x1f\x8b": "gzip", b"PK": "zip"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the text of a csv file is written: both are declared, neither is guessed."""

    encoding: str = "utf-8"
    delimiter: str = ","

    def __post_init__(self) -> None:
        try:
            one_byte = "\n".encode(self.encoding) == b"\n"
        except (LookupError, UnicodeError, TypeError):
            one_byte = False
        if not one_byte:
            raise InvalidInput(
                f"encoding is {self.encoding!r}: expected one in which a newline is one byte, as 'utf-8' or 'latin-1'."
            )
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise InvalidInput(f"delimiter is {self.delimiter!r}: expected one character, as ',' or ';'.")


def header(path: Path, dialect: Dialect) -> tuple[str, ...]:
    """The names in the first line, without blanks around them and without a byte order mark.

    Edge cases:
        Only the first line is read. What is wrong with it is said without its text: it may be a record.
    """
    with path.open("rb") as file:
        line = file.readline(LONGEST)
    for mark, what in _MARKS.items():
        if line.startswith(mark):
            raise InvalidInput(f"{path.name} is {what}: expected plain text. Convert it to UTF-8 csv, or to parquet.")
    line = line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")
    cells = split(line, dialect)
    if not line.strip() or cells is None or b"\r" in line or b"\0" in line:
        raise InvalidInput(
            f"the first line of {path.name} is no header: expected the names of the columns in "
            f"{dialect.encoding} text, and lines that end in a newline."
        )
    return tuple(cell.strip() for cell in cells)


def records(path: Path, dialect: Dialect, width: int, rows: int) -> Iterator[list[list[str] | None]]:
    """The lines after the first, ``rows`` at a time, each as its cells; None for one that is not ``width`` cells."""
    with path.open("rb") as file:
        lines = _lines(file)
        next(lines, None)
        while chunk := list(islice(lines, rows)):
            yield [_cells(line, dialect, width) for line in chunk]


def count_lines(path: Path) -> int:
    """The number of records: lines after the first; a newline at the very end begins no other."""
    newlines, last = 0, b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            newlines, last = newlines + block.count(b"\n"), block[-1:]
    return max(newlines - (last == b"\n"), 0)


def split(line: bytes, dialect: Dialect) -> list[str] | None:
    """The cells of one line, or None if it cannot be read.

    >>> split(b'1,"a, b",c', Dialect()), split(b'1,"open', Dialect()), split(b"caf\\xe9", Dialect())
    (['1', 'a, b', 'c'], None, None)
    """
    try:
        text = line.decode(dialect.encoding)
        if '"' not in text:
            return text.split(dialect.delimiter)
        (cells,) = csv.reader([text], delimiter=dialect.delimiter, strict=True)
    except Exception:  # undecodable bytes, a quote left open, or a cell longer than the parser takes
        return None
    return cells


def _cells(line: bytes | None, dialect: Dialect, width: int) -> list[str] | None:
    cells = None if line is None else split(line, dialect)
    return cells if cells is not None and len(cells) == width else None


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Lines without their ends; None for one that is too long, which is skipped and never held."""
    read: Any = partial(file.readline, LONGEST)
    for line in iter(read, b""):
        if line.endswith(b"\n"):
            yield line[:-1].removesuffix(b"\r")
        elif len(line) < LONGEST:
            yield line.removesuffix(b"\r")
        else:
            _skip(read)
            yield None


def _skip(read: Any) -> None:
    while (rest := read()) and not rest.endswith(b"\n"):
        pass
