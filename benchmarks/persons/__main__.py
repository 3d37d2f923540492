"""python -m benchmarks persons [--quick] [--seeds N] [--only NAME]: accuracy where persons have several rows.

    units    unit="person": a person with all their rows, at most ``CAP`` of them, is one record
    divided  by hand: at most CAP rows a person, as records, at epsilon / CAP (group privacy)
    one row  by hand: one row of each person, as records, at epsilon

Tables: law school and Adult by linear heads ("auto", 12,000 rows), Adult and the Dutch census by small networks ("mlp",
24,000 rows), sorted by all columns so that the rows of a person are alike, cut into persons of ``even`` (four each) or
``long`` (1 to 50, long-tailed) numbers of rows. 20 Newsgroups by sender (the From line; hashed words of the
text below the headers) and surnames by their first three letters, by linear heads. Accuracy of test persons' rows,
exact. Lines of JSON; then means, and differences of the same seeds with their standard errors.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.datasets.part import folder
from benchmarks.fit.__main__ import load, schema_of

CAP = 8
WAYS = ("units", "divided", "one row")
TABLES = (("law_school", "long", "auto"), ("adult", "even", "auto"))
NETWORKS = (("dutch_census", "even", "mlp"), ("adult", "even", "mlp"))
ROWS = {"auto": 12_000, "mlp": 24_000}  # of a table, at most
EPOCHS = 3.0  # of networks


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


def table(name: str, kind: str, model: str, way: str, epsilon: float, seed: int) -> dict[str, Any]:
    from dpilot.fit.table import fit_table

    rng = np.random.default_rng(seed)
    frame, target = load(name)
    frame = frame.sample(min(len(frame), ROWS[model]), random_state=seed).reset_index(drop=True)
    ids = persons_of(frame, kind, rng)
    tested = np.isin(ids, rng.choice(np.unique(ids), len(np.unique(ids)) // 5, replace=False))
    train, test, schema = frame[~tested].reset_index(drop=True), frame[tested], schema_of(frame, target)
    own = ids[~tested]
    start = time.process_time()

    def fit(rows: np.ndarray, part: float, units: np.ndarray | None) -> Any:
        given, how = train.iloc[rows].reset_index(drop=True), {"epsilon": part, "delta": 1e-6, "model": model}
        how |= {"epochs": EPOCHS} if model == "mlp" else {}
        if units is None:
            return fit_table(given, schema, **how)
        return fit_table(given.assign(person=units), schema, **how, unit="person", rows_per_unit=CAP)

    right = fit_rows(way, epsilon, own, rng, fit).predict(test) == test[target].to_numpy()
    return {
        "data": name, "rows": kind, "model": model, "way": way, "epsilon": epsilon, "seed": seed,
        "accuracy": float(right.mean()), "persons": len(np.unique(own)),
        "rows a person": len(own) / len(np.unique(own)), "seconds": time.process_time() - start,
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


@cache
def hashed(name: str) -> tuple[Any, np.ndarray]:
    """Features of the texts, and the number of each one's person."""
    import torch
    from sklearn.feature_extraction.text import HashingVectorizer

    from dpilot.transfer.features import Features

    body, label, sender, how = TEXTS[name]()
    values = HashingVectorizer(n_features=1024, alternate_sign=True, norm="l2", **how).transform(body)
    labels, ids = (column.astype("category").cat.codes.to_numpy() for column in (label, sender))
    return Features.of(torch.from_numpy(values.toarray()), labels, classes=int(labels.max()) + 1), ids


def text(name: str, way: str, epsilon: float, seed: int) -> dict[str, Any]:
    from dpilot import Budget
    from dpilot.privacy.gaussian import gdp_mu
    from dpilot.privacy.unit import PrivacyUnit
    from dpilot.transfer.probe import predict
    from dpilot.transfer.probing import fit_probe
    from dpilot.tune.defaults import head_defaults
    from dpilot.tune.probe_task import head_threshold

    rng = np.random.default_rng(seed)
    features, ids = hashed(name)
    tested = np.isin(ids, rng.choice(np.unique(ids), len(np.unique(ids)) // 5, replace=False))
    train, test, own = features.take(np.flatnonzero(~tested)), features.take(np.flatnonzero(tested)), ids[~tested]
    start = time.process_time()

    def fit(rows: np.ndarray, part: float, units: np.ndarray | None) -> Any:
        budget, given = Budget(part, 1e-6), train.take(rows)
        size = len(rows) if units is None else len(np.unique(units))
        if units is not None:
            given = given.by_unit(units, PrivacyUnit("sender", CAP))
        threshold = head_threshold(given.protects)
        found = head_defaults(gdp_mu(budget), size, features.classes, threshold=threshold)
        steps = found.box.steps[0]
        return fit_probe(given, budget, lr=found.walk / steps, steps=steps, size=size, threshold=threshold)

    model = fit_rows(way, epsilon, own, rng, fit)
    right = (predict(test, model.weights) == test.labels).double().mean()
    return {
        "data": name, "rows": "own", "model": "head", "way": way, "epsilon": epsilon, "seed": seed,
        "accuracy": float(right), "persons": len(np.unique(own)), "rows a person": len(own) / len(np.unique(own)),
        "seconds": time.process_time() - start,
    }  # fmt: skip


def summary(lines: list[dict[str, Any]]) -> str:
    """Means of the ways, and how far units are above each other way: the mean of the seeds' differences ± its error."""
    others = WAYS[1:]
    heads = ["data", "rows", "model", "persons", "rows a person", "epsilon", "seeds", *WAYS]
    heads += [f"units - {way}" for way in others]
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for (data, kind, model, epsilon), group in pd.DataFrame(lines).groupby(["data", "rows", "model", "epsilon"]):
        found = group.pivot(index="seed", columns="way", values="accuracy").dropna()
        if len(found) == 0:
            continue
        about = [
            f"{group['persons'].mean():,.0f}",
            f"{group['rows a person'].mean():.1f}",
            f"{epsilon:g}",
            str(len(found)),
        ]
        gains = [100 * (found["units"] - found[way]) for way in others]
        cells = [f"{100 * found[way].mean():.2f}" for way in WAYS]
        cells += [f"{each.mean():+.2f} ± {each.sem():.2f}" for each in gains]
        rows.append("| " + " | ".join([str(data), str(kind), str(model), *about, *cells]) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks persons")
    parser.add_argument("--quick", action="store_true", help="one seed of law school")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=["tables", "networks", "texts"], help="one kind of data and model")
    arguments = parser.parse_args()
    kinds = {"tables": TABLES[:1] if arguments.quick else TABLES, "networks": NETWORKS, "texts": tuple(TEXTS)}
    chosen = ["tables"] if arguments.quick else [arguments.only] if arguments.only else list(kinds)
    lines = []
    for seed in range(1 if arguments.quick else arguments.seeds):
        for kind, what, epsilon, way in [
            (k, w, e, way) for k in chosen for w in kinds[k] for e in (1.0, 3.0) for way in WAYS
        ]:
            lines.append(text(what, way, epsilon, seed) if kind == "texts" else table(*what, way, epsilon, seed))
            print(json.dumps(lines[-1]), flush=True)
    print(summary(lines))


if __name__ == "__main__":
    main()
