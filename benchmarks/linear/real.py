"""Real tables: R^2 on a held-out fifth, five budgets. Reads the folder regression of DPILOT_DATA.

20 seeds and every method at epsilon 1; 5 seeds elsewhere, every method on six tables and the quicker ones on the rest.
Figures are kept in tables.csv, so it can be done in pieces: --tables=abalone,pol --epsilons=1 runs those alone.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.linear.common import Array, fitted, least_squares, predictions, r2, table
from dpilot.linear.methods import METHODS

HERE = Path(__file__).parent
KEPT = HERE / "tables.csv"
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)
SHOWN = ("abalone", "california_housing", "diamonds", "elevators", "pol", "wind")
QUICKER = ("auto", "dpgd", "adassp", "boosted")
NAMES = ("auto", "dpgd", "adassp", "boosted", "ssp", "adaclip", "bsgs", "tukey")

Row = dict[str, str]
Known = dict[tuple[str, float, str], Row]


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
    known = {} if quick else _kept()
    paths = {path.stem: path for path in sorted(where.glob("*.parquet"))}
    epsilons = (1.0,) if quick else tuple(float(e) for e in _asked("epsilons", map(str, EPSILONS)))
    for epsilon in epsilons:
        for name in _asked("tables", paths):
            X, y = load(paths[name])
            names = NAMES if epsilon == 1.0 or name in SHOWN else QUICKER
            seeds = 2 if quick else 20 if epsilon == 1.0 else 5
            runs = [scores(X, y, epsilon, seed, names) for seed in range(seeds)]
            found = {key: summary([run[key] for run in runs], *X.shape) for key in runs[0]}
            known |= {(name, epsilon, key): row for key, row in found.items()}
            print(f"{name} epsilon {epsilon:g}:", {key: row["median_r2"] for key, row in found.items()}, flush=True)
            if not quick:
                _save(known)
    for epsilon in sorted({key[1] for key in known}, key=lambda e: (e != 1.0, e)):
        _report(known, epsilon)
    if not quick:
        draw()


def _asked(option: str, otherwise: Iterable[str]) -> list[str]:
    """What --option=a,b asks for, or everything."""
    found = [word.partition("=")[2].split(",") for word in sys.argv if word.startswith(f"--{option}=")]
    return found[0] if found else list(otherwise)


def summary(values: list[float], n: int, d: int) -> Row:
    below = float(np.mean(np.array(values) < 0))
    figures = {"median_r2": f"{np.median(values):.4f}", "quantile_10": f"{np.quantile(values, 0.1):.4f}"}
    return {**figures, "below_0": f"{below:.2f}", "seeds": str(len(values)), "n": str(n), "d": str(d)}


def _kept() -> Known:
    if not KEPT.exists():
        return {}
    with KEPT.open() as file:
        return {(row.pop("table"), float(row.pop("epsilon")), row.pop("method")): row for row in csv.DictReader(file)}


def _save(known: Known) -> None:
    with KEPT.open("w", newline="") as file:
        fields = ["table", "epsilon", "method", *next(iter(known.values()))]
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        for (name, epsilon, method), row in sorted(known.items(), key=lambda item: (item[0][1], item[0][0])):
            writer.writerow({"table": name, "epsilon": epsilon, "method": method, **row})


def _report(known: Known, epsilon: float) -> None:
    tables = sorted({name for name, at, _ in known if at == epsilon})
    rows, counted, near, like, negative = [], [], [], [], []
    for name in tables:
        found = {key: row for (table_, at, key), row in known.items() if (table_, at) == (name, epsilon)}
        medians = {key: float(row["median_r2"]) for key, row in found.items()}
        n, d, plain = int(found["auto"]["n"]), found["auto"]["d"], medians["least squares"]
        others = (f"{medians[key]:.3f}" if key in medians else "-" for key in NAMES[1:])
        ours = f"{medians['auto']:.3f} ({float(found['auto']['quantile_10']):.3f})"
        rows.append([name, f"{n:,}", d, f"{plain:.3f}", ours, *others])
        if n >= 4_000 and plain > 0.2:
            counted.append(name)
            near += [name] if medians["auto"] >= max(medians.values()) - 0.03 else []
            like += [name] if medians["auto"] >= plain - 0.03 else []
            negative += [name] if medians["auto"] < 0 else []
    print(f"\n### epsilon {epsilon:g}\n")
    print(table(["table", "n", "d", "least squares", *NAMES], rows), flush=True)
    far = ", ".join(sorted(set(counted) - set(near))) or "none"
    print(f"\nOf the {len(counted)} tables with n >= 4,000 and least-squares R^2 > 0.2, `auto` is within 0.03", end=" ")
    print(f"of the best of all methods (least squares included) on {len(near)}, not on {far}; within 0.03", end=" ")
    print(f"of least squares on {len(like)}. Median below 0 on: {', '.join(negative) or 'none'}.", flush=True)


def draw(target: Path = HERE / "tables.svg") -> None:
    """The figure, from tables.csv."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dpilot"
    from matplotlib import pyplot

    with KEPT.open() as file:
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
    figure.savefig(target, bbox_inches="tight", metadata={"Date": None})
