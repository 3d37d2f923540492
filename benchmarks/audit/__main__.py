"""python -m benchmarks audit [--quick] [--seeds N] [--steps]: lower bounds on epsilon from one run, and their price.

    power    a made-up task (2,000 records, a network of 10,402 numbers), every released sum seen: the mean lower bound
             at epsilon 1, 4 and 8 for full batches of 20 steps, and for batches of a tenth in 100 steps
    alarms   sound runs whose lower bound is above their epsilon
    cost     accuracy on MNIST (10,000 records, a small network), with 1,000 and 5,000 canaries and without

    steps    with --steps, alone: processor seconds of a step, float and hardened, of perceptrons and convolutional
             networks of 60 thousand, 1 and 10 million numbers (OMP_NUM_THREADS=1)

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


def perceptron(width: int) -> nn.Module:
    hidden = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), *hidden, nn.Linear(width, 10))


def convolutions(channels: int, width: int) -> nn.Module:
    body: list[nn.Module] = [nn.Unflatten(1, (1, 28, 28))]
    for before, after, kernel in ((1, channels, 5), (channels, 2 * channels, 3), (2 * channels, 4 * channels, 3)):
        body += [nn.Conv2d(before, after, kernel, 2, kernel // 2), nn.ReLU()]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(64 * channels, width), nn.ReLU(), nn.Linear(width, 10))


STEPS = {
    "perceptron": [lambda: perceptron(64), lambda: perceptron(550), lambda: perceptron(2050)],
    "convolutions": [lambda: convolutions(16, 32), lambda: convolutions(64, 200), lambda: convolutions(160, 850)],
}


def steps(turns: int) -> None:
    """Float and hardened in turns, the median step of each run, the median of the turns."""
    for what, makes in STEPS.items():
        for make in makes:
            found: dict[str, list[float]] = {"float": [], "hardened": []}
            for _ in range(turns):
                for noise, seconds in found.items():
                    seconds.append(step_of(make(), noise))
            size = sum(parameter.numel() for parameter in make().parameters())
            seconds = {noise: round(float(np.median(each)), 4) for noise, each in found.items()}
            times = round(seconds["hardened"] / seconds["float"], 2)
            say(what="step", model=what, parameters=size, batch=64, turns=turns, times=times, **seconds)


def step_of(model: nn.Module, noise: str) -> float:
    """The median processor time of a step."""
    x, marks = torch.randn(2048, 784), list[float]()
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=2048, sample_rate=1 / 32, steps=8, clipping="constant")
    run = Trainer(model, LOSS, plan, lr=0.01, noise=noise, callback=lambda _: marks.append(time.process_time()))
    run.fit(TensorDataset(x, torch.arange(2048) % 10))
    return float(np.median(np.diff(marks)))


def mean(figures: list[float]) -> float:
    return round(float(np.mean(figures)), 4)


def say(**line: Any) -> None:
    print(json.dumps({**line, "at": round(time.time())}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", action="store_true")
    options = parser.parse_args()
    if options.steps:
        steps(1 if options.quick else 5)
        return
    seeds = 1 if options.quick else options.seeds
    power(seeds, (1000,) if options.quick else (1000, 5000))
    cost(seeds)


if __name__ == "__main__":
    main()
