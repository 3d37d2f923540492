"""A small table that can be learnt, with one record told from another by its number."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from dpilot.data.schema import Schema

SIZE = 400

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "number": {"type": "numeric", "bounds": [0, 10_000], "missing": "null"},
            "signal": {"type": "numeric", "bounds": [-3, 3]},
            "kind": {"type": "categorical", "categories": ["a", "b", "c"]},
            "site": {"type": "categorical", "categories": ["north", "south"], "role": "protected"},
            "outcome": {"type": "categorical", "categories": ["no", "yes"], "role": "target"},
        }
    }
)


@lru_cache
def _frame(size: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    signal = rng.uniform(-3, 3, size)
    kinds = rng.integers(3, size=size)
    outcome = rng.logistic(size=size) < 2 * signal + kinds - 1
    columns = {
        "number": np.arange(size).astype(str),
        "signal": signal.round(4).astype(str),
        "kind": np.array(["a", "b", "c"])[kinds],
        "site": np.array(["north", "south"])[rng.integers(2, size=size)],
        "outcome": np.where(outcome, "yes", "no"),
    }
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


def frame(size: int = SIZE) -> pd.DataFrame:
    return _frame(size).copy()


def numeric_schema() -> Schema:
    columns = SCHEMA.to_dict()["columns"]
    columns["outcome"] = {"type": "numeric", "bounds": [-10, 10], "role": "target"}
    return Schema.from_dict({"columns": columns})


def numeric_frame(size: int = SIZE) -> pd.DataFrame:
    made = frame(size)
    made["outcome"] = (2 * made["signal"].astype(float) + np.random.default_rng(1).normal(0, 0.5, size)).astype(str)
    return made


def left_on(model) -> tuple:
    """All that a fit leaves on an estimator, but for the time of day in its ledger entries and their hash."""
    apart = ("privacy_", "record_", "fitted_")
    kept = {name: value for name, value in vars(model).items() if name.endswith("_") and name not in apart}
    fitted = model.fitted_
    record = fitted.record
    privacy = {key: value for key, value in record.privacy.items() if key != "head"}
    told = record.data, record.plan, record.decisions, record.metrics, record.curves, record.health, record.unprotected
    entries = [(entry.purpose, entry.event, entry.part, entry.state) for entry in model.privacy_.entries]
    return kept, model.privacy_.spent, entries, privacy, told, fitted.schema, fitted.reader, fitted.predictor.state()


def events(run) -> list[dict]:
    """What the ledger says was spent, without the time of day and the name of the split."""
    return [{key: entry[key] for key in ("purpose", "part", "event", "state")} for entry in run.record.ledger]
