"""Schemas as TOML: plain data written so that ``tomllib`` reads the same back, and a skeleton to fill in.

>>> print(dumps({"missing_values": ["", "NA"]}, {"columns.age": {"type": "numeric", "bounds": [17.0, 90.0]}}), end="")
missing_values = ["", "NA"]
<BLANKLINE>
[columns.age]
type = "numeric"
bounds = [17, 90]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dpilot.data.values import WHOLE

_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_CONTROL: Final = re.compile(r'["\\\x00-\x1f\x7f]')
_SKELETON: Final = """\
# {origin} For every column, replace "?" and fill in its domain
# from what is known about it (a form, a manual, the law), not from looking at the records:
#   type = "numeric" and bounds = [lower, upper]; or bounds = "buy", which spends part of the budget on them
#   type = "categorical" and categories = ["all", "values", "it can have"]; ordered = true where their order tells
#   something; levels = "hash:256" in place of categories where there are too many to list
#   type = "boolean"; type = "text" for free text; type = "vector" and width = 384 for lists of numbers
#   type = "image" and size = [32, 32] for names of picture files; folder = "..." where they are
#   type = "date" or "datetime" and range = ["2020-01-01", "2023-01-01"]
#   role = "target", "protected" (groups are compared by it), "unit" (ids of patients or others who have several rows;
#   it needs nothing else) or "ignored"; without it, a feature
#   missing = "null" where a record without the value is no record at all; without it, an indicator column
# [columns."pixel_*"] declares all columns so named. Above the columns go
#   defaults.others = "ignored" to leave out all columns without an entry; without it, such a column is an error
#   missing_values = ["", "NA"] for texts that mean "missing", besides the empty one
"""
NAMES_ALONE: Final = "Made from the names of the columns alone; no value was read."


def dumps(top: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> str:
    """The keys of ``top``, then one table for each header (see ``header``), in their order."""
    blocks = [_lines(top)] if top else []
    blocks += [f"[{name}]\n{_lines(declared)}" for name, declared in tables.items()]
    return "\n".join(blocks)


def header(name: str) -> str:
    """The header of the table that declares one column.

    >>> header("age"), header("pay, net")
    ('columns.age', 'columns."pay, net"')
    """
    return f"columns.{key(name)}"


def line(name: str, declared: Mapping[str, Any]) -> str:
    """The entry of one column in one line, for the top of a schema, above its tables.

    >>> line("note", {"role": "ignored"})
    'columns.note = {role = "ignored"}'
    """
    return f"{header(name)} = {{{', '.join(f'{key(each)} = {_value(value)}' for each, value in declared.items())}}}"


def indent(lines: Iterable[str]) -> str:
    """Lines to add to a schema, as messages show them below their sentence."""
    return "".join(f"\n    {each}" for each in lines)


def skeleton(
    columns: Mapping[str, Mapping[str, Any]],
    *,
    top: Mapping[str, Any] | None = None,
    remarks: Mapping[str, str] | None = None,
    origin: str = NAMES_ALONE,
) -> str:
    """A TOML text with one table for each column, which no one can mistake for a finished schema while it has "?".

    >>> print(skeleton({"age": {"type": "?"}}, remarks={"age": "in years"}).rpartition("empty one\\n")[2])
    <BLANKLINE>
    [columns.age]  # in years
    type = "?"
    <BLANKLINE>
    """
    blocks = [_SKELETON.format(origin=origin)] + ([_lines(top)] if top else [])
    for name, declared in columns.items():
        remark = f"  # {remarks[name]}" if remarks and name in remarks else ""
        blocks.append(f"[{header(name)}]{remark}\n{_lines(declared)}")
    return "\n".join(blocks)


def key(name: str) -> str:
    """A name as a key: bare where it may be, quoted where it must."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else string(name)


def string(value: str) -> str:
    """A basic string, in which everything that needs it is escaped.

    >>> print(string('say "hi"\\n'))
    "say \\"hi\\"\\n"
    """
    return '"' + _CONTROL.sub(lambda found: _ESCAPES.get(found[0], f"\\u{ord(found[0]):04x}"), value) + '"'


def _lines(declared: Mapping[str, Any]) -> str:
    return "".join(f"{key(name)} = {_value(value)}\n" for name, value in declared.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return string(value)
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    number = float(value)
    return str(int(number)) if number == int(number) and abs(number) < WHOLE and str(number) != "-0.0" else repr(number)
