"""Time, bytes and memory of one step on one process and on two ranks of this machine, the model whole or in pieces.

python -m benchmarks ranks [--quick] [--memory]. Processes on the cores of one machine: they share its memory, and
whatever else runs there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
import warnings
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer

BATCH, STEPS = 512, 12
WIDTHS = (128, 512, 1536)
LARGE, FEW, SHORT = 4096, 64, 4  # 17 million numbers, for their memory; a batch and steps that do not take long
WAYS = ("one process", "rank 0 of two, whole", "rank 0 of two, in pieces")


def model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))


def measure(width: int, *, sharded: bool) -> dict[str, float]:
    """Median seconds a step, by the clock and of this process's processor, the first ones left out."""
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 64, generator=made)
    batch, steps = (FEW, SHORT) if width == LARGE else (BATCH, STEPS)
    plan = Plan.calibrate(Budget(4.0, 1e-5), size=4096, batch_size=batch, steps=steps, clipping="constant")
    ends: list[tuple[float, float]] = []
    net = model(width)
    if sharded:
        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(net)
    trainer = Trainer(
        net,
        nn.CrossEntropyLoss(reduction="none"),
        plan,
        optimizer="adam",
        lr=1e-3,
        callback=lambda _: ends.append((time.perf_counter(), time.process_time())),
        test_seed=0,
    )
    trainer.fit(TensorDataset(inputs, (inputs.sum(1) > 0).long()))
    if not ends:  # another rank than the first
        return {}
    clock, processor = (statistics.median(b - a for a, b in pairwise(each[2:])) for each in zip(*ends, strict=True))
    parameters = sum(each.numel() for each in trainer._job.model.parameters())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"parameters": parameters, "clock": clock, "processor": processor, "peak": peak}


def worker(widths: list[int], *, sharded: bool) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if sharded:
        dist.init_process_group("gloo")
    measured = [measure(width, sharded=sharded) for width in widths]
    if sharded:
        dist.destroy_process_group()
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(measured))


def launch(way: str, widths: list[int]) -> list[dict[str, float]]:
    ranks, pieces = (1 if way == WAYS[0] else 2), (["--sharded"] if way == WAYS[2] else [])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "benchmarks", "ranks", "--worker", *map(str, widths), *pieces]
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
    parser.add_argument("--memory", action="store_true", help="peak memory with a large model instead")
    parser.add_argument("--worker", nargs="+", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sharded", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, sharded=options.sharded)
        return
    widths = [LARGE] if options.memory else list(WIDTHS[:1] if options.quick else WIDTHS)
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    found = [launch(way, widths) for way in WAYS]
    print(f"| parameters | {' | '.join(f'{way}: clock, processor, peak' for way in WAYS)} |")
    print(f"|{'---|' * (1 + len(WAYS))}")
    for row in zip(*found, strict=True):
        cells = [f"{1e3 * r['clock']:.0f}, {1e3 * r['processor']:.0f} ms, {r['peak']:.0f} MiB" for r in row]
        print(f"| {row[0]['parameters']:,.0f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
