"""python -m benchmarks.texts.paired [--data NAME ...] [--seeds FIRST LAST] [--encoder NAME] [--most N ...] [--table F]

    fit         a fit of the rows, declared as one vector, everything included in (epsilon, 1e-6)
    autopilot   tune.autopilot on the same rows at the same budget, with the coins and the noise of the fit
    same mu     the same autopilot with the budget that the fit's health check leaves

Hashed texts, or what an encoder says of them. Coins and noise are the same stream in all three ways, so that only what
the ways do differs: "same mu" ends at the fit's weights, or at others where the two are not one method. Exact accuracy
of the published test part (SMS spam: a fifth, drawn once). One line of JSON a fit; ``--table`` prints means and paired
differences, with standard errors, of lines in files.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.texts.__main__ import DATA, DELTA, read_by
from dpilot import Budget, Schema
from dpilot.data.encoder import Encoder
from dpilot.fit.declaration import declare_fit
from dpilot.fit.expansion import features_of
from dpilot.fit.keys import FitKeys
from dpilot.fit.pipeline import plan_fit, run_fit
from dpilot.noise import seeded_noise
from dpilot.transfer import Features
from dpilot.tune import autopilot, pilot

MOST = {"sst2": {"train": 30_000}, "imdb": {"train": 10_000, "test": 5_000}}
MOST_READ = {**MOST, "newsgroups": {"test": 1_000}}  # by an encoder
WAYS = ("fit", "autopilot", "same mu")
_BEFORE_TRIALS = 3  # sources of noise that a fit takes: health, size, bounds


def rows_of(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Rows and labels of both parts, made once."""
    path = given.cache / f"{name}-{given.encoder or given.features}.npz"
    most = (MOST_READ if given.encoder else MOST).get(name, {})
    if not path.exists():
        made: dict[str, Any] = {}
        for part in ("train", "test"):
            texts = DATA[name](part)
            codes = texts.labels.numpy()
            rows = np.random.default_rng(0).permutation(len(codes))[: most.get(part)]
            cells = [texts.inputs[place] for place in rows]
            made |= {part: _read(cells, given), f"{part} codes": codes[rows]}
        np.savez(path, **made)
    return dict(np.load(path))


def _read(cells: list[str], given: argparse.Namespace) -> Any:
    if given.encoder:
        return read_by(given.encoder, given.length, cells)
    reader = Encoder(Schema.from_dict({"columns": {"text": {"type": "text", "features": given.features}}}))
    return np.asarray(reader.encode_features({"text": np.array(cells, dtype=object)}))


def schema_of(width: int, classes: int) -> Schema:
    target = {"type": "categorical", "categories": list(map(str, range(classes))), "role": "target"}
    return Schema.from_dict({"columns": {"text": {"type": "vector", "width": width}, "label": target}})


def run(name: str, data: dict[str, Any], way: str, epsilon: float, seed: int) -> tuple[dict[str, Any], Any]:
    """A line of figures, and the weights."""
    codes, tested = data["train codes"], data["test codes"]
    classes = int(codes.max()) + 1
    schema = schema_of(data["train"].shape[1], classes)
    reader, wide = Encoder(schema.inputs_only()), features_of(schema.inputs_only())
    parts = (("train", codes), ("test", tested))
    train, test = (
        Features.of(wide.widen(reader.encode_features({"text": data[p]})), y, classes).unit() for p, y in parts
    )
    declared, table = declare_fit(
        {"text": data["train"], "label": codes.astype(str)}, schema, epsilon=epsilon, delta=DELTA
    )
    noise = seeded_noise(seed)  # a stream, not by values: the same in all ways
    keys = FitKeys(FitKeys.draw(seed).chain, noise)
    start = time.process_time()
    if way == "fit":
        weights = run_fit(declared, table, keys=keys).trained.predictor.weights
    else:
        for _ in range(_BEFORE_TRIALS):
            noise.spawn()
        budget = Budget(epsilon, DELTA) if way == "autopilot" else plan_fit(declared, "gdp").rest
        coins = patch.object(
            pilot, "draw_split", lambda held_out, _: keys.split({"train": 1 - held_out, "held-out": held_out})
        )
        with coins, patch.object(pilot, "fixed_noise", lambda _: noise.spawn):
            head = autopilot(train, None, budget, size=len(codes), test_seed=seed).model
        weights = head.double().cpu().numpy()
    found = (test.values.double().numpy() @ weights).argmax(1)
    about = {"data": name, "records": len(codes), "features": data["train"].shape[1], "way": way, "epsilon": epsilon}
    spent = round(time.process_time() - start, 2)
    return {**about, "seed": seed, "accuracy": float((found == tested).mean()), "cpu_s": spent}, weights


def logistic(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Without privacy."""
    plain = LogisticRegression(max_iter=300).fit(data["train"], data["train codes"])
    about = {"data": name, "records": len(data["train"]), "features": data["train"].shape[1], "way": "logistic"}
    return {**about, "accuracy": float(plain.score(data["test"], data["test codes"]))}


def tell(lines: list[dict[str, Any]]) -> None:
    """Means, and differences of lines of one seed, in points of accuracy with a standard error."""
    found: dict[tuple[Any, ...], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    about = ("data", "features", "records")
    plain = {tuple(line[k] for k in about): 100 * line["accuracy"] for line in lines if line["way"] == "logistic"}
    for line in (line for line in lines if line["way"] in WAYS):
        key = (*(line[k] for k in about), line["epsilon"])
        found[key][line["way"]][line["seed"]] = 100 * line["accuracy"]
    for (*key, epsilon), ways in sorted(found.items()):
        start, without = "| {} | {} | {:,} |".format(*key) + f" {epsilon:g}", f"{plain.get(tuple(key), np.nan):.2f}"
        if "autopilot" not in ways:
            told = [*ways["fit"].values()]
            print(f"{start} | {len(told)} | {np.mean(told):.2f} ({min(told):.2f} to {max(told):.2f}) | {without} |")
            continue
        seeds = sorted(set(ways["fit"]) & set(ways["autopilot"]))
        if len(seeds) < 2:
            continue
        ours, theirs = (np.array([each[seed] for seed in seeds]) for each in (ways["fit"], ways["autopilot"]))
        error = (ours - theirs).std(ddof=1) / len(seeds) ** 0.5
        told = f"{ours.mean():.2f} | {theirs.mean():.2f} | {(ours - theirs).mean():+.2f} +- {error:.2f}"
        print(f"{start} | {len(seeds)} | {told} | {without} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.texts.paired")
    parser.add_argument("--data", nargs="*", choices=list(DATA), default=list(DATA))
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 8], help="the first, and the one after the last")
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--encoder", default=None, help="a sentence encoder in place of hashed columns, as minilm")
    parser.add_argument("--length", type=int, default=64, help="tokens of a text that it reads")
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--same-mu", type=int, default=0, help="of so many seeds, also the autopilot at the same mu")
    parser.add_argument("--ways", nargs="*", choices=WAYS, help="these alone")
    parser.add_argument("--most", type=int, nargs="*", help="records to train on, the first of those drawn")
    parser.add_argument("--logistic", action="store_true", help="also logistic regression, without privacy")
    parser.add_argument("--cache", type=Path, default=Path("."))
    parser.add_argument("--table", type=Path, nargs="*")
    given = parser.parse_args()
    if given.table:
        tell([json.loads(line) for path in given.table for line in path.read_text().splitlines()])
        return
    for name, most in product(given.data, given.most or [None]):
        whole = rows_of(name, given)
        data = {**whole, **{part: whole[part][:most] for part in ("train", "train codes")}}
        if given.logistic:
            print(json.dumps(logistic(name, data)), flush=True)
        for place, seed in enumerate(range(*given.seeds)):
            for epsilon in given.epsilons:
                weights = {}
                for way in given.ways or (WAYS if place < given.same_mu else WAYS[:2]):
                    line, weights[way] = run(name, data, way, epsilon, seed)
                    if way == "same mu" and "fit" in weights:
                        line["weights apart"] = float(np.abs(weights[way] - weights["fit"]).max())
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
