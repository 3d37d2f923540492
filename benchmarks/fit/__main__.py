"""python -m benchmarks fit [--quick] [--workers N] [--rows N]: utility on real tables, then times on tables of N rows.

Utility: five tables of classes and those of the folder "regression", four fifths for training, exact figures of the
rest. The schema is taken from the whole table, as from a codebook. Lines of JSON go to standard output.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.datasets.part import folder

TARGETS = {
    "adult": "income", "bank_marketing": None, "credit_default": None, "dutch_census": "occupation", "law_school": None,
}  # fmt: skip


def load(name: str) -> tuple[pd.DataFrame, str]:
    """A table of classes, and the name of its target: the last column where none is named."""
    frame = pd.read_parquet(next(iter(sorted((folder() / name).glob("*.parquet")))))
    frame = frame.drop(columns="split", errors="ignore")
    passed = [column for column in frame if name == "law_school" and "pass" in column.lower()]
    target = TARGETS[name] or (passed or [frame.columns[-1]])[0]
    return frame.assign(**{target: frame[target].astype(str)}), target


def schema_of(frame: pd.DataFrame, target: str) -> Any:
    """What a codebook of the table would declare."""
    from dpilot import Schema

    columns: dict[str, dict[str, Any]] = {}
    for name, values in frame.items():
        if name == target or values.dtype.kind not in "fiub":
            columns[str(name)] = {"type": "categorical", "categories": sorted(map(str, values.dropna().unique()))}
        else:
            low, high = float(values.min()), float(values.max())
            columns[str(name)] = {"type": "numeric", "bounds": [low, high if high > low else low + 1]}
    columns[target]["role"] = "target"
    return Schema.from_dict({"columns": columns})


def split(length: int, seed: int) -> tuple[Any, Any]:
    order = np.random.default_rng(seed).permutation(length)
    return order[: int(0.8 * length)], order[int(0.8 * length) :]


def classify(name: str, model: str, epsilon: float, seed: int) -> dict[str, Any]:
    """Accuracy and area under the curve of one fit."""
    from sklearn.metrics import roc_auc_score

    from dpilot.fit.table import fit_table

    frame, target = load(name)
    train, test = (frame.iloc[places].reset_index(drop=True) for places in split(len(frame), seed))
    start = time.perf_counter()
    fitted = fit_table(train, schema_of(frame, target), epsilon=epsilon, model=model)
    seconds = time.perf_counter() - start
    truth, chances = test[target].to_numpy(), fitted.predict_proba(test)
    positive = truth == fitted.schema.target.categories[1]
    figures = {
        "accuracy": float((fitted.predict(test) == truth).mean()),
        "auc": float(roc_auc_score(positive, np.nan_to_num(chances[:, 1]))),
    }
    return {"table": name, "model": model, "epsilon": epsilon, "seed": seed, "seconds": seconds, **figures}


def regress(name: str, epsilon: float, seed: int) -> dict[str, Any]:
    """R^2 of one fit, nothing declared."""
    from dpilot import AutoRegressor

    frame = pd.read_parquet(folder() / "regression" / f"{name}.parquet")
    y = frame.pop("target").to_numpy(float)
    X = pd.get_dummies(frame, dtype=float).to_numpy(float)
    train, test = split(len(y), seed)
    start = time.perf_counter()
    model = AutoRegressor(epsilon).fit(X[train], y[train])
    seconds = time.perf_counter() - start
    return {
        "table": name,
        "epsilon": epsilon,
        "seed": seed,
        "seconds": seconds,
        "r2": float(model.score(X[test], y[test])),
    }


def utility(quick: bool, workers: int) -> None:
    """Every setting, as one line of JSON each."""
    import warnings

    warnings.filterwarnings("ignore", message="no ledger was given")  # the records are public
    seeds = range(1 if quick else 5)
    tables = sorted(path.stem for path in (folder() / "regression").glob("*.parquet"))
    with ProcessPoolExecutor(workers, get_context("fork")) as pool:
        jobs = [
            pool.submit(classify, name, model, epsilon, seed)
            for name in (["law_school"] if quick else TARGETS)
            for model in ("auto", "logistic")
            for epsilon in (0.3, 1.0)
            for seed in seeds
        ]
        jobs += [
            pool.submit(regress, name, epsilon, seed)
            for name in (tables[:1] if quick else tables)
            for epsilon in (0.1, 0.3, 1.0, 3.0)
            for seed in (seeds if quick else range(20))  # a fit takes a tenth of a second
        ]
        for job in jobs:
            print(json.dumps(job.result()), flush=True)


def commands(rows: int) -> None:
    """Time and memory of each command on Adult's columns, repeated to so many rows."""
    from dpilot.data.bundled import adult

    path, schema = adult()
    whole = pd.read_parquet(path)
    with tempfile.TemporaryDirectory() as place:
        where = Path(place)
        repeated = pd.concat([whole] * -(-rows // len(whole)), ignore_index=True).iloc[:rows]
        repeated.to_parquet(where / "table.parquet")
        (where / "schema.toml").write_text(schema.to_toml())
        del repeated
        fit = ["fit", "table.parquet", "--schema", "schema.toml", "--epsilon", "1", "--json"]
        for arguments in (
            ["schema", "check", "schema.toml", "--header", "table.parquet"],
            [*fit, "--dry-run"],
            [*fit, "--out", "auto", "--total", "9"],
            [*fit, "--out", "logistic", "--model", "logistic"],
            ["predict", "auto", "table.parquet", "--out", "found.parquet"],
            ["report", "auto"],
        ):
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "dpilot.cli.main", *arguments],
                cwd=where,
                capture_output=True,
                text=True,
                check=False,
            )
            used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
            said = json.loads(done.stdout) if "--json" in arguments and done.returncode == 0 else {}
            found = {name: said[name] for name in ("seconds", "megabytes") if name in said}
            seconds = round(time.perf_counter() - start, 1)
            line = {"rows": rows, "command": " ".join(arguments[:1] + arguments[-2:]), "code": done.returncode}
            print(
                json.dumps({**line, "took": seconds, "largest_gigabytes_so_far": round(used, 2), **found}), flush=True
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks fit")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, action="append")
    given = parser.parse_args()
    if given.rows is None or given.quick:
        utility(given.quick, given.workers)
    for count in given.rows or ([2_000] if given.quick else [48_842]):
        commands(count)
