"""A fit on made-up records, from the schema alone: does it run, how long will it take, how much memory."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from torch import nn

from dpilot._arrays import Floats
from dpilot.data.column import Column
from dpilot.data.encoder import Encoded, Encoder
from dpilot.data.schema import Schema
from dpilot.privacy.budget import Budget, Cost
from dpilot.tables.declaration import FitDeclaration, TableTask
from dpilot.tables.expansion import Expansion
from dpilot.tables.planning import TablePlan, plan_fit
from dpilot.tables.preparing import TableSource, read
from dpilot.tables.table_metrics import exact_metrics
from dpilot.tables.training import data_free_step, dataset_of, loss_of, ready
from dpilot.train.plan import Plan
from dpilot.train.trainer import Trainer

__all__ = ["Rehearsal", "rehearse", "synthetic_records"]

_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a fit would be: its numbers, and about how long and how large. Nothing was spent.

    ``seconds`` are those on a machine that does nothing else, ``seconds_if_as_busy`` those by the clock, with as much
    going on beside it as during the rehearsal.
    """

    size: int
    features: int
    parameters: int
    batch_size: float
    steps: int
    noise_multiplier: float
    lr: float
    seconds: float
    seconds_if_as_busy: float
    megabytes: float
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def rehearse(declared: FitDeclaration) -> Rehearsal:
    """Plan the fit, then read, train and score a few made-up records, and reckon from their time.

    Guarantee:
        No value of the table is read, and no ledger of it is touched: what is trained was made from the schema.
    """
    plan, size = plan_fit(declared), float(declared.size or 10_000)
    schema = declared.schema.with_bounds(dict.fromkeys(declared.schema.to_buy, (-1.0, 1.0)))
    expansion = Expansion(Encoder(schema))
    records, reading = _read(schema, expansion)
    made = ready(declared, plan, expansion, size)
    lr = data_free_step(made.numbers)
    first, stepping = _time_steps(made.model, _short(made.plan, plan, size), lr, records, numeric=declared.task.numeric)
    exact_metrics(made.model, records, TableTask(schema))
    clock, processor = (reading / _ROWS * size + first + stepping * plan.steps).tolist()
    return Rehearsal(
        size=round(size),
        features=expansion.width,
        parameters=made.numbers.parameters,
        batch_size=made.numbers.batch_size,
        steps=plan.steps,
        noise_multiplier=plan.training_noise,
        lr=lr,
        seconds=min(clock, processor),  # the processor's counts every thread, the clock's every other process
        seconds_if_as_busy=clock,
        megabytes=2 * size * expansion.width * 4 / 1e6,
        reasons=plan.reasons,
    )


def synthetic_records(schema: Schema, rows: int, seed: int = 0) -> dict[str, Any]:
    """Records drawn evenly from what the schema declares, target and groups too."""
    rng = np.random.default_rng(seed)
    return {column.name: _draw(column, rows, rng) for column in schema.used}


def _draw(column: Column, rows: int, rng: np.random.Generator) -> Any:
    if column.categories is not None:
        return np.asarray(column.categories, dtype=object)[rng.integers(len(column.categories), size=rows)]
    return rng.uniform(*column.interval, size=rows)


def _read(schema: Schema, expansion: Expansion) -> tuple[Encoded, Floats]:
    """Made-up records as a fit reads them, and the time of that: the first reading, which loads code, is not in it."""
    source = TableSource.of(synthetic_records(schema, _ROWS), schema)
    records = read(source, expansion.encoder, expansion.apply)
    moments = [_now()]
    for _ in range(3):
        read(source, expansion.encoder, expansion.apply)
        moments.append(_now())
    return records, _usual(moments)


def _time_steps(model: nn.Module, plan: Plan, lr: float, records: Encoded, *, numeric: bool) -> tuple[Floats, Floats]:
    """The time until the first step is done, and that of a later one."""
    moments = [_now()]
    trainer = Trainer(model, loss_of(numeric_target=numeric), plan, lr=lr, callback=lambda _: moments.append(_now()))
    trainer.fit(dataset_of(records, numeric_target=numeric))
    return moments[1] - moments[0], _usual(moments[1:])


def _now() -> Floats:
    """Seconds by the clock, and of this process on the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def _usual(moments: list[Floats]) -> Floats:
    """The median time between two moments, which a few interruptions do not move; none if there is but one.

    >>> _usual([np.array([t, t]) for t in (0.0, 1.0, 2.0, 9.0, 10.0)]).tolist()
    [1.0, 1.0]
    """
    return np.asarray(np.median(np.diff(moments, axis=0), axis=0)) if len(moments) > 1 else np.zeros(2)


def _short(whole: Plan, plan: TablePlan, size: float) -> Plan:
    """A few steps on as many records a batch as planned; made-up records have no budget to keep."""
    rate = min(1.0, plan.sample_rate * size / _ROWS)
    free, nothing = Budget(1_000.0, 1e-5), Cost(0.0, 0.0)
    return replace(whole, budget=free, cost=nothing, size=_ROWS, sample_rate=rate, steps=min(20, plan.steps))
