"""The steps of a run as a frame, from its record or from the folder of a run that is finished, stopped or under way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.records import RunRecord, StepRecord
from dpilot.train.checkpoint.store import StoredRun

if TYPE_CHECKING:
    import pandas as pd

RECORD: Final = "record.json"
_ONE: Final = ("step", "threshold", "bound", "measuring", "length")
_MANY: Final = ("released", "thresholds", "bounds", "memory")


def read_steps(folder: str | Path) -> pd.DataFrame:
    """What the steps of the run in ``folder`` released, as ``Run.steps`` has it; of a stopped run, up to where it was
    last stored. Only data is read, and no model is needed.
    """
    where = Path(folder) / RECORD
    finished = where.exists()
    return steps_frame(
        RunRecord.from_json(where.read_text()).steps if finished else StoredRun.read(Path(folder)).records()
    )


def steps_frame(steps: Sequence[StepRecord]) -> pd.DataFrame:
    """One row a step: ``step``, ``threshold``, ``bound``, ``measuring``, ``length``, and each number of the rest.

    ``released_0``, ... are the noisy sums of the extras; of a layer-wise rule ``released_1_0`` is the first of layer 1,
    beside ``thresholds_1`` and ``bounds_1``. What a step has not is not a number.

    >>> list(steps_frame([StepRecord(0, 1.0, 1.0, False, released=(0.5, 2.0))]).columns)
    ['step', 'threshold', 'bound', 'measuring', 'length', 'released_0', 'released_1']
    """
    import pandas as pd

    table = pd.DataFrame({name: [getattr(each, name) for each in steps] for name in _ONE})
    table["length"] = table["length"].astype(np.float64)
    layers = max((len(each.thresholds) for each in steps), default=0)
    parts = [table]
    for name in _MANY:
        rows = _pad([getattr(each, name) for each in steps])
        parts.append(
            pd.DataFrame(rows, columns=_column_names(name, rows.shape[1], layers if name == "released" else 0))
        )
    return pd.concat(parts, axis=1)


def step_numbers(step: StepRecord) -> dict[str, float]:
    """The numbers of one step, by the names of their columns in ``steps_frame``; what it has not is left out.

    >>> step_numbers(StepRecord(3, 1.0, 1.0, False, released=(0.5, 2.0)))
    {'threshold': 1.0, 'bound': 1.0, 'measuring': 0.0, 'released_0': 0.5, 'released_1': 2.0}
    """
    found = {name: getattr(step, name) for name in _ONE[1:]}
    made = {name: float(value) for name, value in found.items() if value is not None}
    for name in _MANY:
        row = getattr(step, name)
        layers = len(step.thresholds) if name == "released" else 0
        made.update(zip(_column_names(name, len(row), layers), row, strict=True))
    return made


def _pad(rows: Sequence[Sequence[float]]) -> Floats:
    made = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for place, row in enumerate(rows):
        made[place, : len(row)] = row
    return made


def _column_names(name: str, count: int, layers: int) -> list[str]:
    if not layers:
        return [f"{name}_{place}" for place in range(count)]
    return [f"{name}_{layer}_{place}" for layer in range(layers) for place in range(count // layers)]
