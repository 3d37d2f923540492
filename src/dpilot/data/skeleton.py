"""A schema to fill in, made from the names of the columns alone."""

from __future__ import annotations

from collections.abc import Iterable

from dpilot.data import toml

_HEAD = """\
# Made from the names of the columns alone; no value was read. For every column, replace "?" and fill in its domain
# from what is known about it (a form, a manual, the law), not from looking at the records:
#   type = "numeric" and bounds = [lower, upper]; or bounds = "buy", which spends part of the budget on them
#   type = "categorical" and categories = ["all", "values", "it can have"]
#   role = "target", "protected" (groups are compared by it) or "ignored"; without it, a feature
#   missing = "null" where a record without the value is no record at all; without it, an indicator column
# Texts that mean "missing", besides the empty one: missing_values = ["", "NA"], above the columns.
"""


def skeleton(names: Iterable[str]) -> str:
    """A TOML text with one table for each column, which no one can mistake for a finished schema.

    >>> print(skeleton(["age"]).rpartition("#")[2].partition("\\n")[2])
    <BLANKLINE>
    [columns.age]
    type = "?"
    <BLANKLINE>
    """
    return _HEAD + "".join(f'\n[columns.{toml.key(name)}]\ntype = "?"\n' for name in names)
