"""python -m benchmarks persons [--quick] [--seeds N]: accuracy where persons have several rows, protected three ways.

    units    unit="person": a person with all their rows, at most ``CAP`` of them, is one record
    divided  by hand: at most CAP rows a person, as records, at epsilon / CAP (group privacy)
    one row  by hand: one row of each person, as records, at epsilon

Tables: Adult, Dutch census and law school, their rows sorted by all columns so that those of a person are alike, cut
into persons of ``even`` (four rows each) or ``long`` (1 to 50 rows, long-tailed) numbers of rows; 20 Newsgroups by
sender (the From line; hashed words of the text below the headers), surnames by their first three letters. Accuracy
of test persons, exact, by row. Lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.datasets.part import folder
from benchmarks.fit.__main__ import load, schema_of

CAP = 8
WAYS = ("units", "divided", "one row")


def persons_of(frame: pd.DataFrame, kind: str, rng: np.random.Generator) -> np.ndarray:
    """The person of each row: rows that are alike lie together, so a person's are."""
    order = frame.sample(frac=1, random_state=int(rng.integers(2**31))).sort_values(list(frame.columns)).index
    sizes = np.full(len(frame), 4) if kind == "even" else np.minimum(rng.zipf(1.7, len(frame)), 50)
    whose = np.repeat(np.arange(len(frame)), sizes)[: len(frame)]
    found = np.empty(len(frame), dtype=np.int64)
    found[order.to_numpy()] = whose
    return found


def thin(ids: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """At most so many rows of each person."""
    order = rng.permutation(len(ids))
    nth = pd.Series(ids[order]).groupby(ids[order]).cumcount().to_numpy()
    return order[nth < most]


def fit_rows(way: str, epsilon: float, ids: np.ndarray, rng: np.random.Generator, fit: Any) -> Any:
    """One fit: ``fit(rows, epsilon, ids or None)``."""
    if way == "units":
        return fit(np.arange(len(ids)), epsilon, ids)
    rows = thin(ids, CAP if way == "divided" else 1, rng)
    return fit(rows, epsilon / CAP if way == "divided" else epsilon, None)


def table(name: str, kind: str, way: str, epsilon: float, seed: int) -> dict[str, Any]:
    from dpilot.fit.table import fit_table

    rng = np.random.default_rng(seed)
    frame, target = load(name)
    frame = frame.reset_index(drop=True)
    ids = persons_of(frame, kind, rng)
    tested = np.isin(ids, rng.choice(np.unique(ids), len(np.unique(ids)) // 5, replace=False))
    train, test, schema = frame[~tested].reset_index(drop=True), frame[tested], schema_of(frame, target)
    own = ids[~tested]
    start = time.perf_counter()

    def fit(rows: np.ndarray, part: float, units: np.ndarray | None) -> Any:
        given = train.iloc[rows].reset_index(drop=True)
        if units is None:
            return fit_table(given, schema, epsilon=part, delta=1e-6)
        return fit_table(given.assign(person=units), schema, epsilon=part, delta=1e-6, unit="person", rows_per_unit=CAP)

    model = fit_rows(way, epsilon, own, rng, fit)
    right = model.predict(test) == test[target].to_numpy()
    return {
        "data": name, "rows": kind, "way": way, "epsilon": epsilon, "seed": seed, "accuracy": float(right.mean()),
        "persons": len(np.unique(own)), "seconds": time.perf_counter() - start,
    }  # fmt: skip


def newsgroups() -> tuple[Any, Any, Any, dict[str, Any]]:
    """Texts below the headers, their groups, their senders, and how words are hashed."""
    frame = pd.read_parquet(folder() / "20newsgroups" / "20news_bydate.parquet")
    sender = frame["text"].str.extract(r"^From: (.*)$", flags=re.MULTILINE)[0].fillna("")
    body = frame["text"].str.replace(r"\A.*?\n\n", "", regex=True, flags=re.DOTALL)
    return body, frame["label"], sender, {"stop_words": "english"}


def names() -> tuple[Any, Any, Any, dict[str, Any]]:
    """Surnames, their languages, families of those that begin with the same three letters, and n-grams of letters."""
    frame = pd.read_parquet(folder() / "names" / "names.parquet")
    return (
        frame["name"],
        frame["language"],
        frame["name"].str[:3].str.lower(),
        {"analyzer": "char_wb", "ngram_range": (1, 3)},
    )


TEXTS = {"20newsgroups": newsgroups, "names": names}


def text(name: str, way: str, epsilon: float, seed: int) -> dict[str, Any]:
    import torch
    from sklearn.feature_extraction.text import HashingVectorizer

    from dpilot import Budget
    from dpilot.privacy.gaussian import gdp_mu
    from dpilot.privacy.unit import PrivacyUnit
    from dpilot.transfer.features import Features
    from dpilot.transfer.probe import predict
    from dpilot.transfer.probing import fit_probe
    from dpilot.tune.defaults import head_defaults

    rng = np.random.default_rng(seed)
    body, label, sender, how = TEXTS[name]()
    hashed = HashingVectorizer(n_features=2048, alternate_sign=True, norm="l2", **how).transform(body)
    labels, ids = (column.astype("category").cat.codes.to_numpy() for column in (label, sender))
    classes = int(labels.max()) + 1
    tested = np.isin(ids, rng.choice(np.unique(ids), len(np.unique(ids)) // 5, replace=False))
    features = Features.of(torch.from_numpy(hashed.toarray()), labels, classes=classes)
    train, test, own = features.take(np.flatnonzero(~tested)), features.take(np.flatnonzero(tested)), ids[~tested]
    start = time.perf_counter()

    def fit(rows: np.ndarray, part: float, units: np.ndarray | None) -> Any:
        budget, given = Budget(part, 1e-6), train.take(rows)
        size = len(rows) if units is None else len(np.unique(units))
        if units is not None:
            given = given.by_unit(units, PrivacyUnit("sender", CAP))
        found = head_defaults(gdp_mu(budget), size, classes)
        steps = found.box.steps[0]
        return fit_probe(given, budget, lr=found.walk / steps, steps=steps, size=size, threshold=0.5)

    model = fit_rows(way, epsilon, own, rng, fit)
    right = (predict(test, model.weights) == test.labels).double().mean()
    return {
        "data": name, "rows": "own", "way": way, "epsilon": epsilon, "seed": seed, "accuracy": float(right),
        "persons": len(np.unique(own)), "seconds": time.perf_counter() - start,
    }  # fmt: skip


def summary(lines: list[dict[str, Any]]) -> str:
    """A table of means with standard errors."""
    frame = pd.DataFrame(lines)
    rows = ["| data | rows | persons | epsilon | " + " | ".join(WAYS) + " |", "|---|---|---|---|---|---|---|"]
    for (data, kind, epsilon), group in frame.groupby(["data", "rows", "epsilon"]):
        cells = []
        for way in WAYS:
            found = group[group["way"] == way]["accuracy"]
            error = found.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else float("nan")
            cells.append(f"{found.mean():.4f} ± {error:.4f}")
        persons = round(group["persons"].mean())
        rows.append(f"| {data} | {kind} | {persons:,} | {epsilon:g} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks persons")
    parser.add_argument("--quick", action="store_true", help="one seed of law school")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    tables = ["law_school"] if arguments.quick else ["law_school", "adult", "dutch_census"]
    seeds = range(1 if arguments.quick else arguments.seeds)
    lines = []
    jobs = [
        (table, (name, kind, way, epsilon, seed))
        for seed in seeds for name in tables for kind in ("even", "long") for epsilon in (1.0, 3.0) for way in WAYS
    ]  # fmt: skip
    if not arguments.quick:
        jobs += [
            (text, (name, way, epsilon, seed))
            for seed in seeds
            for name in TEXTS
            for epsilon in (1.0, 3.0)
            for way in WAYS
        ]
    for work, given in jobs:
        lines.append(work(*given))
        print(json.dumps(lines[-1]), flush=True)
    print(summary(lines))


if __name__ == "__main__":
    main()
