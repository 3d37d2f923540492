"""A fitted model: what reads records for it, what was released, and what it cost; saved and loaded as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file, save

from dpilot._arrays import Floats
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.data.sparse import is_usable
from dpilot.errors import InvalidInput
from dpilot.fit.arrays import array_frame
from dpilot.fit.declaration import FitTask
from dpilot.fit.embeddings import encoder_of
from dpilot.fit.figures import exact_figures, softmax
from dpilot.fit.grids.explain import Effect, effects, effects_svg
from dpilot.fit.grids.model import GridPredictor
from dpilot.fit.health import Health
from dpilot.fit.images import Scatterer
from dpilot.fit.learners.base import Predictor
from dpilot.fit.learners.finetune import FineTunedPredictor, TokenReader
from dpilot.fit.learners.heads import HeadPredictor
from dpilot.fit.learners.least_squares import LinearPredictor
from dpilot.fit.learners.networks import NetworkPredictor
from dpilot.fit.learners.shifted import OFFSETS, ShiftedPredictor, shift
from dpilot.fit.source import PlainColumns, RowReader, TableSource
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Ledger
from dpilot.records import FIT, FitRecord, MetricRecord
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.statement import claims, embed, write_statement
from dpilot.train.payment import LEDGER

__all__ = ["FIT", "FittedModel", "load_fit", "plain_labels"]

MODEL: Final = "model.safetensors"
READER: Final = "encoder.json"
_PREDICTORS: Final[dict[str, Any]] = {
    "head": HeadPredictor, "network": NetworkPredictor, "least squares": LinearPredictor, "grids": GridPredictor,
    "finetuned": FineTunedPredictor,
}  # fmt: skip


@dataclass(frozen=True, slots=True, weakref_slot=True)
class FittedModel:
    """What a fit returns. Everything in it was declared or released, and may be shown.

    Edge cases:
        A record outside the declared domain has no prediction: None, and probabilities of nan. Nothing is raised.
    """

    schema: Schema
    reader: RowReader = field(repr=False)
    predictor: Predictor = field(repr=False)
    record: FitRecord = field(repr=False)
    health: Health | None = field(default=None, repr=False)
    ledger: Ledger | None = field(default=None, repr=False)
    labels: tuple[Any, ...] | None = None  # what an array calls its classes

    @property
    def task(self) -> FitTask:
        return FitTask(self.schema)

    @property
    def metrics(self) -> tuple[MetricRecord, ...]:
        return self.record.metrics

    @property
    def epsilon(self) -> float:
        """The total, everything included."""
        return float(self.record.privacy["epsilon"])

    @property
    def budget(self) -> Budget:
        """The total as a budget."""
        return Budget(self.epsilon, self.delta, allow_large_delta=True)

    @property
    def delta(self) -> float:
        return float(self.record.privacy["delta"])

    def outputs(self, frame: Any) -> Floats:
        """The numbers the model gives for each record of a frame; nan for a record outside the declared domain."""
        given = array_frame(frame, self.reader.schema) if isinstance(frame, np.ndarray) and frame.ndim == 2 else frame
        features = self.reader.encode_features(given)
        known = is_usable(features)[:, None]
        return np.where(known, self.predictor.outputs(features), np.nan)

    def predict(self, frame: Any) -> NDArray[Any]:
        """The class, or the number, of each record of a frame; None for a record outside the declared domain."""
        return self.decide(self.outputs(frame))

    @property
    def classes(self) -> tuple[Any, ...]:
        """What is predicted, in the order of the outputs; none of a number."""
        return self.labels or self.schema.target.categories or ()

    def predict_columns(self, frame: Any) -> dict[str, Any]:
        """The predictions of a frame as columns by name: of classes the probability of each too."""
        found, target = self.outputs(frame), self.schema.target
        if self.task.numeric:
            return {target.name: found[:, 0]}
        chances = softmax(found)
        named = {f"probability {name}": chances[:, place] for place, name in enumerate(target.categories or ())}
        return {target.name: self.decide(found), **named}

    def decide(self, outputs: Floats) -> NDArray[Any]:
        """The class, or the number, by the ``outputs`` of each record."""
        known = np.isfinite(outputs).all(axis=1)
        predicted = np.full(len(outputs), None, dtype=object)
        if self.task.numeric:
            predicted[known] = outputs[known, 0]
        else:
            best = np.argmax(outputs[known, : len(self.classes)], axis=1)
            predicted[known] = np.asarray(self.classes, dtype=object)[best]
        return predicted

    def predict_proba(self, frame: Any) -> Floats:
        """The probability of each class, in the schema's order; nan for a record outside the declared domain."""
        if self.task.numeric:
            raise InvalidInput(f"the target {self.schema.target.name!r} is numeric: expected classes. Use predict.")
        return softmax(self.outputs(frame))

    def score_public(self, source: Any) -> tuple[MetricRecord, ...]:
        """Every figure of a table that is declared public, exactly: nothing is added, and nothing is protected."""
        records = TableSource.of(source, self.schema.without_unit()).read(self.reader)
        outputs = self.predictor.outputs(records.features)
        outputs = np.where(is_usable(records.features)[:, None], outputs, np.nan)
        found = exact_figures(self.task, records, outputs if self.task.numeric else softmax(outputs))
        return tuple(metric.record() for metric in found)

    def effects(self) -> tuple[Effect, ...]:
        """What drives a model of grids, the most important first: from released tables, so it costs nothing."""
        return effects(self._grids())

    def effects_svg(self) -> str:
        """The most important shapes of columns and heat maps of pairs, as a picture."""
        return effects_svg(self._grids())

    def _grids(self) -> GridPredictor:
        found = self.predictor.predictor if isinstance(self.predictor, ShiftedPredictor) else self.predictor
        if not isinstance(found, GridPredictor):
            raise InvalidInput(f'the model is a {found.kind}: expected one of grids. Fit with model="grids".')
        return found

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the report of the fit, one HTML page; it costs nothing. ``options``: see ``FitRecord.write_report``."""
        return self.record.write_report(path, **options)

    def _repr_html_(self) -> str:
        return self.record.summary_table(self.task.target.name)

    def save(self, folder: str | Path) -> Path:
        """Write model, schema, plan, record and ledger entries to ``folder``, as data; ``fit.json`` last,
        but for the statement of what all this is.

        Edge cases:
            another fit in the folder    refused
            a ledger of the fit's own    is copied there; one that was given stays where it is
        """
        where = Path(folder)
        if (where / FIT).exists() and (where / FIT).read_text() != self.record.to_json():
            raise InvalidInput(f"{where} holds another fit: expected an empty folder or this fit's own.")
        where.mkdir(parents=True, exist_ok=True)
        plain, tensors = self.predictor.state()
        stated = claims(self.record)
        files.write(where / MODEL, save(dict(tensors), embed(stated, tensors)))
        kinds = {PlainColumns: "plain", Encoder: "encoder", Scatterer: "scattering", TokenReader: "tokens"}
        described = {
            "reader": kinds[type(self.reader)], "shape": getattr(self.reader, "shape", None),
            "features": self.reader.schema.to_dict(), "predictor": self.predictor.kind,
            "labels": plain_labels(self.labels), "state": plain,
        }  # fmt: skip
        files.write(where / READER, json.dumps(described, indent=1).encode())
        files.write(where / "schema.toml", self.schema.to_toml().encode())
        files.write(where / "plan.json", json.dumps(self.record.plan, indent=1).encode())
        files.write(where / "ledger.json", json.dumps(self.record.ledger, indent=1).encode())
        if self.ledger is not None:
            self.ledger.copy_to(where / LEDGER)
        files.write(where / FIT, self.record.to_json().encode())
        write_statement(where, stated)
        return where


def load_fit(folder: str | Path) -> FittedModel:
    """The fit that ``FittedModel.save`` wrote: tensors and JSON, nothing is executed."""
    where = Path(folder)
    try:
        record = FitRecord.from_json((where / FIT).read_text())
        schema = Schema.from_toml(where / "schema.toml")
        described: Mapping[str, Any] = json.loads((where / READER).read_text())
        features = Schema.from_dict(described["features"])
        if described["predictor"] not in _PREDICTORS:
            raise InvalidInput(
                f"the model is a {described['predictor']!r} of another package: expected one of dpilot's."
            )
        kind = _PREDICTORS[described["predictor"]]
        reader = _load_reader(described, features)
        predictor = kind.load(described["state"], load_file(where / MODEL), reader)
        predictor = shift(predictor, described["state"].get(OFFSETS))
        labels = None if described["labels"] is None else tuple(described["labels"])
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise InvalidInput(f"{where} holds no fit of a table ({problem}): expected what dpilot fit wrote.") from None
    return FittedModel(schema, reader, predictor, record, labels=labels)


def _load_reader(described: Mapping[str, Any], features: Schema) -> RowReader:
    if described["reader"] == "scattering":
        return Scatterer(tuple(described["shape"]), len(features.target.categories or ()))
    if described["reader"] == "tokens":
        return TokenReader(features)
    return PlainColumns(features) if described["reader"] == "plain" else encoder_of(features)


def plain_labels(labels: tuple[Any, ...] | None) -> list[Any] | None:
    """The classes as JSON holds them; refused where they are neither texts nor numbers."""
    if labels is None:
        return None
    plain = [each.item() if isinstance(each, np.generic) else each for each in labels]
    if not all(isinstance(each, str | int | float) for each in plain):
        raise InvalidInput("the classes are neither texts nor numbers: expected those, as only they can be saved.")
    return plain
