"""Files of lines: one JSON object a measured cell, only appended to. Tables and figures are made from these alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.papers.cell import Cell

HERE = Path(__file__).parent / "measured"

Figures = Mapping[str, Any]
Lines = Mapping[str, Figures]
"""What was measured, by the key of its cell."""


def read(folder: Path = HERE) -> dict[str, Figures]:
    """The figures of every cell in a folder's files; of a cell measured twice, those of the first line.

    Edge cases:
        a line cut short by a machine that stopped    left out: its cell is measured again
    """
    found: dict[str, Figures] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                one = json.loads(line)
                found.setdefault(Cell(**one["cell"]).key, one["figures"])
            except (json.JSONDecodeError, KeyError, TypeError):
                continue
    return found


def write(path: Path, cell: Cell, figures: Figures, seconds: float, stamp: Mapping[str, str]) -> None:
    """One more line, on disk before this returns."""
    one = {"cell": json.loads(cell.key), "figures": figures, "seconds": round(seconds, 1), **stamp}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(one) + "\n")
        file.flush()


def measured(cells: Iterable[Cell], lines: Lines) -> list[Figures]:
    """The figures of those of the cells that were measured."""
    return [lines[cell.key] for cell in cells if cell.key in lines]
