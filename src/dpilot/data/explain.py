"""A schema in words: what each column is expected to hold, and what becomes of a cell that holds something else.

>>> from dpilot.data.column import Column
>>> print(explain_column(Column("age", "numeric", bounds=(17, 90), missing="null")).sentence)
age: a feature; numbers from 17 to 90. Beyond them, or no number: the record is null. Missing: the record is null.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from dpilot.data.column import Column
from dpilot.data.column_types import NULL, type_of
from dpilot.data.schema import Schema
from dpilot.data.types.base import BUY
from dpilot.data.wildcards import is_wildcard

__all__ = ["Explanation", "explain", "explain_column"]

_ROLES: Final = {
    "feature": "a feature",
    "target": "the target",
    "protected": "protected: its groups are compared",
    "unit": "the unit: rows with one id are one person's, or whatever it names; no feature, and a row without an id is "
    "null",
    "ignored": "ignored, never read",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """One column in words; ``paid`` says whether part of the budget goes to it."""

    name: str
    role: str
    expects: str
    otherwise: str
    missing: str
    paid: bool

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        name = self.name if self.name.isprintable() else repr(self.name)
        name += " (all columns so named)" if is_wildcard(self.name) else ""
        if not self.expects:
            return f"{name}: {self.role}."
        return f"{name}: {self.role}; {self.expects}. {self.otherwise}. Missing: {self.missing}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "sentence": self.sentence}


def explain_column(column: Column) -> Explanation:
    """What is expected of one column."""
    if not column.used:
        return Explanation(column.name, _ROLES[column.role], "", "", "", paid=False)
    role = _ROLES[column.role]
    if column.role == "protected":
        role += ", and it is a feature too" if column.is_feature else ", and the model does not see it"
    missing = "an indicator column says so" if column.missing == "indicator" else NULL
    expects, paid = type_of(column).describe(column), BUY in (column.bounds, column.levels)
    return Explanation(column.name, role, expects, type_of(column).describe_outside(column), missing, paid)


def explain(schema: Schema) -> list[str]:
    """What holds for the whole schema: roles, what is paid for, what means missing, and columns without an entry."""
    ignored = [column.name for column in schema.columns.values() if not column.needed]
    others = "ignored" if schema.defaults.others == "ignored" else "an error before anything is spent"
    named = {
        "Features": [column.name for column in schema.features],
        "Target": [schema.target.name] if schema.has_target else [],
        "Protected": [column.name for column in schema.protected_columns],
        **({"Unit": [schema.unit.name]} if schema.unit is not None else {}),
        "Ignored": ignored,
        "Bounds bought from the budget": schema.to_buy,
        **({"Classes bought from the budget": [schema.target.name]} if schema.buys_classes else {}),
    }
    lines = [f"{what}: {', '.join(names) if names else 'none'}." for what, names in named.items()]
    texts = ", ".join(map(repr, schema.missing_values)) or "none"
    return [*lines, f"Texts that mean missing: {texts}.", f"A column of a file that is not named here: {others}."]
