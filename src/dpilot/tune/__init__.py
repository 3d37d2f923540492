"""Tuning inside one budget: many runs, all of them paid for.

Promises: all stages are committed before the first record is read, and a tuner sees noisy scores alone. May import:
train, transfer, linear and what is below.

>>> from dpilot import tune
>>> tune.SearchBox((0.1, 10.0), (10, 100)).candidate(100.0).steps
32
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_HOMES = {
    "Always": "space",
    "Box": "candidate",
    "Candidate": "candidate",
    "Choice": "space",
    "AutopilotResult": "pilot",
    "LogUniform": "space",
    "ModuleTask": "module_task",
    "PrivateSearchCV": "search",
    "ProbeTask": "probe_task",
    "RayExecutor": "ray_crew",
    "ScalingLaw": "law",
    "SearchBox": "candidate",
    "Space": "space",
    "Task": "task",
    "Tuned": "record",
    "Uniform": "space",
    "autopilot": "pilot",
    "budget_split_grid": "grid",
    "compare": "comparison",
    "grid_oracle": "grid",
    "head_options": "defaults",
    "linear_scaling": "scaling",
    "plan_scaling": "scaling_plan",
    "private_selection": "select",
    "random_search": "grid",
    "train_at": "scaling",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "AutoClassifier":  # lives in fit, above: the root knows where
        return sys.modules["dpilot"].AutoClassifier
    if name in _HOMES:
        return getattr(import_module(f"dpilot.tune.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dpilot.tune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
