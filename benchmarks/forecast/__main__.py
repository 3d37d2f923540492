"""python -m benchmarks forecast [--quick] [--seeds N] [--fits FILE]: how often the intervals of a forecast hold.

Fits of every task are written to FILE, a line of JSON each, unless they are there already. Then:

    develop   the exponents p on tables with a number to predict, halved at its median: what report/forecast.py holds
    judge     on twelve other tasks: whether the mean exact accuracy of the fits at a target lies in the 80 % interval
              that was forecast from what one fit at the source released

From half of the records at epsilon 0.5 and 1, to 2 and 4 times the epsilon, and to all of the records.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forecast.collect import DELTA, DEVELOPED, EPSILONS, JUDGED, fits
from dpilot import Budget
from dpilot.privacy.gaussian import gdp_mu
from dpilot.report.forecast import KnownFigure, forecast

Lines = dict[tuple[int, float], list[dict[str, Any]]]
MU = {epsilon: gdp_mu(Budget(epsilon, DELTA)) for epsilon in EPSILONS}


def read(path: Path) -> dict[str, Lines]:
    """The fits in a file, by task, then by size and epsilon."""
    found: dict[str, Lines] = defaultdict(lambda: defaultdict(list))
    if path.exists():
        for line in map(json.loads, path.read_text().splitlines()):
            found[line["task"]][line["size"], line["epsilon"]].append(line)
    return found


def accuracy(lines: Sequence[dict[str, Any]]) -> float:
    return float(np.mean([line["exact"] for line in lines]))


def moves(task: Lines, sources: Sequence[float]) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
    """From half of the records to twice and four times the epsilon, and to all records."""
    half, whole = sorted({size for size, _ in task})
    for epsilon in sources:
        for target in ((half, 2 * epsilon), (half, 4 * epsilon), (whole, epsilon)):
            if target in task:
                yield (half, epsilon), target


def develop(tasks: dict[str, Lines]) -> list[float]:
    """The quantiles of p over the development tasks, each with the same weight."""
    found = []
    for name in DEVELOPED:
        for (n, e), (m, f) in moves(tasks[name], EPSILONS):
            errors = [1 - accuracy(tasks[name][place]) for place in ((n, e), (m, f))]
            found.append(-math.log(errors[1] / errors[0]) / math.log(m * MU[f] / (n * MU[e])))
    return np.quantile(found, np.arange(1, 20) / 20).round(3).tolist()


def judge(name: str, task: Lines) -> Iterator[dict[str, Any]]:
    """Every forecast of a task: from each fit at a source, whether the truth lies in its interval."""
    for (n, e), (m, f) in moves(task, (0.5, 1.0)):
        truth = accuracy(task[m, f])
        for line in task[n, e]:
            low, high = line["sampling"]
            known = KnownFigure("accuracy", line["value"], (low, high), Budget(e, DELTA), n)
            made = forecast(known, epsilon=f, size=m)
            yield {
                "task": name, "seed": line["seed"], "from": [n, e], "to": [m, f], "truth": truth, "value": made.value,
                "held": made.interval[0] <= truth <= made.interval[1], "width": made.interval[1] - made.interval[0],
                "low": made.interval[0], "high": made.interval[1], "now": accuracy(task[n, e]),
            }  # fmt: skip


def report(names: Sequence[str], tasks: dict[str, Lines]) -> None:
    """One line a task: the first seed's forecast of twice the epsilon from 1, and how often all forecasts held."""
    print(
        "| task | now | truth at twice the epsilon | forecast | held, of all | mean width |\n|---|---|---|---|---|---|"
    )
    first = total = 0
    for name in names:
        found = list(judge(name, tasks[name]))
        shown = next(each for each in found if each["seed"] == 0 and each["from"][1] == 1.0 and each["to"][1] == 2.0)
        held = sum(each["held"] for each in found)
        first, total = first + shown["held"], total + (held / len(found) >= 0.5)
        interval = f"{shown['low']:.3f} to {shown['high']:.3f}{'' if shown['held'] else ' (missed)'}"
        width = float(np.mean([each["width"] for each in found]))
        figures = f"{shown['now']:.3f} | {shown['truth']:.3f} | {interval}"
        print(f"| {name} | {figures} | {held} of {len(found)} | {width:.3f} |")
    print(f"\nthe shown forecast held on {first} of {len(names)} tasks; most of a task's held on {total}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks forecast")
    parser.add_argument("--quick", action="store_true", help="two judged tasks, one seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fits", type=Path, default=Path("out/forecast.jsonl"))
    given = parser.parse_args()
    judged = {name: JUDGED[name] for name in ("adult", "law_school")} if given.quick else JUDGED
    given.fits.parent.mkdir(parents=True, exist_ok=True)
    there = read(given.fits)
    with given.fits.open("a") as out:
        for name, make in {**({} if given.quick else DEVELOPED), **judged}.items():
            for line in () if name in there else fits(name, make, 1 if given.quick else given.seeds):
                out.write(json.dumps(line) + "\n")
                out.flush()
    tasks = read(given.fits)
    if not given.quick:
        print(f"exponents: {develop(tasks)}\n")
    report(list(judged), tasks)


if __name__ == "__main__":
    main()
