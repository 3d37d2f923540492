"""python -m benchmarks.texts.paired [--data NAME ...] [--seeds N] [--features K] [--cache FOLDER] [--table FILE ...]

    fit         fit_table of hashed rows, declared as one vector, everything included in (epsilon, 1e-6)
    autopilot   tune.autopilot on the same rows, at the same budget
    unchecked   fit_table with the coins and noise of "fit", but a health check that takes nothing: what it costs

Exact accuracy of the published test part (SMS spam: a fifth, drawn once). One line of JSON a fit, one seed for all
three ways; ``--table`` prints means and paired differences, with standard errors, of lines in files.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.texts.__main__ import DATA, DELTA
from dpilot import Budget, Schema
from dpilot.data.encoder import Encoder
from dpilot.fit import health
from dpilot.fit.expansion import features_of
from dpilot.fit.table import fit_table
from dpilot.transfer import Features
from dpilot.tune import autopilot

MOST = {"sst2": 30_000}
WAYS = ("fit", "autopilot", "unchecked")
NOTHING = 1e-9


def hashed(name: str, features: int, cache: Path) -> dict[str, Any]:
    """Hashed rows and labels of both parts, made once."""
    path = cache / f"{name}-{features}.npz"
    if not path.exists():
        reader = Encoder(Schema.from_dict({"columns": {"text": {"type": "text", "features": features}}}))
        made: dict[str, Any] = {}
        for part in ("train", "test"):
            texts = DATA[name](part)
            codes = texts.labels.numpy()
            rows = np.random.default_rng(0).permutation(len(codes))[: MOST.get(name) if part == "train" else None]
            cells = np.array([texts.inputs[place] for place in rows], dtype=object)
            made |= {part: np.asarray(reader.encode_features({"text": cells})), f"{part} codes": codes[rows]}
        np.savez(path, **made)
    return dict(np.load(path))


def run(name: str, data: dict[str, Any], way: str, epsilon: float, seed: int) -> dict[str, Any]:
    codes, tested = data["train codes"], data["test codes"]
    classes = int(codes.max()) + 1
    schema = schema_of(data["train"].shape[1], classes)
    reader = Encoder(schema.inputs_only())
    rows, shown = (np.asarray(reader.encode_features({"text": data[part]})) for part in ("train", "test"))
    start = time.process_time()
    if way == "autopilot":
        wide = features_of(schema.inputs_only())
        train, test = (Features.of(wide.widen(x), y, classes).unit() for x, y in ((rows, codes), (shown, tested)))
        head = autopilot(train, None, Budget(epsilon, DELTA), size=len(codes), test_seed=seed).model
        found = (test.values @ head.to(test.values)).argmax(1).numpy()
    else:
        table = {"text": data["train"], "label": codes.astype(str)}
        share = NOTHING if way == "unchecked" else health.SHARE
        with patch.object(health, "SHARE", share):
            model = fit_table(table, schema, epsilon=epsilon, delta=DELTA, test_seed=seed)
        found = np.argmax(model.predictor.outputs(shown), axis=1)
    about = {"data": name, "records": len(codes), "features": data["train"].shape[1], "way": way, "epsilon": epsilon}
    return {
        **about, "seed": seed, "accuracy": float((found == tested).mean()),
        "cpu_s": round(time.process_time() - start, 2),
    }  # fmt: skip


def schema_of(width: int, classes: int) -> Schema:
    target = {"type": "categorical", "categories": list(map(str, range(classes))), "role": "target"}
    return Schema.from_dict({"columns": {"text": {"type": "vector", "width": width}, "label": target}})


def tell(lines: list[dict[str, Any]]) -> None:
    """Means, and differences of lines of one seed, in points of accuracy with a standard error."""
    found: dict[tuple[str, int, float], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        found[line["data"], line["features"], line["epsilon"]][line["way"]][line["seed"]] = 100 * line["accuracy"]
    for (name, features, epsilon), ways in found.items():
        for other in ("autopilot", "unchecked"):
            seeds = sorted(set(ways["fit"]) & set(ways[other]))
            if len(seeds) < 2:
                continue
            ours, theirs = (np.array([each[seed] for seed in seeds]) for each in (ways["fit"], ways[other]))
            error = (ours - theirs).std(ddof=1) / len(seeds) ** 0.5
            told = f"{ours.mean():.2f} | {theirs.mean():.2f} | {(ours - theirs).mean():+.2f} +- {error:.2f}"
            print(f"| {name} | {features} | {epsilon:g} | {other} | {len(seeds)} | {told} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.texts.paired")
    parser.add_argument("--data", nargs="*", choices=list(DATA), default=list(DATA))
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 8], help="the first, and the one after the last")
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--cache", type=Path, default=Path("."))
    parser.add_argument("--table", type=Path, nargs="*")
    given = parser.parse_args()
    if given.table:
        tell([json.loads(line) for path in given.table for line in path.read_text().splitlines()])
        return
    for name in given.data:
        data = hashed(name, given.features, given.cache)
        for seed in range(*given.seeds):
            for epsilon in given.epsilons:
                for way in given.ways:
                    print(json.dumps(run(name, data, way, epsilon, seed)), flush=True)


if __name__ == "__main__":
    main()
