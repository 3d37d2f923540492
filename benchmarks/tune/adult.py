"""Adult through AutoClassifier: everything in one epsilon, beside the best walk of a grid that is not paid for."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks import datasets
from benchmarks.tune.choices import walked, whole_task
from benchmarks.tune.methods import GRID
from dpilot import Budget, tune
from dpilot.data.bundled import adult
from dpilot.fit.expansion import features_of
from dpilot.privacy import gdp_mu
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features
from dpilot.tune.outlays import whole_outlay

BUDGET = Budget(1.0, 1e-5)


def measure(repeats: int, quick: bool) -> dict[str, Any]:
    """(accuracy, AUC) on the published test rows, of each fit."""
    schema = adult()[1]
    parts = [datasets.load("adult", part) for part in ("train", "test")]
    frames = [part.inputs[: 2000 if quick else None] for part in parts]
    codes = [part.labels[: len(frame)].numpy() for part, frame in zip(parts, frames, strict=True)]
    names = np.array(parts[0].classes)
    ours, spent, told = [], 0.0, ()
    for _ in range(repeats):
        model = tune.AutoClassifier(BUDGET.epsilon, BUDGET.delta, schema=schema).fit(frames[0], names[codes[0]])
        ours.append(_scores(model.predict_proba(frames[1])[:, 1], codes[1]))
        spent, told = max(spent, model.privacy_.spent.epsilon), model.record_.decisions
        print("adult, AutoClassifier", ours[-1], flush=True)
    rows = [_unit_rows(schema, frame) for frame in frames]
    return {
        "adult, epsilon 1": {
            "autopilot": ours,
            "epsilon": spent,
            "decisions": [str(each) for each in told],
            "oracle": oracle(rows, codes, repeats),
            "non-private": _plain(rows, codes),
        }
    }


def oracle(rows: list[Any], codes: list[Any], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """r / (mu n) -> scores of runs with the whole budget on all records, on the same encoded rows; not private."""
    train, outlay = Features.of(rows[0], codes[0], 2), whole_outlay(BUDGET)
    task = whole_task(train)
    walk, box = gdp_mu(BUDGET) * len(train) / task.threshold, tune.head_options(task, BUDGET)["box"]
    candidates = [walked(ratio * walk, box) for ratio in GRID]
    found: dict[str, list[tuple[float, float]]] = {f"{ratio:g}": [] for ratio in GRID}
    for _ in range(repeats):
        models = task.train([outlay.trial(each, Receipt(outlay.event)) for each in candidates])
        for scores, weights in zip(found.values(), models, strict=True):
            difference = (weights[:, 1] - weights[:, 0]).double().numpy()
            scores.append(_scores(1 / (1 + np.exp(-rows[1] @ difference)), codes[1]))
    return found


def _unit_rows(schema: Any, frame: Any) -> Any:
    """The records of ``frame`` as a head sees them; a row of zeros for a null record."""
    made = features_of(schema)
    values = made.widen(made.encoder.encode_features(frame)).astype(np.float64)
    values = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, 0.0)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.where(lengths > 0, lengths, 1.0)


def _plain(rows: list[Any], codes: list[Any]) -> tuple[float, float]:
    model = LogisticRegression(C=100.0, max_iter=1000).fit(rows[0], codes[0])
    return _scores(model.predict_proba(rows[1])[:, 1], codes[1])


def _scores(probability: Any, codes: Any) -> tuple[float, float]:
    return float(((probability > 0.5) == codes).mean()), float(roc_auc_score(codes, probability))
