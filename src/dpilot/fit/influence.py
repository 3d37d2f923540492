"""What a released model does with its columns: asked about made-up records, so it costs nothing."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

from dpilot._arrays import Floats
from dpilot.data.column import Column
from dpilot.data.column_types import draw_cells
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.fit.declaration import FitTask
from dpilot.fit.figures import softmax
from dpilot.fit.source import PlainColumns, RowReader
from dpilot.keys import public_generator
from dpilot.records import Influence

__all__ = ["find_influences"]

_ROWS: Final = 16  # made-up records, in each of which every column goes through its values
_POINTS: Final = 5  # of a number
_CATEGORIES: Final = 24
_MOST: Final = 100  # columns


class _Asked(Protocol):
    """A fitted model."""

    @property
    def schema(self) -> Schema: ...

    @property
    def reader(self) -> RowReader: ...

    @property
    def task(self) -> FitTask: ...

    def outputs(self, frame: Any) -> Floats: ...


def find_influences(model: _Asked) -> tuple[Influence, ...]:
    """The columns of a table by how far they move the prediction, the largest first.

    ::

        effect(j) = max - min over values v of column j of the mean prediction where column j is v

    The mean is over made-up records, drawn evenly from what the schema declares, and the prediction a number, or the
    probability of a class, of which the one that moves most counts.

    Guarantee:
        Post-processing: the released model and declared or bought domains are all that enters.

    Edge cases:
        texts, vectors, hashed levels, pictures, and columns whose range nobody knows    left out
        more than 100 columns                                                            none: too many to show
    """
    if not isinstance(model.reader, Encoder | PlainColumns):
        return ()
    columns = [model.schema.columns[column.name] for column in model.schema.features]
    values = {column.name: _values(column) for column in columns}
    if not 0 < len(columns) <= _MOST or any(column.bounds == "buy" for column in columns):
        return ()
    rng = public_generator(0)
    drawn = [draw_cells(column, _ROWS, rng) for column in columns]
    base = {name: np.asarray(cells, dtype=object) for each in drawn for name, cells in each.items()}
    asked = [(name, cell) for name, cells in values.items() for cell in cells]
    if not asked:
        return ()
    frame = {name: np.tile(cells, len(asked)) for name, cells in base.items()}
    for place, (name, cell) in enumerate(asked):
        frame[name][place * _ROWS : (place + 1) * _ROWS] = cell
    found = model.outputs(frame)
    found = (found if model.task.numeric else softmax(found)).reshape(len(asked), _ROWS, -1)
    return _rank(asked, np.nan_to_num(found).mean(axis=1))


def _values(column: Column) -> list[Any]:
    """The declared values that a column goes through."""
    if column.type == "numeric" and isinstance(column.bounds, tuple):
        return list(np.linspace(*column.bounds, _POINTS).tolist())
    return [] if column.levels or not column.categories else list(column.categories[:_CATEGORIES])


def _rank(asked: list[tuple[str, Any]], means: Floats) -> tuple[Influence, ...]:
    made = []
    for name in dict.fromkeys(name for name, _ in asked):
        places = [place for place, (other, _) in enumerate(asked) if other == name]
        table = means[places]
        output = int(np.argmax(np.ptp(table, axis=0)))
        if table.shape[1] == 2:
            output = 1  # the second of two classes, as everywhere
        curve = table[:, output]
        least, most = (_text(asked[places[int(which)]][1]) for which in (np.argmin(curve), np.argmax(curve)))
        made.append(Influence(name, float(np.ptp(curve)), least, most))
    return tuple(sorted(made, key=lambda each: -each.effect))


def _text(cell: Any) -> str:
    return f"{float(f'{cell:.4g}'):,.10g}" if isinstance(cell, float) else str(cell)  # 25,000, not 2.5e+04
