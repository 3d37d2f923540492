"""Processor time of heads, trials and linear models in this state of the source and in another, taken in turns.

    git worktree add ../before COMMIT && python -m benchmarks.house.speed ../before/src [--minutes 20]

Each state has a process of its own that stays warm; they are asked in the order old, new, new, old.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house.speed")
    parser.add_argument("before", type=Path, help="the folder src of the state to compare with")
    parser.add_argument("--minutes", type=float, default=20.0)
    arguments = parser.parse_args()
    old, new = _start(arguments.before), _start(SOURCE)
    before, now = _answer(old), _answer(new)
    names: list[str] = [name for name in now if name in before]
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    end = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end or len(seconds[names[0]]) < 2:
        for name in names:
            first, second, third, fourth = (_ask(state, name) for state in (old, new, new, old))
            seconds[name].append(((first + fourth) / 2, (second + third) / 2))
    print("| processor time | before (ms) | now (ms) | ratio | standard error |\n|---|---|---|---|---|")
    for name, pairs in seconds.items():
        ratios = [after / before for before, after in pairs]
        first, second = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        error = statistics.stdev(ratios) / len(ratios) ** 0.5
        print(f"| {name} | {first:.2f} | {second:.2f} | {statistics.median(ratios):.3f} | {error:.3f} |")
    for state in (old, new):
        state.stdin.close()  # which ends it
        state.wait()


def _start(source: Path) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--measure"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _answer(state: Any) -> Any:
    return json.loads(state.stdout.readline())


def _ask(state: Any, name: str) -> float:
    state.stdin.write(f"{name}\n")
    state.stdin.flush()
    return float(_answer(state))


def measure() -> None:
    """In a process of one state: names of what can be measured, then seconds of what is asked for on a line."""
    known = _work()
    for work in known.values():
        work()  # what only a first run does
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        print(json.dumps(known[line.strip()]()), flush=True)


def _work() -> dict[str, Callable[[], float]]:
    import numpy as np
    import torch

    from dpilot import Budget
    from dpilot.linear import LinearRegression, LogisticRegression
    from dpilot.privacy.receipt import Receipt
    from dpilot.transfer.features import Features
    from dpilot.transfer.probe import Head, fit_heads
    from dpilot.tune import Candidate, ProbeTask
    from dpilot.tune.outlays import equal_outlay

    torch.set_num_threads(1)
    torch.manual_seed(0)

    def features(records: int, width: int) -> Features:
        values = torch.nn.functional.normalize(torch.randn(records, width))
        return Features(values, torch.randint(10, (records,)), 10)

    def heads(values: Features, count: int, steps: int) -> float:
        made = [Head(lr=1.0 + j, steps=steps, noise_multiplier=10.0 + j) for j in range(count)]
        receipts = [Receipt(head.event) for head in made]
        return _seconds(lambda: fit_heads(values, made, receipts=receipts, size=len(values)))

    def trials(steps: int) -> float:
        outlay = equal_outlay(Budget(1.0, 1e-5), 7)
        made = [outlay.trial(Candidate(1.0, steps), Receipt(outlay.event)) for _ in range(7)]
        return _seconds(lambda: task.train(made))

    def fit(method: str) -> float:
        return _seconds(lambda: LinearRegression(method=method, size=len(rows)).fit(rows, numbers))

    narrow, wide = features(20_000, 64), features(6_000, 1_280)
    task = ProbeTask(narrow, narrow.take([]), len(narrow), 1.0)
    made = np.random.default_rng(0)
    rows = made.normal(size=(20_000, 10))
    numbers = rows @ made.normal(size=10) + made.normal(size=20_000)
    logistic = LogisticRegression(classes=[0, 1], size=len(rows))
    return {
        "a step of 1 head, 20,000 x 64": lambda: (heads(narrow, 1, 43) - heads(narrow, 1, 3)) / 40,
        "a step of 7 heads, 20,000 x 64": lambda: (heads(narrow, 7, 18) - heads(narrow, 7, 3)) / 15,
        "a step of 7 heads, 6,000 x 1,280": lambda: (heads(wide, 7, 11) - heads(wide, 7, 3)) / 8,
        "a step of 7 trials, 20,000 x 64": lambda: (trials(18) - trials(3)) / 15,
        "7 trials of one step": lambda: trials(1),
        "adassp, 20,000 x 10": lambda: fit("adassp"),
        "boosted, 20,000 x 10": lambda: fit("boosted"),
        "bsgs, 20,000 x 10": lambda: fit("bsgs"),
        "logistic, 20,000 x 10": lambda: _seconds(lambda: logistic.fit(rows, (numbers > 0).astype(int))),
    }


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    measure() if "--measure" in sys.argv else main()
