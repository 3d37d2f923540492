"""What each kind of model makes of encoded rows, as nodes of a graph: the arithmetic of its ``outputs`` again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch import nn

from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.fit.expansion import TENTS, WideRows
from dpilot.fit.grids.levels import LEVELS, TableColumn
from dpilot.fit.grids.training import contrasts
from dpilot.fit.learners.shifted import ShiftedPredictor

if TYPE_CHECKING:
    from dpilot.export.graph import OnnxGraph
    from dpilot.linear.model import LinearModel

__all__ = ["inside", "linear", "outputs"]


def outputs(graph: OnnxGraph, predictor: Any, rows: str) -> str:
    """The outputs (float64) of a predictor for rows of features; of a null record anything."""
    if isinstance(predictor, ShiftedPredictor):
        return graph.add("Add", outputs(graph, predictor.predictor, rows), graph.constant(predictor.offsets))
    if predictor.kind not in _KINDS or not isinstance(getattr(predictor, "rows", None), WideRows | None):
        raise InvalidInput(
            f"the model is a {predictor.kind} on {type(getattr(predictor, 'rows', None)).__name__}: expected one of a "
            "table. A fine-tuned text or picture model is exported by its own library; to_skops holds everything."
        )
    return _KINDS[predictor.kind](graph, predictor, rows)


def linear(graph: OnnxGraph, model: LinearModel, rows: str) -> str:
    """A linear model in the units of the data; what is missing counts as the centre of its column."""
    values = inside(graph, rows, model.center, model.lower, model.upper)
    found = graph.add("MatMul", values, graph.constant(model.coef[:, None]))
    return graph.clip(graph.add("Add", found, graph.constant(model.intercept)), *model.target_range)


def inside(graph: OnnxGraph, rows: str, center: Floats, lower: Floats, upper: Floats) -> str:
    """``linear.model.inside``: pulled into the released intervals, nan in their centre."""
    values = graph.cast(rows, "float64")
    filled = graph.add("Where", graph.add("IsNaN", values), graph.constant(center), values)
    return graph.clip(filled, lower, upper)


def _least_squares(graph: OnnxGraph, predictor: Any, rows: str) -> str:
    return linear(graph, predictor.model, rows)


def _head(graph: OnnxGraph, predictor: Any, rows: str) -> str:
    """Weights on rows of unit length."""
    values = graph.cast(_widen(graph, predictor.rows, rows), "float64")
    length = graph.add("Sqrt", graph.sum(graph.add("Mul", values, values)))
    is_zero = graph.add("Equal", length, graph.constant(0.0))
    unit = graph.add("Div", values, graph.add("Where", is_zero, graph.constant(1.0), length))
    return graph.add("MatMul", unit, graph.constant(predictor.weights))


def _network(graph: OnnxGraph, predictor: Any, rows: str) -> str:
    values = graph.cast(_widen(graph, predictor.rows, rows), "float64")
    module = predictor.module
    for layer in module if isinstance(module, nn.Sequential) else (module,):
        values = _LAYERS[type(layer)](graph, layer, values)
    if predictor.interval is None:
        return values
    lower, upper = predictor.interval
    raised = graph.affine(graph.clip(values, -1.0, 1.0), 1.0, 1.0)
    return graph.affine(graph.add("Div", raised, graph.constant(2.0)), upper - lower, lower)


def _linear_layer(graph: OnnxGraph, layer: Any, values: str) -> str:
    weight, bias = (each.detach().double().cpu().numpy() for each in (layer.weight, layer.bias))
    return graph.add("Add", graph.add("MatMul", values, graph.constant(weight.T)), graph.constant(bias))


def _tanh(graph: OnnxGraph, layer: Any, values: str) -> str:
    del layer
    return graph.add("Tanh", values)


def _grids(graph: OnnxGraph, predictor: Any, rows: str) -> str:
    """Tables that are added up: the cell of each term by the levels of its columns."""
    if predictor.dense:
        raise InvalidInput("the grids have texts or vectors beside: expected columns of a table alone. Use to_skops.")
    design, columns = predictor.design, predictor.levels.columns
    used = sorted({place for term in design.cells.terms for place in term.columns})
    codes = {place: _code(graph, predictor, columns[place], rows) for place in used}
    places = [
        graph.add("Add", _cell(graph, term, codes), graph.constant(start, np.int64))
        for term, start in zip(design.cells.terms, design.cells.starts, strict=False)
    ]
    made = _sum_of(graph, predictor.tables, places)
    if design.waves is not None:
        angles = _sum_of(graph, design.waves.phases, places[: design.additive])
        both = graph.concat([graph.add("Cos", angles), graph.add("Sin", angles)])
        steps = graph.cast(graph.cast(graph.affine(both, 127.0, 0.0), "int64"), "float64")  # cut off toward 0
        weights = predictor.beside * design.waves.scale(design.wave_share)
        made = graph.add("Add", made, graph.add("MatMul", steps, graph.constant(weights)))
    if predictor.classes:
        return graph.add("MatMul", made, graph.constant(contrasts(predictor.classes).T))
    values = graph.affine(made, predictor.spread, predictor.centre)
    if predictor.linear is not None:
        values = graph.add("Add", values, linear(graph, predictor.linear, rows))
    return values if predictor.interval is None else graph.clip(values, *predictor.interval)


def _sum_of(graph: OnnxGraph, table: Floats, places: list[str]) -> str:
    """Of the rows of a table at several places, one of each for a record."""
    rows = graph.add("Gather", graph.constant(table), graph.concat(places))  # (n, places, columns)
    return graph.add("ReduceSum", rows, graph.constant([1], np.int64), keepdims=0)


def _cell(graph: OnnxGraph, term: Any, codes: dict[int, str]) -> str:
    """The place of a record in the table of a term."""
    found = [
        graph.add("Gather", graph.constant(lookup, np.int64), codes[place])
        for place, lookup in zip(term.columns, term.lookups, strict=True)
    ]
    total = found[0]
    for each in found[1:]:
        total = graph.add("Add", total, each)
    return total


def _code(graph: OnnxGraph, predictor: Any, column: TableColumn, rows: str) -> str:
    """The level of a column."""
    if column.number is None:
        block = graph.add("Gather", rows, graph.constant(column.hot, np.int64), axis=1)
        best = graph.add("ArgMax", block, axis=1, keepdims=1)
        none = graph.add("Equal", graph.sum(graph.cast(block, "float64")), graph.constant(0.0))
        return graph.add("Where", none, graph.constant(len(column.hot), np.int64), best)
    value = graph.cast(graph.column(rows, column.number), "float64")
    quantile = graph.interpolate(value, *predictor.levels.numbers[column.number])
    level = graph.cast(graph.clip(graph.affine(quantile, LEVELS, 0.0), 0.0, LEVELS - 1), "int64")
    if column.missing is None:
        return level
    absent = graph.add("Equal", graph.column(rows, column.missing), graph.constant(1.0, np.float32))
    return graph.add("Where", absent, graph.constant(LEVELS, np.int64), level)


def _widen(graph: OnnxGraph, wide: WideRows, rows: str) -> str:
    """Numbers in more shapes, as ``WideRows.widen``; float32."""
    lengths = np.ones(wide.encoder.width, dtype=np.float32)
    for block in wide.unit_blocks():
        lengths[block] = wide.unit_length
    made = [graph.add("Mul", rows, graph.constant(lengths, np.float32))]
    for place, column in wide.numbers() if wide.expands else ():
        made.append(graph.cast(_shapes(graph, wide, rows, place, column), "float32"))
    if wide.has_constant:
        nothing = graph.add("Mul", graph.column(rows, 0), graph.constant(0.0, np.float32))
        made.append(graph.add("Add", nothing, graph.constant(wide.constant, np.float32)))
    return graph.concat(made)


def _shapes(graph: OnnxGraph, wide: WideRows, rows: str, place: int, column: Any) -> str:
    scaled = graph.cast(graph.column(rows, place), "float64")
    if wide.levels is None:
        position = _on_log_scale(graph, scaled, *column.interval)
    else:
        position = graph.affine(graph.interpolate(scaled, *wide.levels.numbers[place]), 2.0, -1.0)
    knots = np.linspace(-1.0, 1.0, TENTS)
    away = graph.add("Abs", graph.add("Sub", position, graph.constant(knots[None, :])))
    tents = graph.clip(graph.affine(graph.add("Div", away, graph.constant(knots[1] - knots[0])), -1.0, 1.0), 0.0, 1.0)
    made = graph.concat([position, tents])
    if column.missing != "indicator":
        return made
    absent = graph.add("Equal", graph.column(rows, place + 1), graph.constant(1.0, np.float32))
    return graph.add("Where", absent, graph.constant(0.0), made)


def _on_log_scale(graph: OnnxGraph, scaled: str, lower: float, upper: float, octaves: int = 10) -> str:
    """``fit.expansion.on_log_scale`` of a number that is scaled to [-1, 1]."""
    centre, unit = min(max(0.0, lower), upper), (upper - lower) / 2**octaves
    value = graph.affine(graph.affine(graph.affine(scaled, 1.0, 1.0), 0.5, 0.0), upper - lower, lower)
    away = graph.add("Sub", value, graph.constant(centre))
    grown = graph.add("Log", graph.affine(graph.add("Abs", away), 1 / unit, 1.0))
    place = graph.affine(graph.add("Mul", graph.add("Sign", away), grown), 1 / math.log(2), 0.0)
    low, high = (math.copysign(math.log2(1 + abs(end - centre) / unit), end - centre) for end in (lower, upper))
    return graph.clip(graph.affine(graph.affine(place, 1.0, -low), 2 / (high - low), -1.0), -1.0, 1.0)


_LAYERS: Final[dict[type, Callable[[OnnxGraph, Any, str], str]]] = {nn.Linear: _linear_layer, nn.Tanh: _tanh}
_KINDS: Final[dict[str, Callable[[OnnxGraph, Any, str], str]]] = {
    "head": _head, "network": _network, "least squares": _least_squares, "grids": _grids,
}  # fmt: skip
