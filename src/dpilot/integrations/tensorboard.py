"""TensorBoard: what a run released, step by step or from its record.

::

    from torch.utils.tensorboard import SummaryWriter
    from dpilot.integrations import tensorboard

    with SummaryWriter("logs/first") as writer:
        run = Trainer(model, loss_fn, plan, callback=tensorboard.callback(writer)).fit(dataset)
        tensorboard.log_record(run, writer, series=False)       # the steps are there already
        tensorboard.log_record(clf, writer)                     # a fitted estimator: its figures
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dpilot.integrations.fields import record_fields
from dpilot.records import StepRecord
from dpilot.train.run import step_numbers

__all__ = ["callback", "log_record"]


def callback(writer: Any) -> Callable[[StepRecord], None]:
    """For ``Trainer(callback=..)`` and loops of one's own: every number of a step's record as a scalar.

    ``writer`` is a SummaryWriter, which stays yours to close.

    Guarantee:
        A step's record holds released values only, and all of them are logged. All steps bear the time at which this
        was called: how long a step took would tell how many records were in its batch.
    """
    at = time.time()

    def log(record: StepRecord) -> None:
        _add_scalars(writer, record.step, step_numbers(record), at)

    return log


def log_record(source: Any, writer: Any, *, series: bool = True) -> None:
    """Everything in a record: figures as scalars, parameters as one table, and (``series``) its steps.

    ``source`` is a record (of a run, or of a fit), or a run, an estimator or a tuned model that has one.
    """
    fields, at = record_fields(source), time.time()
    _add_scalars(writer, 0, fields.figures, at)
    writer.add_text("record", _table(fields.parameters), 0, walltime=at)
    for step, numbers in fields.series if series else ():
        _add_scalars(writer, step, numbers, at)


def _add_scalars(writer: Any, step: int, numbers: Mapping[str, float], at: float) -> None:
    for name, value in numbers.items():
        writer.add_scalar(f"dpilot/{name}", value, step, walltime=at, new_style=True, double_precision=True)


def _table(parameters: Mapping[str, str]) -> str:
    rows = (f"| {name} | {' '.join(value.replace('|', '&#124;').split())} |" for name, value in parameters.items())
    return "\n".join(["| name | value |", "|---|---|", *rows])
