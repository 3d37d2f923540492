"""MLflow: what a run released, step by step or from its record.

::

    import mlflow
    from dpilot.integrations import mlflow as tracking

    with mlflow.start_run():
        run = Trainer(model, loss_fn, plan, callback=tracking.callback()).fit(dataset)
        tracking.log_record(run, series=False)                  # the steps are there already
        tracking.log_record(clf)                                # a fitted estimator: its figures
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from dpilot.errors import InvalidInput
from dpilot.integrations.fields import find_record, record_fields, rename
from dpilot.records import StepRecord
from dpilot.train.run import step_numbers

__all__ = ["callback", "log_record"]

_NAMES: Final = r"A-Za-z0-9_\-. /"  # of metrics and parameters, in every store
_MOST: Final = (1000, 100)  # metrics, and parameters, of one request
_LONGEST: Final = 500  # characters of a parameter; the whole is in the artifact
ARTIFACT: Final = "dpilot_record.json"


def callback(run_id: str | None = None) -> Callable[[StepRecord], None]:
    """For ``Trainer(callback=..)`` and loops of one's own: every number of a step's record as a metric.

    They go to the run ``run_id``, by default the active one when this is called. Each step is one request: of runs of
    many steps, ``log_record`` alone is quicker.

    Guarantee:
        A step's record holds released values only, and all of them are logged. All steps bear the time at which this
        was called: how long a step took would tell how many records were in its batch.
    """
    client, found, at = _client(), _run_id(run_id), _now()

    def log(record: StepRecord) -> None:
        _log_metrics(client, found, [(name, value, record.step) for name, value in step_numbers(record).items()], at)

    return log


def log_record(source: Any, run_id: str | None = None, *, series: bool = True) -> None:
    """Everything in a record: figures and (``series``) steps as metrics, the rest as parameters, the whole as a file.

    ``source`` is a record (of a run, or of a fit), or a run, an estimator or a tuned model that has one.

    Edge cases:
        a parameter of more than 500 characters    cut; the file has it
        names with other characters                "_" in their place, and a number where two would be one
    """
    fields, client, found = record_fields(source), _client(), _run_id(run_id)
    numbers = [(name, value, 0) for name, value in fields.figures.items()]
    if series:
        numbers += [(name, value, step) for step, each in fields.series for name, value in each.items()]
    _log_metrics(client, found, numbers, _now())
    short = rename(fields.parameters, _NAMES)
    from mlflow.entities import Param

    parameters = [Param(short(name), value[:_LONGEST]) for name, value in fields.parameters.items()]
    for some in _pieces(parameters, _MOST[1]):
        client.log_batch(found, params=some)
    record = find_record(source)
    if record is not None:
        client.log_text(found, record.to_json(), ARTIFACT)


def _now() -> int:
    return int(time.time() * 1000)


def _log_metrics(client: Any, run_id: str, numbers: Iterable[tuple[str, float, int]], at: int) -> None:
    from mlflow.entities import Metric

    given = list(numbers)
    short = rename((name for name, *_ in given), _NAMES)
    metrics = [Metric(short(name), value, at, step) for name, value, step in given]
    for some in _pieces(metrics, _MOST[0]):
        client.log_batch(run_id, metrics=some)


def _pieces(values: Sequence[Any], most: int) -> Iterator[list[Any]]:
    return (list(values[start : start + most]) for start in range(0, len(values), most))


def _client() -> Any:
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise InvalidInput("mlflow is not installed: expected it. Install dpilot[tracking].") from None
    return MlflowClient()


def _run_id(given: str | None) -> str:
    import mlflow

    active = mlflow.active_run()
    if given is None and active is None:
        raise InvalidInput("no MLflow run is active: expected run_id=, or a call inside `with mlflow.start_run():`.")
    return given if given is not None else str(active.info.run_id)
