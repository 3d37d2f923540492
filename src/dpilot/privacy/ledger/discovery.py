"""Which ledger is a data set's: one file, found from where the data lie.

| data | its ledger |
|---|---|
| ``adult.csv``, ``adult.parquet`` | ``adult.ledger`` beside it: one table in two formats is one data set |
| a folder ``sales/`` of files | ``sales.ledger`` beside the folder |
| a pattern ``sales/2021-*.parquet`` | that of the folder in front of the pattern |
| a file in a folder that has a ledger | the folder's: its records are among those of the folder |

Links are followed, so a relative path, a link and the file itself lead to one ledger. Where the environment names a
folder in ``DPILOT_LEDGERS``, the file lies there, called by the data's name and a hash of where they lie.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy.ledger.ledger import Ledger
from dpilot.privacy.ledger.postgres import PostgresUrl
from dpilot.privacy.ledger.store import Location, is_ledger, is_postgres

FOLDER: Final = "DPILOT_LEDGERS"
SUFFIX: Final = ".ledger"
_FORMATS: Final = frozenset({".csv", ".tsv", ".txt", ".parquet", ".pq", ".arrow", ".feather", ".json", ".jsonl"})


def locate_ledger(
    data: str | os.PathLike[str],
    *,
    ledger: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Location:
    """The path of the ledger of ``data`` (a file, a folder or a pattern of files), which need not be there yet.

    Args:
        data: where the records are. Nothing of them is read.
        ledger: a path that wins over everything: the caller says which ledger this data set has.
        environment: where ``DPILOT_LEDGERS`` is looked up.

    Guarantee:
        Records for which a ledger was found once are never begun anew in a second one found by another of these
        rules: where that could be, LedgerError says which file to name.
    """
    if ledger is not None:
        return locate(ledger)
    source = _Source.of(data)
    place = source.ledger(environment)
    if place.exists():
        _check_kind(place, source)
        return place
    for folder in source.folders():
        whole = folder.ledger(environment)
        if whole.exists() and _is_of_folder(whole):
            return whole
    _check_unspent(source, place, environment)
    return place


def locate(ledger: str | os.PathLike[str]) -> Location:
    """The place that was named: a file, or a database."""
    return PostgresUrl.parse(ledger) if is_postgres(ledger) else Path(ledger)


def find_ledger(
    data_or_ledger: str | os.PathLike[str],
    *,
    ledger: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Location:
    """The ledger itself, if that was named; else the ledger of the data."""
    if ledger is None and is_postgres(data_or_ledger):
        return locate(data_or_ledger)
    path = Path(data_or_ledger)
    named = ledger is None and (path.suffix == SUFFIX or is_ledger(path))
    return path if named else locate_ledger(path, ledger=ledger, environment=environment)


def dataset_name(data: str | os.PathLike[str]) -> str:
    """What a new ledger calls the data set: the name of the file without its format; of a folder, with a slash.

    >>> dataset_name("somewhere/adult.csv"), dataset_name("sales/*.parquet"), dataset_name("adult.ledger")
    ('adult', 'sales/', 'adult')
    """
    return PostgresUrl.parse(data).name if is_postgres(data) else _Source.of(data).name


def check_data(data: str | os.PathLike[str]) -> None:
    """Refuse a name under which there are no data: its ledger would be of nothing."""
    if not Path(data).exists() and not glob.glob(os.fspath(data), recursive=True):
        raise InvalidInput(f"the data are {os.fspath(data)!r}: expected a file, a folder or a pattern of files there.")


@dataclass(frozen=True, slots=True)
class _Source:
    """Where records lie: a path without links, whether it is a folder, and the pattern within that was asked for."""

    path: Path
    is_folder: bool
    pattern: str | None = None

    @classmethod
    def of(cls, data: str | os.PathLike[str]) -> _Source:
        path = Path(data)
        if path.exists() or glob.escape(os.fspath(path)) == os.fspath(path):
            return cls(Path(os.path.realpath(path)), path.is_dir())
        front = [part for part in (path, *path.parents) if glob.escape(os.fspath(part)) == os.fspath(part)]
        return cls(Path(os.path.realpath(front[0])), True, os.fspath(path))

    @property
    def name(self) -> str:
        shown = self.stem if self.stem.isprintable() else ascii(self.stem)
        return shown + "/" * self.is_folder

    @property
    def stem(self) -> str:
        known = not self.is_folder and self.path.suffix.lower() in _FORMATS | {SUFFIX}
        return self.path.stem if known else self.path.name

    def ledger(self, environment: Mapping[str, str]) -> Path:
        """Where its ledger is, or will be."""
        folder = environment.get(FOLDER)
        if not folder:
            return self.path.parent / (self.stem + SUFFIX)
        text = os.fspath(self.path.parent / self.stem) + "/" * self.is_folder
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        return Path(folder).expanduser() / f"{self.stem[:60]}-{digest[:16]}{SUFFIX}"

    def folders(self) -> Iterator[_Source]:
        """The folders it lies in, the nearest first; the root has no name for a ledger."""
        return (_Source(folder, True) for folder in self.path.parents if folder.name)

    def files(self) -> Iterator[_Source]:
        """The files of a folder or pattern."""
        if self.is_folder:
            found = self.path.glob("*") if self.pattern is None else map(Path, glob.iglob(self.pattern, recursive=True))
            yield from (_Source.of(path) for path in found if path.suffix != SUFFIX and path.is_file())


def _check_kind(place: Path, source: _Source) -> None:
    """Refuse the ledger of a folder for a file of the same name beside it, and the other way round."""
    if _is_of_folder(place) != source.is_folder:
        other = "a file" if source.is_folder else "a folder"
        raise LedgerError(
            f"{place} is the ledger of {other} of that name, not of {source.path}: expected one ledger for each data "
            "set. Say which by --ledger (in Python ledger=)."
        )


def _check_unspent(source: _Source, place: Path, environment: Mapping[str, str]) -> None:
    """Refuse to begin a ledger for records that have lost something in another one."""
    beside = source.ledger({})
    if place != beside and beside.exists():
        raise LedgerError(
            f"{beside} exists, and {FOLDER} says {place}: expected one ledger for one data set. Move the file there "
            "with its .lock files, or say which by --ledger (in Python ledger=)."
        )
    for file in source.files():
        if (own := file.ledger(environment)).exists():
            raise LedgerError(
                f"{file.path.name} of {source.path} has a ledger of its own, {own}: what it has lost would be counted "
                "apart. Name one ledger for all by --ledger (in Python ledger=)."
            )


def _is_of_folder(place: Path) -> bool:
    return Ledger.read(place).dataset.endswith("/")
