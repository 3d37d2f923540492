"""Tuning inside one budget.

DPILOT_DATA=folder DPILOT_WEIGHTS=folder python -m benchmarks tune [PART ...] [--quick] [--out FOLDER]

| part | what |
|---|---|
| defaults | where kappa, band, trials, shares and the held-out share come from: data that no other part uses |
| threshold | where the clipping threshold comes from, likewise |
| goals | every method at the same total epsilon, the oracle and no privacy at all |
| shares | accuracy against the share of mu^2 that goes to tuning |
| hopeless | 500 records at epsilon 0.1 |
| speed | seven trials beside one |
| adult | AutoClassifier on Adult |
| report | RESULTS.md and its plots from what the parts wrote |

A part writes FOLDER/PART.json; without PART all but ``report`` are run. Features may be kept in the folder that
DPILOT_CACHE names, as NAME.npz with train, train_labels, test and test_labels.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.datasets import Missing
from benchmarks.tune import data, hopeless, methods, report, shares, speed, study, threshold
from dpilot.transfer.features import Features

HERE = Path(__file__).parent
Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks tune", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join([*PARTS, "report"]))
    parser.add_argument("--quick", action="store_true", help="few records, two repeats")
    parser.add_argument("--only", default="", help="goals whose name begins so")
    parser.add_argument("--way", default="", help="methods whose name contains this, without yardsticks")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "measured")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.repeats = 2 if options.quick else options.repeats
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.parts or PARTS:
        if part == "report":
            report.write(options.out, HERE)
            continue
        started = time.perf_counter()
        try:
            found = PARTS[part](options)
        except Missing as missing:
            print(f"{part}: skipped: {missing}")
            continue
        stamp = {"machine": _machine(options.device), "commit": _commit(), "date": time.strftime("%Y-%m-%d")}
        stamp["seconds"] = round(time.perf_counter() - started)
        _store(options.out / f"{part}.json", {name: {**stamp, "found": value} for name, value in found.items()})
        print(f"{part}: {options.out / part}.json", flush=True)


def _store(target: Path, found: Found) -> None:
    """What was found beside what the file holds of other runs."""
    before = json.loads(target.read_text()) if target.is_file() else {}
    for name in before.keys() & found.keys():
        if isinstance(found[name]["found"].get("ways"), dict):
            found[name]["found"] = _joined(before[name]["found"], found[name]["found"])
    target.write_text(json.dumps({**before, **found}, indent=1) + "\n")


def _joined(old: Found, new: Found) -> Found:
    """Ways that were not measured again stay."""
    return {**old, **new, **{key: {**old[key], **new[key]} for key in ("ways", "seconds", "said")}}


def _chosen(options: argparse.Namespace, goals: Sequence[data.Goal]) -> Iterator[tuple[data.Goal, Features, Features]]:
    for goal in goals:
        if goal.name.startswith(options.only):
            yield goal, *data.load(goal, options.device, 2000 if options.quick else None)


def _goals(options: argparse.Namespace) -> Found:
    return {
        goal.name: methods.measure(goal, train, test, options.repeats, wanted=options.way)
        for goal, train, test in _chosen(options, data.GOALS)
    }


def _shares(options: argparse.Namespace) -> Found:
    return {
        goal.name: shares.measure(goal, train, test, options.repeats)
        for goal, train, test in _chosen(options, data.CURVES)
    }


def _hopeless(options: argparse.Namespace) -> Found:
    train, test = data.load(data.GOALS[0], options.device, 2000 if options.quick else None)
    return {data.GOALS[0].name: hopeless.measure(train, test, 40 * options.repeats)}


def _speed(options: argparse.Namespace) -> Found:
    shapes = ((2000, 64, 10),) if options.quick else speed.SHAPES
    steps = 100 if options.device == "cuda" else 3
    return {
        f"{options.device}, " + " x ".join(map(str, shape)): speed.measure(options.device, shape, steps)
        for shape in shapes
    }


def _defaults(options: argparse.Namespace) -> Found:
    return {"study": study.measure(options.device, options.quick)}


def _threshold(options: argparse.Namespace) -> Found:
    if options.quick:
        return {"study": threshold.measure(options.device, 2, ("mixture of 10",), 5)}
    return {"study": threshold.measure(options.device, options.repeats)}


def _adult(options: argparse.Namespace) -> Found:
    from benchmarks.tune import adult  # scikit-learn, which other parts need not

    return adult.measure(options.repeats, options.quick)


PARTS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "defaults": _defaults,
    "threshold": _threshold,
    "goals": _goals,
    "shares": _shares,
    "hopeless": _hopeless,
    "speed": _speed,
    "adult": _adult,
}


def _machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not known"


if __name__ == "__main__":
    main()
