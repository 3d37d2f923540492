"""The columns of a table as inputs of a graph, and what the encoder makes of them: the rules of ``data/types``."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot.data.column import Column
from dpilot.data.column_types import CellState, type_of
from dpilot.data.encoder import Encoder
from dpilot.data.frames import Frame
from dpilot.data.reading import ABSENT, WRONG, lookup, numbers
from dpilot.data.schema import Schema
from dpilot.data.types.categorical import BOOLEAN, spellings
from dpilot.data.values import number
from dpilot.errors import InvalidInput

if TYPE_CHECKING:
    from dpilot.export.graph import OnnxGraph

__all__ = ["cells", "encode", "plain_rows"]

_UNREADABLE: Final = -3
_MISSING_TEXT: Final = "\ue000missing"
_UNKNOWN_TEXT: Final = "\ue000unknown"
_UNREADABLE_TEXT: Final = "\ue000unreadable"
_STATES: Final = {CellState.MISSING: ABSENT, CellState.UNKNOWN: WRONG, CellState.UNREADABLE: _UNREADABLE}


def encode(graph: OnnxGraph, encoder: Encoder) -> tuple[str, str]:
    """The encoded features (float32), and whether a record is more than the null record."""
    _check_types(encoder.schema)
    made = [_column(graph, column, encoder.schema) for column in encoder.schema.features]
    null = [each for _, found in made for each in found]  # never empty: what cannot be read is null
    return graph.concat([block for block, _ in made]), graph.add("Not", graph.any(null))


def plain_rows(graph: OnnxGraph, schema: Schema) -> tuple[str, str]:
    """Numbers as they are (float64), for a model that scales them itself, and whether all are finite."""
    values = [graph.input(column.name, "float64", 1) for column in schema.features]
    absent = [_absent(graph, value, schema) for value in values]
    infinite = [graph.add("IsInf", value) for value in values]
    return graph.concat(values), graph.add("Not", graph.any([*absent, *infinite]))


def cells(frame: Any, schema: Schema) -> dict[str, NDArray[Any]]:
    """What a graph of ``encode`` takes, of a frame: read as a fit reads it."""
    table = Frame.of(frame)
    return {column.name: _cells(column, table, schema)[:, None] for column in schema.features}


def _cells(column: Column, table: Frame, schema: Schema) -> NDArray[Any]:
    if column.type == "numeric":
        return numbers(table.cells(column), schema.missing_values)
    reading = type_of(column).read(table.cells(column), column, schema.missing_values)
    names = np.array(column.categories, dtype=object)
    found = np.full(len(reading.values), _UNKNOWN_TEXT, dtype=object)
    known = reading.states == CellState.FINE
    found[known] = names[reading.values[known].astype(np.int64)]
    found[reading.states == CellState.MISSING] = _MISSING_TEXT
    found[reading.states == CellState.UNREADABLE] = _UNREADABLE_TEXT
    return found


def _check_types(schema: Schema) -> None:
    others = [
        f"{column.name} ({column.type})"
        for column in schema.features
        if column.type not in ("numeric", "categorical", "boolean") or column.levels is not None
    ]
    if others:
        raise InvalidInput(
            f"the columns {', '.join(others)} cannot be read inside ONNX: expected numbers, listed categories and "
            "booleans. Give preprocessing=False, and encode rows by fitted.reader; or to_skops, which holds everything."
        )


def _column(graph: OnnxGraph, column: Column, schema: Schema) -> tuple[str, list[str]]:
    """The encoded block of a column, and truths each of which makes the record null."""
    return (_numeric if column.type == "numeric" else _categorical)(graph, column, schema)


def _numeric(graph: OnnxGraph, column: Column, schema: Schema) -> tuple[str, list[str]]:
    value = graph.input(column.name, "float64", 1)
    lower, upper = column.interval
    absent, infinite = _absent(graph, value, schema), graph.add("IsInf", value)
    beyond = [graph.add("Less", value, graph.constant(lower)), graph.add("Greater", value, graph.constant(upper))]
    outside = graph.add("And", graph.any(beyond), graph.add("Not", graph.any([infinite, absent])))
    # in the order of the encoder, so that no bit differs
    shifted = graph.add("Sub", graph.clip(value, lower, upper), graph.constant(lower))
    scaled = graph.affine(graph.add("Div", shifted, graph.constant(upper - lower)), 2.0, -1.0)
    no_number = graph.any([absent, infinite])
    filled = graph.add("Where", no_number, graph.constant(0.0), graph.clip(scaled, -1.0, 1.0))
    states = {CellState.MISSING: absent, CellState.OUTSIDE: outside, CellState.UNREADABLE: infinite}
    return _block(graph, [graph.cast(filled, "float32")], column, states)


def _absent(graph: OnnxGraph, value: str, schema: Schema) -> str:
    """Missing, or a number that the schema calls so."""
    spelled = {found for found in map(number, schema.missing_values) if found is not None and np.isfinite(found)}
    same = [graph.add("Equal", value, graph.constant(each)) for each in sorted(spelled)]
    return graph.any([graph.add("IsNaN", value), *same])


def _categorical(graph: OnnxGraph, column: Column, schema: Schema) -> tuple[str, list[str]]:
    code = graph.lookup(graph.input(column.name, "text", 1), _places(column, schema), WRONG)
    count = len(column.categories or ())
    hot = graph.cast(graph.add("Equal", code, graph.constant(np.arange(count)[None, :], np.int64)), "float32")
    blocks = [hot]
    if column.ordered:
        place = graph.affine(graph.cast(code, "float64"), 2 / max(count - 1, 1), -1.0)
        known = graph.add("GreaterOrEqual", code, graph.constant(0, np.int64))
        blocks.append(graph.cast(graph.add("Where", known, place, graph.constant(0.0)), "float32"))
    states = {state: graph.add("Equal", code, graph.constant(place, np.int64)) for state, place in _STATES.items()}
    return _block(graph, blocks, column, states)


def _places(column: Column, schema: Schema) -> dict[str, int]:
    """The code of every text that is known."""
    if type_of(column) is BOOLEAN:
        absent = {each: place for each, place in lookup((), schema.missing_values).items() if isinstance(each, str)}
        known = absent | {each: place for text, place in spellings().items() for each in _cases(text)}
    else:
        known = lookup(column.categories or (), schema.missing_values)
    own = {_MISSING_TEXT: ABSENT, _UNREADABLE_TEXT: _UNREADABLE}
    return {"nan": ABSENT, **known, **own}


def _cases(text: str) -> set[str]:
    return {"".join(letters) for letters in product(*({each.lower(), each.upper()} for each in text))}


def _block(graph: OnnxGraph, blocks: list[str], column: Column, states: dict[CellState, str]) -> tuple[str, list[str]]:
    """With indicators of what is missing or unknown, as the encoder has them."""
    asked = {CellState.MISSING: column.missing, CellState.UNKNOWN: column.outside}
    told = [graph.cast(states[state], "float32") for state, said in asked.items() if said == "indicator"]
    null = [states[state] for state in states if state in column.null_states]
    return graph.concat([*blocks, *told]), null
