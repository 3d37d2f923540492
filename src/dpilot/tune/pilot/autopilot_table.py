"""The autopilot of a table: read by its schema, widened from declared bounds, then a linear head on unit rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.metrics.counts import Layout
from dpilot.privacy.ledger import Ledger
from dpilot.records import RunRecord
from dpilot.tables.declaration import FitDeclaration
from dpilot.tables.expansion import Expansion
from dpilot.tables.expansion import Features as FeatureRows
from dpilot.tables.fit_record import describe_data
from dpilot.tables.fitting import buy, commit, declare_fit, open_ledger
from dpilot.tables.planning import purchase_events, purchase_noises, purchase_shares
from dpilot.tables.preparing import TableSource, read
from dpilot.tables.table_run import TableRun
from dpilot.train.run import Run
from dpilot.transfer.features import Features
from dpilot.tune.pilot.autopilot import HEAD_CLIPPING, cells_of, draw_split, noise_for
from dpilot.tune.pilot.autopilot_record import RunDescription, record_run
from dpilot.tune.pilot.defaults import AutopilotOptions
from dpilot.tune.pilot.learners import Heads, as_module
from dpilot.tune.pilot.outcome import AutopilotResult, Tell, run_plan, silent
from dpilot.tune.pilot.pilot_plan import PilotPlan, Purchases, plan_heads
from dpilot.tune.probe_task import THRESHOLD, ProbeTask
from dpilot.tune.task import HELD_OUT, TRAIN, MakeNoise

__all__ = ["TableResult", "Widening", "autopilot_table", "unit_rows"]

_WIDE: Final = 64
_TOO_WIDE: Final = (
    f"the table has more than {_WIDE} numeric columns: expected fewer for a run folder. "
    "Declare some as ignored, or fit without one."
)


@dataclass(frozen=True, slots=True)
class Widening:
    """What a head sees of encoded rows: the expansion of numbers, or, of very wide tables, the rows and a constant.

    Guarantee:
        Row by row, from declared numbers; a null row stays null.
    """

    encoder: Encoder

    @property
    def expands(self) -> bool:
        """Whether numbers get more shapes: not where that would make many thousand columns."""
        return _expands(self.encoder.schema)

    def apply(self, encoded: FeatureRows) -> FeatureRows:
        """The rows as the head sees them."""
        if self.expands:
            return Expansion(self.encoder).apply(encoded)
        return np.column_stack([encoded, np.ones(len(encoded), dtype=np.float32)])


def _expands(schema: Schema) -> bool:
    return sum(column.type == "numeric" for column in schema.features) <= _WIDE


def unit_rows(encoder: Encoder, frame: Any) -> NDArray[np.float64]:
    """The records of ``frame`` as a head sees them; a row of zeros for a null record."""
    rows = Widening(encoder).apply(encoder.encode_features(frame)).astype(np.float64)
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class TableResult:
    """An autopilot result, and what reads records for its model."""

    result: AutopilotResult
    encoder: Encoder
    ledger: Ledger = field(repr=False)

    def table_run(self) -> TableRun:
        """The same as a run that can be saved, loaded and predicted from by ``dpilot predict``."""
        record, tuned = self.result.record, self.result.tuned
        if not Widening(self.encoder).expands:
            raise InvalidInput(_TOO_WIDE)
        run = RunRecord(record.plan, tuned.spent.epsilon, tuned.spent.delta, (), record.stamps, record.decisions)
        return TableRun(Run(as_module(self.result.model), run, self.ledger), self.encoder, record)


def autopilot_table(
    source: Any,
    schema: Schema,
    *,
    epsilon: float,
    delta: float | None = None,
    allow_large_delta: bool = False,
    target: str | None = None,
    protected: str | None = None,
    options: AutopilotOptions | None = None,
    size: str | int = "public",
    ledger: Ledger | str | Path | None = None,
    run_folder: str | Path | None = None,
    device: str | None = None,
    tell: Tell = silent,
    test_seed: int | None = None,
    class_names: tuple[str, ...] | None = None,
    unprotected: tuple[str, ...] = (),
) -> TableResult:
    """A classifier of a table, tuned, trained and scored for one total (epsilon, delta).

    ``class_names`` are what figures call the classes, where the schema only counts them.
    Which model a table gets costs nothing: it is a linear head on unit rows of the widened features, whatever the data.

    Guarantee:
        Bounds and size that are bought, trials, scores, final run and figures are one commitment, on disk before a
        value is read. No value of a record raises; a record outside its declared domain is null.
    """
    options = options or AutopilotOptions()
    total = {"epsilon": epsilon, "delta": delta, "allow_large_delta": allow_large_delta}
    given = {**total, "target": target, "protected": protected}
    declared, table = declare_fit(source, schema, size, epochs=None, model="logistic", **given)
    if declared.task.numeric:
        raise InvalidInput(f"the target {declared.task.target.name!r} is numeric: expected classes. See AutoRegressor.")
    if run_folder is not None and not _expands(declared.schema):
        raise InvalidInput(_TOO_WIDE)  # now, as table_run would once all is paid
    plan = _plan(declared, options)
    declared = replace(declared, held_out=plan.held_out)
    split, noise = draw_split(plan.held_out, test_seed), noise_for(test_seed)
    book = open_ledger(ledger, declared.budget, table.name, run_folder)
    committed, noises = commit(book, plan.stages(split.id), plan.budget), purchase_noises(declared)
    expected, encoder = buy(declared, table, committed, noises, noise)
    if declared.size is None:
        plan = plan.resize(expected, declared.task.outputs)
    task = _task(declared, table, encoder, split, expected, device=device, noise=noise)
    layout = declared.task.layout if class_names is None else replace(declared.task.layout, classes=class_names)
    outcome = run_plan(plan, Heads(task), committed, layout, tell)
    description = _describe(declared, layout, encoder, expected, table.name, unprotected)
    result = record_run(
        plan, outcome, description, book=book, committed=committed, own=ledger is None, stamp=task.stamp
    )
    return TableResult(result, encoder, book)


def _plan(declared: FitDeclaration, options: AutopilotOptions) -> PilotPlan:
    """Purchases where something is not declared, then the heads with what they leave."""
    events = purchase_events(declared, purchase_noises(declared))
    groups = 0 if declared.schema.protected is None else len(declared.task.layout.groups)
    cells = cells_of(options.objective, declared.task.outputs, groups)
    return plan_heads(
        declared.budget,
        size=declared.size,
        classes=declared.task.outputs,
        cells=cells,
        options=options,
        bought=Purchases(events, sum(purchase_shares(declared).values())),
    )


def _task(
    declared: FitDeclaration,
    table: TableSource,
    encoder: Encoder,
    split: Split,
    size: float,
    *,
    device: str | None,
    noise: MakeNoise,
) -> ProbeTask:
    """Both parts as unit rows."""
    places = split.indices(table.length())
    records = read(table, encoder, Widening(encoder).apply)
    target = np.zeros(0) if records.target is None else records.target
    features = Features.of(records.features, target, declared.task.outputs).unit()
    shares, held_out = declared.shares, places[HELD_OUT]
    groups = None if records.group is None else torch.from_numpy(records.group[held_out])
    return ProbeTask(
        features.take(places[TRAIN]),
        features.take(held_out),
        size * shares[TRAIN],
        size * shares[HELD_OUT],
        split.id,
        groups,
        0 if groups is None else len(declared.task.layout.groups),
        device=device,
        noise=noise,
    )


def _describe(
    declared: FitDeclaration, layout: Layout, encoder: Encoder, size: float, name: str, unprotected: tuple[str, ...]
) -> RunDescription:
    expands = Widening(encoder).expands
    shapes = "each number in ten shapes" if expands else "numbers as they are"
    return RunDescription(
        HEAD_CLIPPING,
        f"logistic regression on rows of unit length, {shapes}: chosen without looking, so it costs nothing",
        describe_data(declared, size, name, layout.classes),
        {"clipping": "constant", "threshold": THRESHOLD, "optimizer": "momentum", "model": "linear head"},
        (*unprotected, *declared.unprotected),
        notes=declared.notes,
    )
