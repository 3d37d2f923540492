"""Time and bytes of one step on one process and on several ranks of this machine: python -m benchmarks ranks [--quick].

Processes on the cores of one machine: they share its memory, and whatever else runs there.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import warnings
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer

BATCH, STEPS = 512, 12
WIDTHS = (128, 512, 1536)


def model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))


def measure(width: int) -> dict[str, float]:
    """Median seconds a step, by the clock and of this process's processor, the first ones left out."""
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 64, generator=made)
    plan = Plan.calibrate(Budget(4.0, 1e-5), size=4096, batch_size=BATCH, steps=STEPS, clipping="constant")
    ends: list[tuple[float, float]] = []
    trainer = Trainer(
        model(width),
        nn.CrossEntropyLoss(reduction="none"),
        plan,
        callback=lambda _: ends.append((time.perf_counter(), time.process_time())),
        test_seed=0,
    )
    trainer.fit(TensorDataset(inputs, (inputs.sum(1) > 0).long()))
    if not ends:  # another rank than the first
        return {}
    clock, processor = (statistics.median(b - a for a, b in pairwise(each[2:])) for each in zip(*ends, strict=True))
    parameters = sum(each.numel() for each in trainer._job.model.parameters())
    return {"parameters": parameters, "clock": clock, "processor": processor}


def worker(widths: list[int]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    measured = [measure(width) for width in widths]
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(measured))


def launch(ranks: int, widths: list[int]) -> list[dict[str, float]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "benchmarks", "ranks", "--worker", *map(str, widths)]
    several = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if ranks > 1 else {}
    started = [
        subprocess.Popen(command, env={**os.environ, **several, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    said = [process.communicate()[0] for process in started]
    return json.loads(said[0])  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ranks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest model only")
    parser.add_argument("--worker", nargs="+", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    widths = list(WIDTHS[:1] if options.quick else WIDTHS)
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    alone, together = launch(1, widths), launch(2, widths)
    print("| parameters | to rank 0 (8 P) | back (4 P) | one process: clock, processor | rank 0 of two: the same |")
    print("|---|---|---|---|---|")
    for one, two in zip(alone, together, strict=True):
        size = one["parameters"]
        print(
            f"| {size:,.0f} | {8 * size / 1e6:.2f} MB | {4 * size / 1e6:.2f} MB "
            f"| {1e3 * one['clock']:.0f}, {1e3 * one['processor']:.0f} ms "
            f"| {1e3 * two['clock']:.0f}, {1e3 * two['processor']:.0f} ms |"
        )


if __name__ == "__main__":
    main()
