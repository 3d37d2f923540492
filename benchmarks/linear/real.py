"""Real tables: R^2 on a held-out fifth, five budgets. Reads the folder regression of DPILOT_DATA.

20 seeds and every method at epsilon 1; 5 seeds elsewhere, every method on six tables and the quicker ones on the rest.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np

from benchmarks.linear.common import Array, fitted, least_squares, predictions, r2, table
from dpilot.linear.methods import METHODS

HERE = Path(__file__).parent
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)
SHOWN = ("abalone", "california_housing", "diamonds", "elevators", "pol", "wind")
QUICKER = ("auto", "dpgd", "adassp", "boosted")
NAMES = ("auto", "dpgd", "adassp", "boosted", "ssp", "adaclip", "bsgs", "tukey")


def folder() -> Path | None:
    root = os.environ.get("DPILOT_DATA")
    return Path(root) / "regression" if root else None


def load(path: Path) -> tuple[Array, Array]:
    """Features, categories as indicator columns, and the target."""
    import pandas as pd

    frame = pd.read_parquet(path)
    y = frame.pop("target").to_numpy(float)
    words = [name for name in frame if frame[name].dtype.kind not in "fiub"]
    return pd.get_dummies(frame, columns=words, dtype=float).to_numpy(float), y


def scores(X: Array, y: Array, epsilon: float, seed: int, names: tuple[str, ...]) -> dict[str, float]:
    train = np.random.default_rng(seed).random(y.size) < 0.8
    found = {"least squares": r2(y[~train], least_squares(X[train], y[train], X[~train]))}
    for name in names:
        fit = fitted(METHODS[name], X[train], y[train], epsilon)
        found[name] = r2(y[~train], predictions(fit, X[~train]))
    return found


def main(quick: bool) -> None:
    where = folder()
    if where is None:
        print("real tables: skipped, DPILOT_DATA is not set")
        return
    epsilons = (1.0,) if quick else (1.0, *(e for e in EPSILONS if e != 1.0))
    paths = sorted(where.glob("*.parquet"))
    results: dict[tuple[str, float], dict[str, list[float]]] = {}
    for epsilon in epsilons:
        for path in paths:
            X, y = load(path)
            names = NAMES if epsilon == 1.0 or path.stem in SHOWN else QUICKER
            seeds = 2 if quick else 20 if epsilon == 1.0 else 5
            runs = [scores(X, y, epsilon, seed, names) for seed in range(seeds)]
            results[path.stem, epsilon] = {name: [run[name] for run in runs] for name in runs[0]}
            _line(path.stem, y.size, X.shape[1], epsilon, results[path.stem, epsilon])
    _save(results)
    _report(results, {path.stem: load(path)[0].shape for path in paths}, epsilons)
    if not quick:
        draw()


def _line(name: str, n: int, d: int, epsilon: float, found: dict[str, list[float]]) -> None:
    text = ", ".join(f"{key} {np.median(values):.3f}" for key, values in found.items())
    print(f"{name} n={n} d={d} epsilon {epsilon:g}: {text}", flush=True)


def _save(results: dict[tuple[str, float], dict[str, list[float]]]) -> None:
    with (HERE / "tables.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["table", "epsilon", "method", "median_r2", "quantile_10", "below_0", "seeds"])
        for (name, epsilon), found in results.items():
            for method, values in found.items():
                below = float(np.mean(np.array(values) < 0))
                figures = [f"{np.median(values):.4f}", f"{np.quantile(values, 0.1):.4f}", f"{below:.2f}", len(values)]
                writer.writerow([name, epsilon, method, *figures])


def _report(
    results: dict[tuple[str, float], dict[str, list[float]]],
    shapes: dict[str, tuple[int, ...]],
    epsilons: tuple[float, ...],
) -> None:
    for epsilon in epsilons:
        rows = []
        for name, (n, d) in shapes.items():
            found = {key: float(np.median(values)) for key, values in results[name, epsilon].items()}
            low = float(np.quantile(results[name, epsilon]["auto"], 0.1))
            others = (f"{found[key]:.3f}" if key in found else "-" for key in NAMES[1:])
            ours = f"{found['auto']:.3f} ({low:.3f})"
            rows.append([name, f"{n:,}", str(d), f"{found['least squares']:.3f}", ours, *others])
        print(f"\n### Real tables, epsilon {epsilon:g}: median R^2 (10 % quantile for auto)\n")
        print(table(["table", "n", "d", "least squares", *NAMES], rows), flush=True)
        _criterion(results, shapes, epsilon)


def _criterion(
    results: dict[tuple[str, float], dict[str, list[float]]], shapes: dict[str, tuple[int, ...]], epsilon: float
) -> None:
    counted, near, negative = [], [], []
    for name, (n, _) in shapes.items():
        found = {key: float(np.median(values)) for key, values in results[name, epsilon].items()}
        if n < 4_000 or found["least squares"] <= 0.2:
            continue
        counted.append(name)
        if found["auto"] >= max(found.values()) - 0.03:
            near.append(name)
        if found["auto"] < 0:
            negative.append(name)
    far = sorted(set(counted) - set(near))
    print(f"\nauto within 0.03 of the best of all: {len(near)} of {len(counted)}; not on: {', '.join(far) or 'none'}; "
          f"median below 0 on: {', '.join(negative) or 'none'}\n", flush=True)  # fmt: skip


def draw() -> None:
    """The figure, from tables.csv."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with (HERE / "tables.csv").open() as file:
        found = {
            (row["table"], row["method"], float(row["epsilon"])): float(row["median_r2"])
            for row in csv.DictReader(file)
        }
    figure, grid = pyplot.subplots(2, 3, figsize=(11, 6), sharex=True)
    for axes, name in zip(grid.ravel(), SHOWN, strict=True):
        for method in ("least squares", *NAMES):
            points = [(e, found[name, method, e]) for e in EPSILONS if (name, method, e) in found]
            style = {"color": "black", "linestyle": "--"} if method == "least squares" else {"marker": "o", "ms": 3}
            axes.plot(*zip(*points, strict=True), label=method, **style)
        axes.set(title=name, xscale="log", ylim=(-0.5, 1.0))
    grid[1, 1].set_xlabel("epsilon")
    grid[0, 0].set_ylabel("R^2")
    grid[0, 2].legend(frameon=False, bbox_to_anchor=(1.02, 1.0))
    figure.savefig(HERE / "tables.svg", bbox_inches="tight")
