"""Seven trials beside one: the time of a step of a ProbeTask, all heads in one product."""

from __future__ import annotations

import statistics
import time

import torch

from dpilot import Budget
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features
from dpilot.tune import Candidate, ProbeTask
from dpilot.tune.outlays import equal_outlay

SHAPES = ((50_000, 64, 10), (50_000, 1_280, 10), (60_000, 3_969, 10))


def measure(device: str, shape: tuple[int, int, int], steps: int, rounds: int = 5) -> dict[str, float]:
    """Median seconds of a step of 1 and of 7 trials, taken in turns, and the median of their ratios."""
    n, width, classes = shape
    values = torch.nn.functional.normalize(torch.randn(n, width, device=device))
    features = Features(values, torch.randint(classes, (n,), device=device), classes)
    task = ProbeTask(features, features.take([]), n, 1.0)
    _seconds(task, 7, 2, device)
    pairs = [(_a_step(task, 1, steps, device), _a_step(task, 7, steps, device)) for _ in range(rounds)]
    return {
        "one": statistics.median(one for one, _ in pairs),
        "seven": statistics.median(seven for _, seven in pairs),
        "ratio": statistics.median(seven / one for one, seven in pairs),
    }


def _a_step(task: ProbeTask, count: int, steps: int, device: str) -> float:
    """What one more step takes: what a run does once, before its first step, is left out."""
    return (_seconds(task, count, 1 + steps, device) - _seconds(task, count, 1, device)) / steps


def _seconds(task: ProbeTask, count: int, steps: int, device: str) -> float:
    outlay = equal_outlay(Budget(1.0, 1e-5), count)
    trials = [outlay.trial(Candidate(1.0, steps), Receipt(outlay.event)) for _ in range(count)]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    task.train(trials)
    wait()
    return time.perf_counter() - started
