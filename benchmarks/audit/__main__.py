"""python -m benchmarks audit [--quick] [--seeds N]: lower bounds on epsilon from one run, and the price of canaries.

    power    a made-up task (2,000 records, a network of 10,402 numbers), every released sum seen: the mean lower bound
             at epsilon 1, 4 and 8 for full batches of 20 steps, and for batches of a tenth in 100 steps
    alarms   sound runs whose lower bound is above their epsilon
    cost     accuracy on MNIST (10,000 records, a small network), with 1,000 and 5,000 canaries and without

Lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer
from dpilot.audit import Canaries
from dpilot.train.run import Run

LOSS = nn.CrossEntropyLoss(reduction="none")


def made_up(seed: int) -> TensorDataset:
    x = torch.randn(2000, 100, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] > 0).long())


def train(data: TensorDataset, model: nn.Module, epsilon: float, rate: float, steps: int, canaries: int) -> Run:
    size = len(data)
    plan = Plan.calibrate(Budget(epsilon, 1e-5), size=size, sample_rate=rate, steps=steps, clipping="constant")
    return Trainer(model, LOSS, plan, lr=0.5, audit=Canaries(canaries) if canaries else None).fit(data)


def power(seeds: int, counts: tuple[int, ...]) -> None:
    for epsilon in (1.0, 4.0, 8.0):
        for rate, steps in ((1.0, 20), (0.1, 100)):
            for count in counts:
                runs = [power_of(seed, epsilon, rate, steps, count) for seed in range(seeds)]
                bounds = [run.audit() for run in runs]
                say(
                    what="power", epsilon=epsilon, rate=rate, steps=steps, canaries=count, runs=seeds,
                    any=mean([each.epsilon for each in bounds]),
                    gaussian=mean([each.gaussian_epsilon for each in bounds]),
                    alarms=sum(each.epsilon > run.epsilon for each, run in zip(bounds, runs, strict=True)),
                )  # fmt: skip


def power_of(seed: int, epsilon: float, rate: float, steps: int, count: int) -> Run:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3))
    return train(made_up(seed), model, epsilon, rate, steps, count)


def cost(seeds: int) -> None:
    from benchmarks.datasets.images import grey

    def load(part: str, size: int) -> TensorDataset:
        found = grey("mnist", part)
        return TensorDataset(found.inputs[:size].float().flatten(1) / 255 - 0.13, found.labels[:size])

    data, held_out = load("train", 10_000), load("test", 10_000)
    for epsilon in (1.0, 4.0):
        for count in (0, 1000, 5000):
            figures = []
            for seed in range(seeds):
                torch.manual_seed(seed)
                model = nn.Sequential(nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10))
                run = train(data, model, epsilon, 0.05, 200, count)
                right = run.predict(held_out.tensors[0]).argmax(1) == held_out.tensors[1]
                figures.append(float(right.double().mean()))
            say(
                what="cost",
                epsilon=epsilon,
                canaries=count,
                runs=seeds,
                accuracy=mean(figures),
                sd=float(np.std(figures)),
            )


def mean(figures: list[float]) -> float:
    return round(float(np.mean(figures)), 4)


def say(**line: Any) -> None:
    print(json.dumps({**line, "at": round(time.time())}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    seeds = 1 if options.quick else options.seeds
    power(seeds, (1000,) if options.quick else (1000, 5000))
    cost(seeds)


if __name__ == "__main__":
    main()
