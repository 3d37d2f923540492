"""A fitted table: the model with what reads records for it, what was released, and what it cost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dpilot._arrays import Floats
from dpilot.data.encoder import Encoded, Encoder
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.records import FitRecord, MetricRecord
from dpilot.tables.declaration import TableTask
from dpilot.tables.expansion import Expansion
from dpilot.tables.preparing import TableSource, read
from dpilot.tables.table_metrics import exact_metrics, outputs, probabilities
from dpilot.train.checkpoint import files
from dpilot.train.run import Run, load

__all__ = ["FIT", "TableRun", "load_table"]

FIT: Final = "fit.json"
ENCODER: Final = "encoder.json"


@dataclass(frozen=True, slots=True)
class TableRun:
    """What ``fit_table`` returns. Everything in it was declared or released, and may be shown.

    Edge cases:
        A record outside the declared domain has no prediction: None, and probabilities of nan. Nothing is raised.
    """

    run: Run = field(repr=False)
    encoder: Encoder = field(repr=False)
    record: FitRecord = field(repr=False)

    @property
    def model(self) -> nn.Module:
        return self.run.model

    @property
    def schema(self) -> Schema:
        """The schema, with the bounds that were bought."""
        return self.encoder.schema

    @property
    def metrics(self) -> tuple[MetricRecord, ...]:
        return self.record.metrics

    @property
    def epsilon(self) -> float:
        """The total, everything included."""
        return float(self.record.privacy["epsilon"])

    @property
    def delta(self) -> float:
        return float(self.record.privacy["delta"])

    def predict(self, frame: Any) -> NDArray[Any]:
        """The class, or the number, of each record of a frame; None for a record outside the declared domain."""
        records = self._encode(frame)
        if self.schema.target.categories is None:
            return _decode(outputs(self.model, records)[:, 0], self.encoder)
        chances = probabilities(self.model, records)
        best = np.where(np.isnan(chances).any(axis=1), np.nan, np.argmax(np.nan_to_num(chances), axis=1))
        return _decode(best, self.encoder)

    def predict_proba(self, frame: Any) -> Floats:
        """The probability of each class, in the schema's order; nan for a record outside the declared domain."""
        if self.schema.target.categories is None:
            raise InvalidInput(f"the target {self.schema.target.name!r} is numeric: expected classes. Use predict.")
        return probabilities(self.model, self._encode(frame))

    def score_public(self, source: Any) -> tuple[MetricRecord, ...]:
        """Every figure of a table that is declared public, exactly: nothing is added, and nothing is protected."""
        records = read(TableSource.of(source, self.schema), self.encoder, Expansion(self.encoder).apply)
        return tuple(metric.record() for metric in exact_metrics(self.model, records, TableTask(self.schema)))

    def save(self, folder: str | Path) -> Path:
        """Write model, schema, encoder, plan, records and ledger to ``folder``, as data."""
        where = self.run.save(folder)
        files.write(where / "schema.toml", self.schema.to_toml().encode())
        files.write(where / ENCODER, json.dumps(self.encoder.to_dict(), indent=1).encode())
        files.write(where / "plan.json", json.dumps(self.record.plan, indent=1).encode())
        files.write(where / FIT, self.record.to_json().encode())
        return where

    def _encode(self, frame: Any) -> Encoded:
        return Encoded(Expansion(self.encoder).apply(self.encoder.encode_features(frame)), None, None)


def load_table(folder: str | Path) -> TableRun:
    """The run that ``TableRun.save`` wrote: tensors and JSON, nothing is executed."""
    where = Path(folder)
    run = load(where)
    try:
        encoder = Encoder.from_dict(json.loads((where / ENCODER).read_text()))
        record = FitRecord.from_json((where / FIT).read_text())
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise InvalidInput(f"{where} holds no fit of a table ({problem}): expected what dpilot fit wrote.") from None
    return TableRun(run, encoder, record)


def _decode(values: Floats, encoder: Encoder) -> NDArray[Any]:
    known = np.isfinite(values)
    decoded = np.full(values.shape, None, dtype=object)
    decoded[known] = encoder.decode_target(values[known])
    return decoded
