"""Names of a schema against the names of a table: wildcards, near misses, and columns that nobody declared.

Only names are looked at. They are facts of the container and public, with one exception: a csv file without a header
shows its first record as names, so the names of a table are told only where they are plainly those of the schema.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from dpilot.data import toml
from dpilot.data.column import Column
from dpilot.errors import InvalidInput

__all__ = ["check_declared", "check_single", "check_there", "expand", "find", "is_wildcard"]

_SHOWN: Final = 5


def is_wildcard(name: str) -> bool:
    """Whether a name of a schema can stand for several columns: * any text, ? one character, [ab] one of these.

    >>> is_wildcard("pixel_*"), is_wildcard("pixel_1")
    (True, False)
    """
    return any(character in name for character in "*?[")


def expand(columns: Mapping[str, Column], names: Iterable[str]) -> dict[str, Column]:
    """The columns with every wildcard replaced by the ``names`` it stands for, at its place, in the table's order.

    One of a vector's ``columns`` is replaced inside the vector.
    """
    matches = _matches(columns, names)
    expanded: dict[str, Column] = {}
    for key, column in columns.items():
        if isinstance(column.columns, str):
            found = tuple(matches.get(key, ()))
            expanded[key] = dataclasses.replace(column, columns=found) if found else column
        elif key in matches:
            expanded |= {name: dataclasses.replace(column, name=name) for name in matches[key]}
        else:
            expanded[key] = column
    return expanded


def find(columns: Mapping[str, Column], name: str) -> Column | None:
    """The entry that declares ``name``: its own, or that of the one wildcard that stands for it."""
    if name in columns:
        return columns[name]
    check_single(columns, [name])
    return expand(columns, [name]).get(name)


def check_single(columns: Mapping[str, Column], names: Iterable[str]) -> None:
    """Refuse two wildcards that stand for one column."""
    holders: dict[str, str] = {}
    for key, matched in _matches(columns, names).items():
        for name in matched:
            other = holders.setdefault(name, key)
            if other != key:
                raise InvalidInput(
                    f"column {name!r} is meant by the wildcards {other!r} and {key!r}: expected one of them. Give it "
                    f"an entry of its own, [{toml.header(name)}], or make the wildcards narrower."
                )


def _matches(columns: Mapping[str, Column], names: Iterable[str]) -> dict[str, list[str]]:
    """The names that each wildcard stands for; a key that is itself one of the names is no wildcard."""
    there = dict.fromkeys(names)
    listed = {name for column in columns.values() if isinstance(column.columns, tuple) for name in column.columns}
    free = [name for name in there if name not in columns and name not in listed]
    wild = [key for key in columns if key not in there and is_wildcard(key)]
    found = {key: [name for name in free if fnmatchcase(name, key)] for key in wild}
    vectors = {key: column.columns for key, column in columns.items() if isinstance(column.columns, str)}
    return found | {key: _members(columns_, list(there), set(free)) for key, columns_ in vectors.items()}


def _members(declared: str, names: list[str], free: set[str]) -> list[str]:
    """The columns of a vector: those of a wildcard, or from the first to the last of "e0..e383", entries of their own
    left out."""
    if is_wildcard(declared):
        return [name for name in names if name in free and fnmatchcase(name, declared)]
    first, _, last = declared.partition("..")
    if first not in names or last not in names:
        return []
    return [name for name in names[names.index(first) : names.index(last) + 1] if name in free]


def check_there(
    declared: Mapping[str, Column], expanded: Mapping[str, Column], names: Sequence[str], source: str
) -> None:
    """Refuse a column of the schema that is used and not in the table, and a wildcard that stands for none."""
    known = set(names)
    read = [column for column in expanded.values() if column.needed and not column.file]
    unknown = [column.columns for column in read if isinstance(column.columns, str)]  # a range that is not there
    missing = [name for each in read for name in each.sources if name not in known and each.columns not in unknown]
    missing += unknown
    empty = [
        key
        for key, column in declared.items()
        if column.needed
        and column.columns is None
        and key not in expanded
        and not any(fnmatchcase(name, key) for name in names)
    ]
    if not missing and not empty:
        return
    hints = _near_misses(missing, list(expanded), [name for name in declared if not is_wildcard(name)], names)
    wild = f" ({', '.join(map(repr, empty[:_SHOWN]))}: a wildcard that stands for no column)" if empty else ""
    raise InvalidInput(
        f"columns {_join([*missing, *empty])} of the schema are not in {source}: expected them in its header{wild}. "
        f"{hints}Check the names, the delimiter and that there is a header."
    )


def check_declared(columns: Mapping[str, Column], names: Sequence[str], source: str) -> None:
    """Refuse a column of the table that has no entry in the schema, with the lines to add."""
    named = {source for column in columns.values() for source in (column.name, *column.sources)}
    strange = [name for name in names if name not in named]
    if not strange:
        return
    lines = ['defaults.others = "ignored"', *(toml.line(name, {"role": "ignored"}) for name in strange[:_SHOWN])]
    raise InvalidInput(
        f"columns {_join(strange)} of {source} have no entry in the schema: expected one for each. If they are not "
        f"needed, add one line at the top of the schema for all of them, or one for each:{toml.indent(lines)}"
    )


def _join(names: Sequence[str]) -> str:
    return f"{list(names[:_SHOWN])!r}" + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _near_misses(missing: Sequence[str], known: Sequence[str], written: Sequence[str], names: Sequence[str]) -> str:
    """Names of the table that are close to missing ones, where at least half of the schema's names are in it.

    Only names ``written`` out count for that: what a wildcard stands for may be the cells of a record.
    """
    plain = {_plain(name): name for name in names}
    found = sum(_plain(name) in plain for name in written)
    if not found or 2 * found < len(written):
        return ""  # this may be a record, not a header
    free = [each for each in plain if plain[each] not in known]
    near = ((name, difflib.get_close_matches(_plain(name), free, 1)) for name in missing[:_SHOWN])
    pairs = [f"{plain[match[0]]!r} for {name!r}" for name, match in near if match]
    return f"Did you mean {', '.join(pairs)}? " if pairs else ""


def _plain(name: str) -> str:
    """A name without case, blanks and signs."""
    return "".join(filter(str.isalnum, name.casefold())) or name
