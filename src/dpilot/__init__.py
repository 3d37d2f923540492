"""dpilot: differentially private training that tunes itself inside one privacy budget.

Names load on first use, so that ``import dpilot`` is quick: it imports nothing that is not Python's own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from dpilot import clipping, diagnose, engine, errors, export, linear, privacy, records, statistics, transfer, tune
    from dpilot.data.schema import Schema
    from dpilot.fit.classifier import AutoClassifier
    from dpilot.fit.load import load
    from dpilot.fit.regressor import AutoRegressor
    from dpilot.privacy.budget import Budget, Cost
    from dpilot.privacy.ledger import Ledger
    from dpilot.train.own_loop import PrivateStep, poisson_loader
    from dpilot.train.plan import Plan
    from dpilot.train.run import read_steps
    from dpilot.train.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "AutoClassifier",
    "AutoRegressor",
    "Budget",
    "Cost",
    "Ledger",
    "Plan",
    "PrivateStep",
    "Schema",
    "Trainer",
    "__version__",
    "clipping",
    "diagnose",
    "engine",
    "errors",
    "export",
    "linear",
    "load",
    "poisson_loader",
    "privacy",
    "read_steps",
    "statistics",
    "transfer",
    "tune",
]

_HOMES = {
    "AutoClassifier": "dpilot.fit.classifier",
    "AutoRegressor": "dpilot.fit.regressor",
    "Budget": "dpilot.privacy.budget",
    "Cost": "dpilot.privacy.budget",
    "Ledger": "dpilot.privacy.ledger",
    "Plan": "dpilot.train.plan",
    "PrivateStep": "dpilot.train.own_loop",
    "Schema": "dpilot.data.schema",
    "Trainer": "dpilot.train.trainer",
    "load": "dpilot.fit.load",
    "poisson_loader": "dpilot.train.own_loop",
    "read_steps": "dpilot.train.run",
}


def _write_report(record: records.FitRecord, path: str | Path, **options: Any) -> Path:
    """What ``FitRecord.write_report`` calls: reports lie above all that makes records."""
    from dpilot.report.page import write

    return write(record, path, **options)


def _state_record(file: Path, record: records.FitRecord) -> None:
    """What ``FitRecord.save`` calls: statements lie above records."""
    from dpilot.train.checkpoint.statement import state_record

    state_record(file, record)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"dpilot.{name}")
    raise AttributeError(f"module 'dpilot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
