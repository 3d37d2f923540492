"""ONNX files: a released model with its preprocessing, schema and privacy statement; and predictions from one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.export import columns, predictors
from dpilot.fit.model import FittedModel
from dpilot.fit.source import PlainColumns
from dpilot.linear import LinearRegression, LogisticRegression
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.statement import claims, embed_onnx
from dpilot.train.run import Run

if TYPE_CHECKING:
    from dpilot.export.graph import OnnxGraph

__all__ = ["OnnxModel", "to_onnx"]

SCHEMA: Final = "dpilot_schema"
LABEL, PROBABILITIES, NUMBER, ROWS, ARRAY = "label", "probabilities", "prediction", "features", "X"


def to_onnx(model: Any, path: str | Path, *, preprocessing: bool = True, example: Any = None) -> Path:
    """Write a fit, a fitted estimator or a run of a torch model to ``path``; it costs nothing.

    A graph of a table takes one input a column, by its name: numbers (float64, nan where missing) and texts (as the
    schema writes categories; any text of ``missing_values`` where missing), each of shape (records, 1). It gives
    "label" and "probabilities", or "prediction". With ``preprocessing=False`` it takes the encoded rows, "features".
    A linear model of an array takes it as "X".
    A torch model takes and gives what its ``forward`` does; ``example`` is a batch of inputs whose values mean nothing.

    Guarantee:
        The metadata hold the privacy statement, signed if DPILOT_KEY names a key: ``dpilot verify`` checks the file.

    Edge cases:
        a record outside the declared domain    probabilities of nan, and the label ""
        dates, texts, vectors, hashed levels    not inside ONNX: preprocessing=False, or ``to_skops``
    """
    try:
        import onnx
    except ImportError:
        raise _validate.missing_extra("onnx", "export") from None
    if isinstance(model, Run):
        made = _torch_graph(model, example)
        stated = claims(model.record)
    elif isinstance(model, LinearRegression | LogisticRegression):
        made = _linear_graph(model)
        stated = claims(model.record())
    else:
        fitted = _fitted_model(model)
        made = _table_graph(fitted, preprocessing)
        stated = claims(fitted.record)
        onnx.helper.set_model_props(made, {SCHEMA: json.dumps(_schema(fitted))} if preprocessing else {})
    embed_onnx(made, stated)
    files.write(Path(path), made.SerializeToString(deterministic=True))
    return Path(path)


def _fitted_model(model: Any) -> FittedModel:
    found = getattr(model, "fitted_", model)
    if not isinstance(found, FittedModel):
        raise InvalidInput(
            f"the model is a {type(model).__name__}: expected a fit, a fitted estimator, or a run of Trainer."
        )
    return found


def _table_graph(fitted: FittedModel, preprocessing: bool) -> Any:
    from dpilot.export.graph import OnnxGraph

    graph = OnnxGraph()
    if not preprocessing:
        rows = graph.input(ROWS, "float32", _width(fitted))
        values = graph.cast(rows, "float64")
        wrong = graph.add("Or", graph.add("IsNaN", values), graph.add("IsInf", values))
        known = graph.add("Equal", graph.sum(graph.cast(wrong, "float64")), graph.constant(0.0))
        zero = graph.constant(0.0, np.float32)
        rows = graph.add("Where", known, rows, zero)
    elif isinstance(fitted.reader, Encoder):
        rows, known = columns.encode(graph, fitted.reader)
    elif isinstance(fitted.reader, PlainColumns):
        rows, known = columns.plain_rows(graph, fitted.reader.schema)
    else:
        raise InvalidInput(
            f"the model reads {type(fitted.reader).__name__}: expected columns of a table. Use to_skops."
        )
    _write_outputs(graph, fitted, graph.nan_unless(known, predictors.outputs(graph, fitted.predictor, rows)), known)
    return graph.model()


def _linear_graph(model: LinearRegression | LogisticRegression) -> Any:
    """A linear model of an array: what is missing counts as the centre of its column."""
    from dpilot.export.graph import OnnxGraph

    check_is_fitted(model)
    graph = OnnxGraph()
    rows = graph.input(ARRAY, "float64", model.n_features_in_)
    if isinstance(model, LinearRegression):
        graph.output(NUMBER, predictors.linear(graph, model.model_, rows), "float64", 1)
        return graph.model()
    inside = predictors.inside(graph, rows, model.center_, model.lower_, model.upper_)
    weights, offsets = model.coef_.T, np.atleast_1d(model.intercept_)
    if weights.shape[1] == 1:  # the log odds of the second of two classes
        weights, offsets = np.pad(weights, ((0, 0), (1, 0))), np.append(0.0, offsets)
    scores = graph.add("Add", graph.add("MatMul", inside, graph.constant(weights)), graph.constant(offsets))
    _write_classes(graph, [str(each) for each in model.classes_], scores, None)
    return graph.model()


def _schema(fitted: FittedModel) -> dict[str, Any]:
    """That of the features, their bounds known, and of the target."""
    features, target = fitted.reader.schema.to_dict(), fitted.schema.target.name
    return {**features, "columns": {**features["columns"], target: fitted.schema.to_dict()["columns"][target]}}


def _width(fitted: FittedModel) -> int:
    return fitted.reader.width if isinstance(fitted.reader, Encoder) else len(fitted.reader.schema.features)


def _write_outputs(graph: OnnxGraph, fitted: FittedModel, values: str, known: str) -> None:
    if fitted.task.numeric:
        graph.output(NUMBER, values, "float64", 1)
        return
    _write_classes(graph, [str(each) for each in fitted.classes], values, known)


def _write_classes(graph: OnnxGraph, classes: list[str], values: str, known: str | None) -> None:
    graph.output(PROBABILITIES, graph.add("Softmax", values, axis=1), "float64", len(classes))
    best = graph.add("ArgMax", values, axis=1, keepdims=1)
    found = graph.add("Gather", graph.constant(classes, object), best)
    if known is not None:
        found = graph.add("Where", known, found, graph.constant("", object))
    graph.output(LABEL, found, "text", 1)


def _torch_graph(run: Run, example: Any) -> Any:
    """What torch's own exporter makes of the model, records along a dimension of any length."""
    import torch

    if example is None:
        raise InvalidInput(
            "example is None: expected a batch of inputs, as torch.zeros(2, 20). Its values mean nothing."
        )
    given = tuple(example) if isinstance(example, tuple | list) else (example,)
    model = run.model.cpu().eval()
    shapes = tuple({0: torch.export.Dim.AUTO} for _ in given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, of versions and deprecations
        try:
            program = torch.onnx.export(model, given, dynamo=True, dynamic_shapes=shapes, verbose=False)
        except ImportError:
            raise _validate.missing_extra("onnxscript", "export") from None
    assert program is not None
    return program.model_proto


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A file of ``to_onnx`` with its preprocessing, run by onnxruntime: predictions of frames and tables."""

    schema: Schema
    classes: tuple[str, ...]
    session: Any = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> OnnxModel:
        """The model in ``path``; InvalidInput where it holds no schema."""
        try:
            import onnxruntime
        except ImportError:
            raise _validate.missing_extra("onnxruntime", "export") from None
        try:
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            schema = Schema.from_dict(json.loads(session.get_modelmeta().custom_metadata_map[SCHEMA]))
        except InvalidInput:
            raise
        except Exception as problem:  # the runtime raises types of its own
            raise InvalidInput(f"{path} is no table's ONNX model ({problem}): expected what to_onnx wrote.") from None
        return cls(schema, tuple(schema.target.categories or ()), session)

    def outputs(self, frame: Any) -> Mapping[str, Any]:
        """What the graph gives for the records of a frame, by the names of its outputs."""
        names: Sequence[str] = [each.name for each in self.session.get_outputs()]
        return dict(zip(names, self.session.run(None, columns.cells(frame, self.schema)), strict=True))

    def predict_proba(self, frame: Any) -> Floats:
        """The probability of each class, in the schema's order; nan for a record outside the declared domain."""
        return np.asarray(self.outputs(frame)[PROBABILITIES])

    def predict_columns(self, frame: Any) -> dict[str, Any]:
        """The predictions of a frame as columns by name: of classes the probability of each too."""
        found, name = self.outputs(frame), self.schema.target.name
        if NUMBER in found:
            return {name: found[NUMBER][:, 0]}
        labels, chances = found[LABEL][:, 0], found[PROBABILITIES]
        named = {f"probability {each}": chances[:, place] for place, each in enumerate(self.classes)}
        return {name: np.where(np.isnan(chances[:, 0]), None, labels), **named}
