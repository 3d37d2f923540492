"""A fit on made-up records, from the schema alone: the plan it will take, how long, how much memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from dpilot.data.column_types import draw_cells
from dpilot.data.schema import Schema
from dpilot.data.sparse import SparseRows
from dpilot.errors import BudgetExceeded
from dpilot.fit.keys import FitKeys
from dpilot.fit.learners.base import PaidRun
from dpilot.fit.on_disk import is_too_large
from dpilot.fit.pipeline import FitPlan
from dpilot.fit.population import RecordsByUnit
from dpilot.fit.source import RecordSource, TableSource
from dpilot.privacy.budget import Cost
from dpilot.privacy.events import to_dict
from dpilot.privacy.ledger import Stage
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import PrivacyUnit

__all__ = ["Rehearsal", "rehearse", "synthetic_records"]

_ROWS: Final = 1 << 14
_READ_SLOWLY: Final = 1 << 8  # rows, where an encoder takes many milliseconds a text
_PICTURES: Final = 1 << 9  # fewer, as their features take longest
_LOADED: Final = 450.0  # megabytes of code, before a record is read
_COPIES: Final = 4.5  # of the encoded features, at most: what logistic regression of 200,000 records took

_ON_DISK: Final = 450.0  # megabytes beside a table on disk, of any length (benchmarks/large)
_SPARSE_COPIES: Final = 1.5  # of entries, which a split shares

Clocks = Callable[[], tuple[float, float]]
"""Seconds of the clock on the wall, and of this process on its processors."""


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a fit would be: its stages and numbers, and about how long and how large. Nothing was spent.

    ``seconds`` are those on a machine that does nothing else, ``seconds_if_as_busy`` those by the clock, with as much
    going on beside it as during the rehearsal. Loading code is in them as far as the caller tells how long it took.
    """

    size: int
    features: int
    held_out: float
    stages: tuple[dict[str, Any], ...]
    seconds: float
    seconds_if_as_busy: float
    megabytes: float
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def rehearse(
    plan: FitPlan, *, loading: float = 0.0, table: RecordSource | None = None, clocks: Clocks = _clocks
) -> Rehearsal:
    """Read, train and score a few made-up records by the plan of the fit, and reckon from their time.

    ``loading`` are the seconds that it took to load code, which a fit takes too; ``table`` is that of the fit, of which
    a long one goes to disk, by the declared number of its rows; ``clocks`` tell how long it took.

    Guarantee:
        No value of the table is read, nor its length, and no ledger of it is touched: what is trained was made from the
        schema.
    """
    declared, size = plan.declared, float(plan.declared.size or 10_000)
    each = declared.unit.rows or 1  # as if every unit had as many rows as count
    known = declared.schema.with_bounds(dict.fromkeys(declared.schema.inputs_only().to_buy, (-1.0, 1.0)))
    reader = plan.learned.reader(
        known.inputs_only() if plan.purchases.bounds_noise is not None else plan.purchases.schema
    )
    has_pictures = any(column.type == "image" for column in known.features)
    has_encoder = any(column.encoder for column in known.features)
    rows = _READ_SLOWLY if has_encoder else _PICTURES if has_pictures else _ROWS
    short, factor = plan.learned.shorten(size, rows // each or 1)
    source = TableSource.of(synthetic_records(known, rows, each), declared.schema)
    _, reading = _seconds(lambda: source.read(reader), clocks)
    keys = FitKeys.draw()
    split = keys.split(plan.shares)
    parts = RecordsByUnit.of(source, declared.unit, keys.unit_rows).parts(reader, split)

    def train_once() -> None:
        committed: Any = _Unpaid(short.stages(split.id))
        units = float(rows // each or 1)
        short.train(parts, PaidRun(committed, keys, split.id, units, Cost(0.0, 0.0), unit=declared.unit))

    once, training = _seconds(train_once, clocks)
    # the health check decodes pictures, which made-up ones need not, and makes no features of them
    passes = 2 + 2 * (plan.purchases.bounds_noise is not None) + (plan.purchases.size_noise is not None)
    passes -= has_pictures
    clock, processor = (loading + once + passes * reading / rows * size * each + training * factor).tolist()
    features: Any = parts.train.features
    copies = _SPARSE_COPIES if isinstance(features, SparseRows) else _COPIES
    each_row = copies * features.nbytes / max(len(features), 1)
    on_disk = table is not None and is_too_large(table, size * each)
    alone = [] if plan.classes is None else plan.classes.commitment("")[0]
    stages = [*alone, *plan.health_stages(""), *plan.stages(split.id)]
    return Rehearsal(
        size=round(size),
        features=features.shape[1],
        held_out=plan.learned.held_out,
        stages=tuple(_describe(stage) for stage in stages),
        seconds=min(clock, processor),  # the processor's counts every thread, the clock's every other process
        seconds_if_as_busy=clock,
        megabytes=_LOADED + (_ON_DISK if on_disk else each_row * size * each / 1e6),
        reasons=(
            *([] if plan.classes is None else [plan.classes.reason()]),
            *plan.purchases.reasons,
            *_unit_assumption(declared.unit),
        ),
    )


def synthetic_records(schema: Schema, rows: int, each: int = 1, seed: int = 0) -> dict[str, Any]:
    """Records drawn evenly from what the schema declares, target and groups too; ``each`` of one unit, if there are."""
    rng = np.random.default_rng(seed)
    ids = {} if schema.unit is None else {schema.unit.name: np.arange(rows) // each}
    drawn: dict[str, Any] = {}
    for column in schema.used:
        drawn |= draw_cells(column, rows, rng)
    return {**drawn, **ids}


def _unit_assumption(unit: PrivacyUnit) -> tuple[str, ...]:
    said = (
        f"What is protected, a record above, is {unit.neighbours()}.",
        f"Time and memory are those of {unit.rows} rows for each {unit.name}, which is the most that count.",
    )
    return () if unit.is_record else said


class _Unpaid:
    """Stands in for a commitment: receipts for made-up records, which have no budget to keep."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._waiting = list(stages)

    @contextmanager
    def stage(self, purpose: str) -> Iterator[Receipt]:
        for place, stage in enumerate(self._waiting):
            if stage.purpose == purpose:
                yield Receipt(self._waiting.pop(place).event)
                return
        raise BudgetExceeded(f"no stage {purpose!r} is waiting: it was not planned.")


def _describe(stage: Stage) -> dict[str, Any]:
    return {"purpose": stage.purpose.split(" of fit")[0], "part": stage.part, "event": to_dict(stage.event)}


def _seconds(work: Callable[[], Any], clocks: Clocks) -> tuple[Any, Any]:
    """Seconds by the clock and on the processor: of what only a first run does (it loads code), and of a run."""
    times = []
    for _ in range(2):
        start = np.array(clocks())
        work()
        times.append(np.array(clocks()) - start)
    first, again = times
    return np.maximum(first - again, 0.0), again
