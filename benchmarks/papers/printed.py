"""What the papers print (printed.csv: a line a place of a table), and what is said of each table (tables.toml)."""

from __future__ import annotations

import csv
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def printed(paper: str, table: str, row: str, column: str) -> str:
    """The printed figures at one place of a table, in their digits; nothing where there are none."""
    return _all().get((paper, table, row, column), "")


def best(paper: str, table: str, row: str) -> float:
    """The largest printed figure of a row."""
    found = [text for key, text in _all().items() if key[:3] == (paper, table, row)]
    return max(float(text.split()[0]) for text in found)


def texts(paper: str) -> dict[str, Any]:
    """Titles, claims and differences of a paper's tables by their names; ``missing``; ``paper``, its name."""
    found: dict[str, Any] = tomllib.loads((HERE / "tables.toml").read_text())[paper]
    return found


@lru_cache(maxsize=1)
def _all() -> dict[tuple[str, ...], str]:
    with (HERE / "printed.csv").open(newline="") as file:
        return {tuple(line[:4]): line[4] for line in csv.reader(file)}
