"""One epoch of CNN-2 on Fashion-MNIST: private training beside plain PyTorch with the same batches, and beside Opacus.

DPILOT_DATA=folder python -m benchmarks train [--quick]

Loading is included everywhere: every batch is gathered from the same tensors. What a run does once (pricing, rehearsal)
is timed apart. Contenders take turns, and each ratio is the median over rounds of ratios within a round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import datasets
from dpilot import Budget, Plan, Trainer
from dpilot.sampling import PoissonSampler
from dpilot.transfer import models

BATCH, EPSILON, DELTA, LR = 512, 3.0, 1e-5, 0.5
clock = time.process_time if "--cpu" in sys.argv else time.perf_counter


def dataset(size: int) -> TensorDataset:
    """The first ``size`` training images, as floats in [0, 1]."""
    part = datasets.load("fashion-mnist", "train")
    return TensorDataset(part.inputs[:size].float().div(255), part.labels[:size])


def plain(data: TensorDataset) -> tuple[float, float]:
    """Seconds of a plain epoch on Poisson batches of the same rate."""
    model, criterion = models.get("cnn-2"), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    sampler = PoissonSampler(BATCH / len(data), round(len(data) / BATCH))
    started = clock()
    for batch in sampler.batches(len(data)):
        sampler.claim(batch)
        inputs, targets = data[torch.from_numpy(batch.indices)]
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
    return clock() - started, 0.0


def private(data: TensorDataset, plan: Plan) -> tuple[float, float]:
    """Seconds of the steps of a private epoch, and of everything a run does once."""
    chosen = Plan.from_json(plan.to_json())
    marks: list[float] = []
    begun = clock()
    loss, mark = nn.CrossEntropyLoss(reduction="none"), lambda _: marks.append(clock())
    Trainer(models.get("cnn-2"), loss, chosen, lr=LR, callback=mark).fit(data)
    whole = clock() - begun
    steps = (marks[-1] - marks[0]) * plan.steps / (plan.steps - 1)
    return steps, whole - steps


def opacus(data: TensorDataset, mode: str) -> tuple[float, float]:
    """Seconds of an Opacus epoch, and of making the model private."""
    from opacus import PrivacyEngine

    model, criterion = models.get("cnn-2"), nn.CrossEntropyLoss()
    begun = clock()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        data_loader=DataLoader(data, batch_size=BATCH),
        criterion=criterion,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    model, optimizer, *rest = made
    criterion, loader = (rest[0], rest[1]) if len(rest) == 2 else (criterion, rest[0])
    started = clock()
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
    return clock() - started, started - begun


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks train", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=60_000, help="how many of the 60,000")
    parser.add_argument("--cpu", action="store_true", help="processor seconds of this process, for a busy machine")
    options = parser.parse_args()
    if "DPILOT_DATA" not in os.environ:
        print("skipped: DPILOT_DATA does not name the folder of data sets", file=sys.stderr)
        return 0
    warnings.simplefilter("ignore")
    data = dataset(6_000 if options.quick else options.records)
    plans = {
        name: Plan.calibrate(Budget(EPSILON, DELTA), size=len(data), batch_size=BATCH, epochs=1, clipping=name)
        for name in ("constant", "bounded-slack")
    }
    contenders: dict[str, Callable[[], tuple[float, float]]] = {
        "plain PyTorch": lambda: plain(data),
        "dpilot, constant": lambda: private(data, plans["constant"]),
        "dpilot, bounded-slack": lambda: private(data, plans["bounded-slack"]),
        "Opacus, hooks": lambda: opacus(data, "hooks"),
        "Opacus, ghost": lambda: opacus(data, "ghost"),
    }
    report(contenders, 1 if options.quick else options.rounds)
    return 0


def report(contenders: dict[str, Callable[[], tuple[float, float]]], rounds: int) -> None:
    """Take turns, and print a table of medians."""
    plain(TensorDataset(torch.zeros(600, 1, 28, 28), torch.zeros(600).long()))  # warm up
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            taken[name].append(run())
    print(f"threads {torch.get_num_threads()}, rounds {rounds}, medians; ratios within a round\n")
    print("| | epoch, seconds | times plain | once, seconds |\n|---|---|---|---|")
    base = [seconds for seconds, _ in taken["plain PyTorch"]]
    for name, found in taken.items():
        ratio = statistics.median(seconds / plain for (seconds, _), plain in zip(found, base, strict=True))
        median, once = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"| {name} | {median:.1f} | {ratio:.2f} | {once:.1f} |")


if __name__ == "__main__":
    raise SystemExit(main())
