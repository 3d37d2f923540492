"""A folder of pictures as a table of two columns: ``picture``, the name of a file, and ``class``, the folder it is in.

    lungs/healthy/0001.png        picture "healthy/0001.png", class "healthy"
    lungs/ill/0001.png            picture "ill/0001.png", class "ill"

Every entry of the folder, and of the folders in it, is a record, whatever it is; a file that lies beside the class
folders has no class. What begins with a dot is none, nor is anything deeper: a folder in a class folder is a record
that cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from dpilot.data.schema import Schema
from dpilot.data.types.base import BUY
from dpilot.errors import InvalidInput

__all__ = ["NAMES", "class_names", "count_entries", "declare_folder", "folder_schema", "list_entries"]

NAMES: Final = ("picture", "class")
_PICTURE: Final = {"type": "image", "size": [32, 32], "mode": "RGB", "outside": "convert"}
CLASS_FOLDERS: Final = "the names of the class folders, which are the classes"
"""What a fit publishes that takes its classes from a listing."""


def list_entries(folder: Path) -> Iterator[tuple[str, str | None]]:
    """The name and the class of every record, sorted by name, so that every pass meets them in one order."""
    for name, is_folder in _entries(folder):
        if is_folder:
            yield from ((os.path.join(name, each), name) for each, _ in _entries(folder / name))
        else:
            yield name, None


def count_entries(folder: Path) -> int:
    """The number of records, whatever they are."""
    return sum(len(_entries(folder / name)) if is_folder else 1 for name, is_folder in _entries(folder))


def class_names(folder: str | Path) -> list[str]:
    """The names of the class folders: a listing, a fact of the container."""
    return [name for name, is_folder in _entries(Path(folder)) if is_folder]


def declare_folder(folder: str | Path, classes: Sequence[str] | str | None = None) -> dict[str, dict[str, Any]]:
    """What a schema says of a folder: pictures of 32 x 32 pixels in colours, and the classes, those of its folders."""
    picture, target = NAMES
    if classes == BUY:
        return {picture: dict(_PICTURE), target: {"type": "categorical", "levels": BUY, "role": "target"}}
    found = class_names(folder) if classes is None else list(classes)
    if classes is not None and len(found) < 2:
        raise InvalidInput(f"classes are {found}: expected the names of two or more folders, as healthy,ill.")
    if len(found) < 2:
        raise InvalidInput(
            f"{Path(folder).name} has {len(found)} class folders: expected two or more, each with the pictures of its "
            "class; or a csv file with the names of the pictures and a schema (docs/pictures.md)."
        )
    return {picture: dict(_PICTURE), target: {"type": "categorical", "categories": found, "role": "target"}}


def folder_schema(folder: str | Path, classes: Sequence[str] | str | None = None) -> Schema:
    """The schema that ``dpilot schema init FOLDER`` writes; ``classes`` declares them in place of the listing.

    ``classes`` "buy" leaves them to be bought: those of many records.
    """
    return Schema.from_dict({"columns": declare_folder(folder, classes)})


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """Names in a folder, in order, and whether each is a folder; none where it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted((each.name, _is_folder(each)) for each in entries if not each.name.startswith("."))
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
