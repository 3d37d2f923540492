"""Four trials of an LSTM, which does not stack: two at a time in processes of their own beside one after the other.

``python -m benchmarks.tune.pool [STEPS] [ROUNDS]`` prints what ``measure`` finds.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot.privacy.receipt import Receipt
from dpilot.tune import Candidate, ModuleTask
from dpilot.tune.task import Outlay

RECORDS, LENGTH, WIDTH, CLASSES, RATE, TRIALS = 4_000, 32, 16, 4, 0.064, 4


class Reader(nn.Module):
    """One layer of 64 cells over 32 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(WIDTH, 64, batch_first=True)
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.cells(x)[0][:, -1])
        return found


def measure(steps: int = 150, rounds: int = 3, workers: int = 2) -> dict[str, float]:
    """Median seconds of each way, taken in turns, and the median of their ratios; starting processes is included.

    Seconds of processors, of all processes together, are given beside those of the clock: others' work moves them less.
    """
    ways = {"apart": (1, steps), "pool": (workers, steps), "pool of one step": (workers, 1)}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (count, length) in ways.items():
            taken[name].append(_seconds(_task(count), length))
    pairs = zip(taken["pool"], taken["apart"], strict=True)
    return {
        **{f"{name} (s)": round(statistics.median(clock for clock, _ in each), 2) for name, each in taken.items()},
        **{f"{name} (CPU s)": round(statistics.median(used for _, used in each), 2) for name, each in taken.items()},
        "pool / apart": round(statistics.median(pool[0] / apart[0] for pool, apart in pairs), 3),
        "steps": steps,
        "threads": torch.get_num_threads(),
    }


def _task(workers: int) -> ModuleTask:
    made = torch.Generator().manual_seed(0)
    values = torch.randn(RECORDS, LENGTH, WIDTH, generator=made)
    data = TensorDataset(values, values[:, -1].argmax(1) % CLASSES)
    how = {"sample_rate": RATE, "options": {"chunk_size": 256}, "workers": workers}
    loss = nn.CrossEntropyLoss(reduction="none")
    return ModuleTask(make, loss, data, TensorDataset(*data[:8]), RECORDS, 8, CLASSES, **how)  # type: ignore[arg-type]


def make() -> nn.Module:
    """A new reader. Workers find it in this module, by the name that it is imported as."""
    return Reader()


def _seconds(task: ModuleTask, steps: int) -> tuple[float, float]:
    """By the clock, and of processors: this process and those that ended meanwhile."""
    outlay = Outlay(1.0, RATE, steps)
    trials = [outlay.trial(Candidate(0.1, steps), Receipt(outlay.event)) for _ in range(TRIALS)]
    task.recipe.plan(trials[0])  # the price that a plan shows takes longer than some runs: once, and before
    started, used = time.perf_counter(), _used()
    task.train(trials)
    return time.perf_counter() - started, _used() - used


def _used() -> float:
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(each.ru_utime + each.ru_stime for each in map(resource.getrusage, whose))


if __name__ == "__main__":
    from benchmarks.tune import pool  # not of __main__, which workers do not import

    print(json.dumps(pool.measure(*map(int, sys.argv[1:3])), indent=1))
