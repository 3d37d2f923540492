"""An ONNX graph that is written node by node, and the few functions that numpy has and ONNX has not."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dpilot._arrays import Floats

__all__ = ["OnnxGraph"]

_OPSET: Final = 18
_OPSET_ML: Final = 3
_IR: Final = 9  # the oldest that these operations allow: older runtimes read it
KINDS: Final = {"float64": TensorProto.DOUBLE, "float32": TensorProto.FLOAT, "text": TensorProto.STRING,
                "int64": TensorProto.INT64, "bool": TensorProto.BOOL}  # fmt: skip


class OnnxGraph:
    """Nodes in the order of computing; a value is the name of what a node makes of each record, (n, columns)."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, kind: str, width: int) -> str:
        """A column (or ``width`` of them) that the caller hands in."""
        self._inputs.append(helper.make_tensor_value_info(name, KINDS[kind], ["records", width]))
        return name

    def output(self, name: str, value: str, kind: str, width: int | None) -> None:
        """What the caller gets of each record."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        shape: list[Any] = ["records"] if width is None else ["records", width]
        self._outputs.append(helper.make_tensor_value_info(name, KINDS[kind], shape))

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        name = f"constant {len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def add(self, operation: str, *values: str, domain: str = "", **attributes: Any) -> str:
        """The value that one operation makes."""
        name = f"value {len(self._nodes)}"
        self._nodes.append(helper.make_node(operation, list(values), [name], domain=domain, **attributes))
        return name

    def cast(self, value: str, kind: str) -> str:
        return self.add("Cast", value, to=KINDS[kind])

    def affine(self, value: str, factor: Any, offset: Any) -> str:
        """value * factor + offset, in float64."""
        return self.add("Add", self.add("Mul", value, self.constant(factor)), self.constant(offset))

    def clip(self, value: str, lower: Any, upper: Any) -> str:
        """Elementwise, each column by its own ends; nan stays nan."""
        return self.add("Min", self.add("Max", value, self.constant(lower)), self.constant(upper))

    def any(self, values: list[str]) -> str:
        """Whether one of several truths holds of a record."""
        found = values[0]
        for each in values[1:]:
            found = self.add("Or", found, each)
        return found

    def sum(self, value: str) -> str:
        """Over the columns of a record."""
        return self.add("ReduceSum", value, self.constant([1], np.int64), keepdims=1)

    def column(self, value: str, place: int) -> str:
        return self.add("Gather", value, self.constant([place], np.int64), axis=1)

    def concat(self, values: list[str]) -> str:
        return self.add("Concat", *values, axis=1)

    def interpolate(self, value: str, at: Floats, heights: Floats) -> str:
        """numpy.interp of one column: straight lines between the points, level beyond them."""
        inside = self.clip(value, at[0], at[-1])
        passed = self.cast(self.add("GreaterOrEqual", inside, self.constant(at[None, 1:-1])), "int64")
        piece = self.sum(passed)
        slope = np.diff(heights) / np.diff(at)
        start, height, rise = (self.add("Gather", self.constant(each), piece) for each in (at, heights, slope))
        return self.add("Add", height, self.add("Mul", rise, self.add("Sub", inside, start)))

    def lookup(self, value: str, places: dict[str, int], otherwise: int) -> str:
        """The number of each text."""
        texts, numbers = list(places), list(places.values())
        return self.add(
            "LabelEncoder", value, domain="ai.onnx.ml", keys_strings=texts, values_int64s=numbers,
            default_int64=otherwise,
        )  # fmt: skip

    def nan_unless(self, known: str, value: str) -> str:
        return self.add("Where", known, value, self.constant(np.nan))

    def model(self) -> Any:
        graph = helper.make_graph(self._nodes, "dpilot", self._inputs, self._outputs, self._constants)
        sets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _OPSET_ML)]
        made = helper.make_model(graph, opset_imports=sets, producer_name="dpilot", ir_version=_IR)
        onnx.checker.check_model(made)
        return made
