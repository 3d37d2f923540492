"""Provan's tables beside ours: his printed figures, valid methods on the same data, nothing declared and declared."""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.linear.common import coefficients, fitted, middle, paper, repeated, table
from dpilot.linear.adaclip import AdaClip
from dpilot.linear.adassp import AdaSSP
from dpilot.linear.boosted import BoostedAdaSSP
from dpilot.linear.bsgs import BSGS
from dpilot.linear.dpgd import Dpgd
from dpilot.linear.fitting import Method
from dpilot.linear.fixed import FixedClip
from dpilot.linear.methods import METHODS
from dpilot.linear.ssp import SSP

SETTINGS = {50: (2_000, 5_000, 10_000), 100: (5_000, 10_000, 20_000), 10: (500, 1_000, 2_000)}
PRINTED = {  # his tables 1 and 3, mean over 20 trials
    50: {
        "DP-SGD C=1 (printed)": (0.049, 0.020, 0.012),
        "SSP (printed)": (7.903, 13.76, 0.496),
        "AdaClip (printed)": (0.224, 0.083, 0.042),
        "BSGS (printed)": (0.082, 0.038, 0.040),
        "goal, declared": (0.027, 0.014, 0.009),
    },
    100: {
        "DP-SGD C=1 (printed)": (0.035, 0.018, 0.010),
        "SSP (printed)": (30.25, 17.88, 0.968),
        "AdaClip (printed)": (0.165, 0.086, 0.042),
        "BSGS (printed)": (0.137, 0.083, 0.054),
        "goal, declared": (0.023, 0.014, 0.009),
    },
    10: {},
}
DECLARED: dict[str, Method] = {
    "dpgd": Dpgd(),
    "fixed C=0.1": FixedClip(0.1),
    "fixed C=1": FixedClip(1.0),
    "fixed C=10": FixedClip(10.0),
    "adaclip": AdaClip(),
    "bsgs": BSGS(),
    "ssp": SSP(),
    "adassp": AdaSSP(),
    "boosted, clip 1": BoostedAdaSSP(clip=1.0),
    "boosted, clip bought": BoostedAdaSSP(),
}
BOUGHT = {name: METHODS[name] for name in ("dpgd", "auto", "adassp", "boosted")}


def errors(method: Method, d: int, n: int, seeds: int, bounds: str | None) -> list[float]:
    def trial(seed: int) -> float:
        X, y, weights = paper(n, d, seed)
        found = fitted(method, X, y, 1.0, bounds=bounds, intercept=bounds is None)
        return float(np.linalg.norm(coefficients(found) - weights))

    return repeated(trial, seeds)


def least(d: int, n: int, seeds: int) -> list[float]:
    def trial(seed: int) -> float:
        X, y, weights = paper(n, d, seed)
        return float(np.linalg.norm(np.linalg.lstsq(X, y, rcond=None)[0] - weights))

    return repeated(trial, seeds)


def main(quick: bool) -> None:
    seeds = 3 if quick else 20
    named = [word.partition("=")[2] for word in sys.argv if word.startswith("--method=")]  # one of those below alone
    for d, sizes in SETTINGS.items():
        rows = [["least squares, not private", *(middle(least(d, n, seeds)) for n in sizes)]]
        for name, method in DECLARED.items() if not named else ():
            rows.append([f"{name}, declared", *(middle(errors(method, d, n, seeds, "standardised")) for n in sizes)])
        for name, method in BOUGHT.items():
            if named and name not in named:
                continue
            rows.append([f"{name}, nothing declared", *(middle(errors(method, d, n, seeds, None)) for n in sizes)])
        rows += [[name, *map(str, figures)] for name, figures in PRINTED[d].items()]
        print(f"\n### d = {d}: L2 error, median (90 % quantile) of {seeds} seeds, (1, 1e-5)\n")
        print(table(["method", *(f"n = {n:,}" for n in sizes)], rows), flush=True)
