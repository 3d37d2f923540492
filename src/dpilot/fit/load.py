"""``dpilot.load``: whatever a run folder holds, a fit of a table or a run of one's own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpilot.fit.model import FIT, FittedModel, load_fit
from dpilot.train import run as runs
from dpilot.train.run import Run

__all__ = ["load"]


def load(folder: str | Path, model: Any = None) -> FittedModel | Run:
    """What ``dpilot fit``, an estimator's ``save`` or ``Run.save`` wrote to ``folder``: data, nothing is executed.

    ``model`` is for runs of modules of your own classes: built as before, its weights are filled in.
    """
    if (Path(folder) / FIT).exists():
        return load_fit(folder)
    return runs.load(folder, model)
