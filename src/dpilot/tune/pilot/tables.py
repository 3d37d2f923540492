"""The autopilot of a table: read by its schema, widened from declared bounds, then a linear head on unit rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dpilot.data import bounds
from dpilot.data.encoder import Encoded, Encoder
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.metrics.counts import Layout
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Committed, Ledger
from dpilot.records import RunRecord
from dpilot.statistics import count, count_event
from dpilot.tables.declared import Declared
from dpilot.tables.features import Expansion
from dpilot.tables.fitting import declared_of, open_ledger
from dpilot.tables.planning import BOUNDS, SIZE
from dpilot.tables.preparing import Source
from dpilot.tables.run import TableRun
from dpilot.train.run import Run
from dpilot.transfer.features import Features
from dpilot.tune.pilot.autopilot import HEAD_CLIPPING, cells_of, drawn_split, noise_for
from dpilot.tune.pilot.flight import Flight, Tell, charge, fly, silent
from dpilot.tune.pilot.learners import Heads, as_module
from dpilot.tune.pilot.plan import Bought, PilotPlan, plan_heads
from dpilot.tune.pilot.recording import Told, recorded
from dpilot.tune.pilot.terms import Terms
from dpilot.tune.probe_task import THRESHOLD, ProbeTask
from dpilot.tune.task import HELD_OUT, TRAIN, MakeNoise

__all__ = ["TableFlight", "Widening", "fly_table", "unit_rows"]

_SIZE_SHARE: Final = 0.005
_WIDE: Final = 64
_TOO_WIDE: Final = (
    f"the table has more than {_WIDE} numeric columns: expected fewer for a run folder. "
    "Declare some as ignored, or fit without one."
)

Rows = NDArray[np.float32]


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

    def apply(self, encoded: Rows) -> Rows:
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
class TableFlight:
    """A flight, and what reads records for its model."""

    flight: Flight
    encoder: Encoder
    ledger: Ledger = field(repr=False)

    def table_run(self) -> TableRun:
        """The same as a run that can be saved, loaded and predicted from by ``dpilot predict``."""
        record, tuned = self.flight.record, self.flight.tuned
        if not Widening(self.encoder).expands:
            raise InvalidInput(_TOO_WIDE)
        run = RunRecord(record.plan, tuned.spent.epsilon, tuned.spent.delta, (), record.stamps, record.decisions)
        return TableRun(Run(as_module(self.flight.model), run, self.ledger), self.encoder, record)


@dataclass(frozen=True, slots=True)
class _Paid:
    """A table whose price is on disk."""

    declared: Declared
    table: Source
    plan: PilotPlan
    committed: Committed
    noise: MakeNoise


def fly_table(
    source: Any,
    schema: Schema,
    *,
    epsilon: float,
    delta: float | None = None,
    allow_large_delta: bool = False,
    target: str | None = None,
    protected: str | None = None,
    terms: Terms | None = None,
    size: str | int = "public",
    ledger: Ledger | str | Path | None = None,
    run_folder: str | Path | None = None,
    device: str | None = None,
    tell: Tell = silent,
    test_seed: int | None = None,
    class_names: tuple[str, ...] | None = None,
    unprotected: tuple[str, ...] = (),
) -> TableFlight:
    """A classifier of a table, tuned, trained and scored for one total (epsilon, delta).

    ``class_names`` are what figures call the classes, where the schema only counts them.
    Which model a table gets costs nothing: it is a linear head on unit rows of the widened features, whatever the data.

    Guarantee:
        Bounds and size that are bought, trials, scores, final run and figures are one commitment, on disk before a
        value is read. No value of a record raises; a record outside its declared domain is null.
    """
    terms = terms or Terms()
    total = {"epsilon": epsilon, "delta": delta, "allow_large_delta": allow_large_delta}
    given = {**total, "target": target, "protected": protected}
    declared, table = declared_of(source, schema, size, epochs=None, model="logistic", **given)
    if declared.task.numeric:
        raise InvalidInput(f"the target {declared.task.target.name!r} is numeric: expected classes. See AutoRegressor.")
    if run_folder is not None and not _expands(declared.schema):
        raise InvalidInput(_TOO_WIDE)  # now, as table_run would once all is paid
    plan = _plan(declared, terms)
    declared = replace(declared, held_out=plan.held_out)
    split = drawn_split(plan.held_out, test_seed)
    book = open_ledger(ledger, declared.budget, table.name, run_folder)
    paid = _Paid(declared, table, plan, charge(plan, book, split.id), noise_for(test_seed))
    size_used = _size(paid)
    encoder = _encoder(paid, size_used)
    plan = plan if declared.size is not None else plan.resized(size_used, declared.task.outputs)
    places = split.indices(table.length())
    task = _task(paid, encoder, places, split.id, size_used, device)
    layout = _named(declared.task.layout, class_names)
    flown = fly(plan, Heads(task), paid.committed, layout, tell)
    told = _told(declared, layout, encoder, size_used, table.name, unprotected)
    flight = recorded(plan, flown, told, book=book, committed=paid.committed, own=ledger is None, stamp=task.stamp)
    return TableFlight(flight, encoder, book)


def _plan(declared: Declared, terms: Terms) -> PilotPlan:
    """Purchases where something is not declared, then the heads with what they leave."""
    mu, stages, share = gdp_mu(declared.budget), {}, 0.0
    if declared.size is None:
        stages[SIZE], share = count_event(_noise_of(mu, _SIZE_SHARE)), _SIZE_SHARE
    if declared.schema.to_buy:
        stages[BOUNDS] = bounds.buy_event(declared.schema, _noise_of(mu, bounds.SHARE))
        share += bounds.SHARE
    groups = 0 if declared.schema.protected is None else len(declared.task.layout.groups)
    cells = cells_of(terms.objective, declared.task.outputs, groups)
    return plan_heads(
        declared.budget,
        size=declared.size,
        classes=declared.task.outputs,
        cells=cells,
        terms=terms,
        bought=Bought(stages, share),
    )


def _noise_of(mu: float, share: float) -> float:
    return 1 / (mu * math.sqrt(share))


def _size(paid: _Paid) -> float:
    """The number to divide by: declared, public, or bought."""
    if paid.declared.size is not None:
        return float(paid.declared.size)
    sigma = _noise_of(gdp_mu(paid.declared.budget), _SIZE_SHARE)
    with paid.committed.stage(SIZE) as receipt:
        return max(count(paid.table.blanks(), noise_multiplier=sigma, receipt=receipt, noise=paid.noise()), 1.0)


def _encoder(paid: _Paid, size: float) -> Encoder:
    """The encoder, once the bounds that nobody declared are bought."""
    schema = paid.declared.schema
    if not schema.to_buy:
        return Encoder(schema)
    sigma = _noise_of(gdp_mu(paid.declared.budget), bounds.SHARE)
    with paid.committed.stage(BOUNDS) as receipt:
        found = bounds.buy(
            schema, paid.table.frames, size=size, noise_multiplier=sigma, receipt=receipt, noise=paid.noise()
        )
    return Encoder(schema.with_bounds(found))


def _task(paid: _Paid, encoder: Encoder, places: Any, split: str, size: float, device: str | None) -> ProbeTask:
    """Both parts as unit rows."""
    whole, widening = list(_pieces(paid.table, encoder)), Widening(encoder)
    rows = np.concatenate([widening.apply(piece.features) for piece in whole])
    target = np.concatenate([_column(piece.target) for piece in whole])
    features = Features.of(rows, target, paid.declared.task.outputs).unit()
    shares, layout = paid.declared.shares, paid.declared.task.layout
    held_out, grouped = places[HELD_OUT], paid.declared.schema.protected is not None
    groups = np.concatenate([_column(piece.group) for piece in whole])[held_out] if grouped else None
    return ProbeTask(
        features.take(places[TRAIN]),
        features.take(held_out),
        size * shares[TRAIN],
        size * shares[HELD_OUT],
        split,
        None if groups is None else torch.from_numpy(groups),
        len(layout.groups) if grouped else 0,
        device=device,
        noise=paid.noise,
    )


def _pieces(table: Source, encoder: Encoder) -> Iterator[Encoded]:
    return (encoder.encode(frame) for frame in table.frames())


def _column(values: NDArray[np.float64] | None) -> NDArray[np.float64]:
    return np.zeros(0) if values is None else values


def _named(layout: Layout, names: tuple[str, ...] | None) -> Layout:
    return layout if names is None else replace(layout, classes=names)


def _told(
    declared: Declared, layout: Layout, encoder: Encoder, size: float, name: str, unprotected: tuple[str, ...]
) -> Told:
    group, target = declared.schema.protected, declared.task.target
    expands = Widening(encoder).expands
    shapes = "each number in ten shapes" if expands else "numbers as they are"
    return Told(
        HEAD_CLIPPING,
        f"logistic regression on rows of unit length, {shapes}: chosen without looking, so it costs nothing",
        {
            "name": name,
            "size": round(size),
            "held_out": declared.held_out,
            "target": target.name,
            "classes": list(layout.classes),
            "protected": None if group is None else group.name,
            "features": [column.name for column in declared.schema.features],
            "bought_bounds": list(declared.schema.to_buy),
        },
        {"clipping": "constant", "threshold": THRESHOLD, "optimizer": "momentum", "model": "linear head"},
        (*unprotected, *declared.unprotected),
        notes=declared.notes,
    )
