"""python -m benchmarks rare [--quick] [--seeds N] [--tables T ..] [--epsilons E ..] [--ways W ..]

What is found of rare classes, with class weights and without.

    plain      nothing is asked for
    weights    class_weight="balanced", decision="likeliest"
    prior      decision="prior" alone
    balanced   class_weight="balanced", which decides by priors too

Tables: bank marketing (11.7 % yes), credit default (22 %), the Dutch census with its second class thinned to 1, 5 and
14 %, Adult's occupations (15 classes, from 0.03 % to 13 %). Four fifths are for training; exact figures of the rest.
The rare class is the least common one; of Adult, the three least common. Fits of one seed share split and test seed, so
ways are compared in pairs. Another table is named with the share that its second class is thinned to
("bank_marketing 0.01"). Lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.fit.__main__ import load, schema_of, split

WAYS: dict[str, dict[str, str]] = {
    "plain": {},
    "balanced": {"class_weight": "balanced"},
    "weights": {"class_weight": "balanced", "decision": "likeliest"},
    "prior": {"decision": "prior"},
}
TABLES = (
    "bank_marketing",
    "credit_default",
    "dutch_census 0.01",
    "dutch_census 0.05",
    "dutch_census 0.14",
    "adult occupation",
)


def table(name: str) -> tuple[pd.DataFrame, str]:
    """A table and its target; the second class thinned to a share, or another target, where the name says so."""
    known, _, how = name.partition(" ")
    frame, target = load(known)
    if not how:
        return frame, target
    if how in frame:
        return frame.drop(columns=target).assign(**{how: frame[how].astype(str)}), how
    second = frame[target] == sorted(frame[target].unique())[1]
    kept = round(float(how) / (1 - float(how)) * int((~second).sum()))
    parts = frame[~second], frame[second].sample(kept, random_state=0)
    return pd.concat(parts).sample(frac=1, random_state=0).reset_index(drop=True), target


def measure(name: str, way: str, model: str, epsilon: float, seed: int) -> dict[str, Any]:
    """Recall and precision of the rare classes, and the figures of all, of one fit."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    from dpilot.fit.table import fit_table

    frame, target = table(name)
    train, test = (frame.iloc[places].reset_index(drop=True) for places in split(len(frame), seed))
    start = time.perf_counter()
    fitted = fit_table(train, schema_of(frame, target), epsilon=epsilon, model=model, test_seed=seed, **WAYS[way])
    seconds = time.perf_counter() - start
    truth, found, chances = test[target].to_numpy(), fitted.predict(test), fitted.predict_proba(test)
    classes = fitted.schema.target.categories or ()
    counts = frame[target].value_counts()
    rare = counts.index[-1:] if len(classes) == 2 else counts.index[-3:]
    recalls = {each: float((found[truth == each] == each).mean()) for each in classes if (truth == each).any()}
    predicted = np.isin(found, rare)
    figures = {
        "recall": float(np.isin(found[np.isin(truth, rare)], rare).mean()),
        "precision": float(np.isin(truth[predicted], rare).mean()) if predicted.any() else None,
        "macro": float(np.mean(list(recalls.values()))),
        "accuracy": float((found == truth).mean()),
        "never": sum(not value for value in recalls.values()),
    }
    if len(classes) == 2:
        place = classes.index(rare[0])
        positive, scores = truth == rare[0], np.nan_to_num(chances[:, place])
        figures |= {"auc": roc_auc_score(positive, scores), "pr_auc": average_precision_score(positive, scores)}
        said = {(each.name, each.of): each.value for each in fitted.metrics}
        figures |= {"said_recall": said["recall", rare[0]], "said_precision": said["precision", rare[0]]}
        figures["said_pr_auc"] = said["average precision", ""]
    given = {"table": name, "way": way, "model": model, "epsilon": epsilon, "seed": seed, "seconds": round(seconds, 1)}
    return {**given, **{name: None if value is None else round(value, 4) for name, value in figures.items()}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks rare")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tables", nargs="*", help="these alone, by the model auto")
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    if given.quick:
        print(json.dumps(measure("bank_marketing", "balanced", "auto", 1.0, 0)))
        raise SystemExit
    every = (("auto", TABLES, given.ways), ("logistic", (TABLES[0], *TABLES[2:4]), ("plain", "balanced")))
    for model, names, ways in (("auto", given.tables, given.ways),) if given.tables else every:
        for seed in range(given.seeds):
            for epsilon in given.epsilons:
                for name in names:
                    for way in ways:
                        print(json.dumps(measure(name, way, model, epsilon, seed)), flush=True)
