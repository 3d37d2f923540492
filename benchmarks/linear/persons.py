"""Persons of 3 to 8 rows, made from real tables: R^2 of ``unit=`` against what a user would do by hand.

A unit of similar rows comes of halving a table again and again along random directions; a unit of any rows by lot. A
fifth of the units is held out whole. Reads the folder regression of DPILOT_DATA.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks.linear.common import Array, r2, table
from benchmarks.linear.real import folder, load
from dpilot.errors import PrivacyWarning
from dpilot.linear import LinearRegression

TABLES = ("abalone", "california_housing", "diamonds", "elevators", "wind", "uci_bike", "kc_house_sales")
CAP, DELTA = 8, 1e-6
Ids = np.ndarray[Any, np.dtype[np.int64]]


def similar(X: Array, rng: np.random.Generator) -> Ids:
    scaled = np.nan_to_num((X - np.nanmean(X, axis=0)) / (np.nanstd(X, axis=0) + 1e-12))

    def order(places: Ids) -> list[Ids]:
        if len(places) <= CAP:
            return [places]
        along = places[np.argsort(scaled[places] @ rng.normal(size=X.shape[1]))]
        return [*order(along[: len(along) // 2]), *order(along[len(along) // 2 :])]

    return chop(np.concatenate(order(np.arange(len(X)))), rng)


def chop(order: Ids, rng: np.random.Generator) -> Ids:
    """Ids of units that are 3 to 8 neighbours in ``order``."""
    ids = np.empty(len(order), dtype=np.int64)
    ids[order] = np.repeat(np.arange(len(order)), rng.integers(3, CAP + 1, len(order)))[: len(order)]
    return ids


def scores(X: Array, y: Array, how: str, epsilon: float, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    ids = similar(X, rng) if how == "similar" else chop(rng.permutation(len(X)), rng)
    out = (rng.random(ids.max() + 1) < 0.2)[ids]
    train, target, own = X[~out], y[~out], ids[~out]
    mixed = rng.permutation(len(own))
    one = mixed[np.unique(own[mixed], return_index=True)[1]]
    made = {
        "unit": LinearRegression(epsilon, DELTA, unit="person", rows_per_unit=CAP).fit(train, target, units=own),
        "epsilon / 8": LinearRegression(epsilon / CAP, DELTA / CAP).fit(train, target),
        "one row": LinearRegression(epsilon, DELTA).fit(train[one], target[one]),
        "rows protected only": LinearRegression(epsilon, DELTA).fit(train, target),
    }
    return {name: r2(y[out], model.predict(X[out])) for name, model in made.items()}


def main(quick: bool) -> None:
    where = folder()
    if where is None:
        print("persons: skipped, DPILOT_DATA is not set")
        return
    for how in ("similar", "any"):
        for epsilon in (1.0,) if quick else (1.0, 3.0):
            rows = []
            for name in TABLES[:2] if quick else TABLES:
                X, y = load(where / f"{name}.parquet")
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", PrivacyWarning)
                    runs = [scores(X, y, how, epsilon, seed) for seed in range(2 if quick else 10)]
                found = {key: [run[key] for run in runs] for key in runs[0]}
                rows.append([name, *(f"{np.median(each):.3f} ({min(each):.3f})" for each in found.values())])
            print(f"\n### Units of {how} rows, epsilon {epsilon:g}: median (lowest) R^2\n")
            print(table(["table", *found], rows), flush=True)
