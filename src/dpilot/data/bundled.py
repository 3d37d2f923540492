"""Data that comes with the package, each set with its schema and its licence note, in the folder ``bundled``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dpilot.data.schema import Schema

_FOLDER: Final = Path(__file__).parent / "bundled"


def adult() -> tuple[Path, Schema]:
    """UCI Adult: 48,842 people of a census, whether they earn more than 50,000 dollars a year, and the schema.

    Example:
        >>> path, schema = adult()
        >>> path.name, schema.target.name, schema.protected.name
        ('adult.parquet', 'income', 'sex')

    Reference:
        Becker and Kohavi, "Adult", UCI Machine Learning Repository, 1996; CC BY 4.0: see adult.txt beside the file.
    """
    return _FOLDER / "adult.parquet", Schema.from_toml(_FOLDER / "adult.toml")
