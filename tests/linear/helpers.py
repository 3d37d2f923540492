"""Data for regression tests: made here, small, with a known answer."""

from __future__ import annotations

import numpy as np

from dpilot.audit.replay import replay

EXTREMES = {
    "huge": (1e308, -1e308),
    "tiny": (1e-308, 1e-308),
    "zero": (0.0, 0.0),
    "far": (1e6, 1e6),
    "target only": (0.0, 1e30),
    "null": (np.nan, 1.0),
    "infinite": (np.inf, -np.inf),
}


def line(n=400, d=3, seed=0, noise=0.3):
    """Standardised features, a linear target, and the coefficients."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    weights = np.ones(d) / np.sqrt(d)
    return X, X @ weights + noise * rng.normal(size=n), weights


def table(n=400, d=3, seed=0):
    X, y, _ = line(n, d, seed)
    return np.column_stack([X, y])


def with_record(rows, features, target):
    """The table with one more record, last."""
    record = np.full((1, rows.shape[1]), features)
    record[0, -1] = target
    return np.concatenate([rows, record])


def released(model):
    """All that a fit leaves on the estimator, but for the time of day in its ledger entries."""
    kept = {name: value for name, value in vars(model).items() if name.endswith("_") and name != "privacy_"}
    return kept, model.privacy_.spent, [(e.purpose, e.event, e.state) for e in model.privacy_.entries]


def moved(make, rows, neighbour):
    """Replay a fit of ``make()`` on both tables."""
    return replay(lambda values: released(make().fit(values[:, :-1], values[:, -1])), rows, neighbour)
