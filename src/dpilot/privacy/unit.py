"""Whom a guarantee protects: a record, or a person (a household, a device) with all their rows.

>>> PrivacyUnit("patient_id").neighbours()
'one patient_id with all their rows (at most 8 count), added or removed'
>>> RECORD.neighbours()
'one record, added or removed'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dpilot import _validate
from dpilot.errors import InvalidInput

ROWS_PER_UNIT: Final = 8
"""How many rows of a unit count, where nothing else is declared."""
MOST_ROWS_PER_UNIT: Final = 1 << 16
"""The largest cap: the rows of one unit are read together."""
_RECORD: Final = "record"


@dataclass(frozen=True, slots=True)
class PrivacyUnit:
    """What two neighbouring data sets differ by: one unit with all its rows.

    Args:
        name: the column that holds the unit's id, or what such a unit is called; "record" for each row by itself.
        rows: the cap: at most so many rows of a unit count. None for a record, and ``ROWS_PER_UNIT`` for others.
        missing: what becomes of rows without an id. "null": they count for nothing. "row": each is a unit of its
            own, so a person behind several of them is protected one row at a time.

    Guarantee:
        Everything but ``name`` may differ between fits of one ledger: the neighbours stay the same.
    """

    name: str = _RECORD
    rows: int | None = None
    missing: str = "null"

    def __post_init__(self) -> None:
        _validate.line("It names the column of ids.", unit=self.name)
        _validate.one_of(("null", "row"), missing_unit=self.missing)
        if self.name != _RECORD:
            rows = ROWS_PER_UNIT if self.rows is None else self.rows
            object.__setattr__(self, "rows", _validate.count(greatest=MOST_ROWS_PER_UNIT, rows_per_unit=rows))
        elif self.rows is not None or self.missing != "null":
            raise InvalidInput(
                f"the unit is {_RECORD!r}, with rows_per_unit={self.rows!r} and missing_unit={self.missing!r}: a "
                "record is one row and needs neither. Name the unit, such as unit='patient_id', or leave both out."
            )

    @classmethod
    def of(cls, unit: str | PrivacyUnit | None, rows: int | None = None, missing: str = "null") -> PrivacyUnit:
        """The unit of that name, with its cap; a PrivacyUnit as it is; None for a record.

        >>> PrivacyUnit.of("patient_id", 4).rows, PrivacyUnit.of(None) == RECORD
        (4, True)
        """
        if not isinstance(unit, PrivacyUnit):
            return cls(_RECORD if unit is None else unit, rows, missing)
        if (rows, missing) not in ((None, "null"), (unit.rows, unit.missing)):
            raise InvalidInput(f"unit is {unit}, and rows_per_unit {rows!r}, missing_unit {missing!r}: say each once.")
        return unit

    @property
    def is_record(self) -> bool:
        """Whether each row is a unit."""
        return self.name == _RECORD

    def neighbours(self, public_size: bool = False) -> str:
        """What two neighbouring data sets differ by, in words; with a published size no unit can go without a trace."""
        who = (
            f"one {self.name}" if self.is_record else f"one {self.name} with all their rows (at most {self.rows} count)"
        )
        if self.missing == "row":
            who += f", or one row without a {self.name}"
        if public_size:
            counted = "records" if self.is_record else "units"
            return f"{who}, there or replaced by an empty one (only the number of {counted} is published)"
        return f"{who}, added or removed"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "rows": self.rows, "missing": self.missing}

    @classmethod
    def from_dict(cls, data: object) -> PrivacyUnit:
        """The inverse of to_dict; None, from what knows of no units, is a record."""
        if data is None:
            return RECORD
        if not isinstance(data, dict) or set(data) != {"name", "rows", "missing"}:
            raise InvalidInput(f"the unit is {_validate.describe(data)}: expected its name, rows and missing.")
        return cls(**data)

    def __str__(self) -> str:
        if self.is_record:
            return self.name
        return f"{self.name}, {self.rows} rows" + (", others by row" if self.missing == "row" else "")


RECORD: Final = PrivacyUnit()
