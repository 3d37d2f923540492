"""The steps of a run as a frame, from its record or from the folder of a run that is finished, stopped or under way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpilot._arrays import Floats
from dpilot.records import RUN, RunRecord, StepRecord
from dpilot.train.checkpoint.store import StoredRun

if TYPE_CHECKING:
    import pandas as pd


def read_steps(folder: str | Path) -> pd.DataFrame:
    """What the steps of the run in ``folder`` released, as ``Run.steps`` has it; of a stopped run, up to where it was
    last stored. Only data is read, and no model is needed.
    """
    where = Path(folder) / RUN
    finished = where.exists()
    return steps_frame(
        RunRecord.from_json(where.read_text()).steps if finished else StoredRun.read(Path(folder)).records()
    )


def steps_frame(steps: Sequence[StepRecord]) -> pd.DataFrame:
    """One row a step: ``step``, ``threshold``, ``bound``, ``measuring``, and a column for each number of the rest.

    ``released_0``, ... are the noisy sums of the extras; of a layer-wise rule ``released_1_0`` is the first of layer 1,
    beside ``thresholds_1`` and ``bounds_1``. What a step has not is not a number.

    >>> list(steps_frame([StepRecord(0, 1.0, 1.0, False, released=(0.5, 2.0))]).columns)
    ['step', 'threshold', 'bound', 'measuring', 'released_0', 'released_1']
    """
    import pandas as pd

    plain = ("step", "threshold", "bound", "measuring")
    table = pd.DataFrame({name: [getattr(each, name) for each in steps] for name in plain})
    layers = max((len(each.thresholds) for each in steps), default=0)
    parts = [table]
    for name in ("released", "thresholds", "bounds", "memory"):
        rows = _pad([getattr(each, name) for each in steps])
        parts.append(
            pd.DataFrame(rows, columns=_column_names(name, rows.shape[1], layers if name == "released" else 0))
        )
    return pd.concat(parts, axis=1)


def _pad(rows: Sequence[Sequence[float]]) -> Floats:
    made = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for place, row in enumerate(rows):
        made[place, : len(row)] = row
    return made


def _column_names(name: str, count: int, layers: int) -> list[str]:
    if not layers:
        return [f"{name}_{place}" for place in range(count)]
    return [f"{name}_{layer}_{place}" for layer in range(layers) for place in range(count // layers)]
