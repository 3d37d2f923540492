"""Adult: private logistic regression, categories declared and numeric columns bought, beside DP-EBM in the same run."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.linear.common import DELTA, Array, table
from dpilot.linear.classifier import LogisticRegression

NUMERIC = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
EPSILONS = (0.1, 0.5, 1.0, 3.0)


def load() -> Any:
    """The published training and test rows, or None."""
    root = os.environ.get("DPILOT_DATA")
    if not root:
        return None
    import pandas as pd

    frame = pd.read_parquet(Path(root) / "adult" / "adult.parquet")
    frame.columns = [name.replace("-", "_").replace(".", "_") for name in frame]
    return frame


def encoded(frame: Any) -> tuple[Array, Any]:
    """Numeric columns, then one indicator for each published category, with the bounds that declares."""
    import pandas as pd

    words = [name for name in frame if name not in (*NUMERIC, "income", "split", "fnlwgt")]
    indicators = pd.get_dummies(frame[words].astype(str), dtype=float)
    X = np.column_stack([frame[list(NUMERIC)].to_numpy(float), indicators.to_numpy(float)])
    lower = np.append(np.full(len(NUMERIC), np.nan), np.zeros(indicators.shape[1]))
    return X, {"X": (lower, lower + 1)}


def ours(X: Array, y: Array, train: Array, epsilon: float, bounds: Any) -> Array:
    model = LogisticRegression(epsilon, DELTA, classes=[0, 1], bounds=bounds).fit(X[train], y[train])
    return np.asarray(model.predict_proba(X[~train])[:, 1])


def boosting(frame: Any, y: Array, train: Array, epsilon: float) -> Array | None:
    """DP-EBM with its numeric bounds and target declared from the published domain, on the raw columns."""
    try:
        from interpret.privacy import DPExplainableBoostingClassifier
    except ImportError:
        return None
    columns = [name for name in frame if name not in ("income", "split", "fnlwgt")]
    kinds = ["continuous" if name in NUMERIC else "nominal" for name in columns]
    limits = {"age": (17, 90), "education_num": (1, 16), "capital_gain": (0, 99_999), "capital_loss": (0, 4_356)}
    bounds = {name: limits.get(name, (1, 99)) for name in NUMERIC}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DPExplainableBoostingClassifier(
            feature_names=columns, feature_types=kinds, privacy_bounds=bounds, epsilon=epsilon, delta=DELTA, n_jobs=1
        )
        model.fit(frame.loc[train, columns], y[train])
        return np.asarray(model.predict_proba(frame.loc[~train, columns])[:, 1])


def main(quick: bool) -> None:
    from sklearn.linear_model import LogisticRegression as Plain
    from sklearn.metrics import roc_auc_score
    from sklearn.preprocessing import StandardScaler

    frame = load()
    if frame is None:
        print("adult: skipped, DPILOT_DATA is not set")
        return
    y = (frame["income"].astype(str).str.strip(". ") == ">50K").to_numpy(int)
    train = (frame["split"] == "train").to_numpy()
    X, bounds = encoded(frame)
    scaler = StandardScaler().fit(X[train])
    plain = Plain(max_iter=2000).fit(scaler.transform(X[train]), y[train])
    floor = roc_auc_score(y[~train], plain.predict_proba(scaler.transform(X[~train]))[:, 1])
    seeds = 2 if quick else 20
    rows = []
    for epsilon in (1.0,) if quick else EPSILONS:
        guesses = [ours(X, y, train, epsilon, bounds) for _ in range(seeds)]
        auc = [roc_auc_score(y[~train], guess) for guess in guesses]
        right = [float(np.mean((guess > 0.5) == y[~train])) for guess in guesses]
        other = [boosting(frame, y, train, epsilon) for _ in range(2 if quick else 5)]
        peer = [roc_auc_score(y[~train], guess) for guess in other if guess is not None]
        shown = f"{np.median(peer):.4f}" if peer else "-"
        low = np.quantile(auc, 0.1)
        rows.append([f"{epsilon:g}", f"{np.median(auc):.4f} ({low:.4f})", f"{np.median(right):.4f}", shown])
    print(f"\n### Adult, {X.shape[1]} columns, published split, {seeds} seeds; not private: AUC {floor:.4f}\n")
    head = ["epsilon", "AUC, median (10 % quantile)", "accuracy", "DP-EBM AUC (5 seeds)"]
    print(table(head, rows), flush=True)
