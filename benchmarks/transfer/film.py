"""FiLM on WRN-16-4 (CIFAR-100) for CIFAR-10: the private figure of a small grid, and what the same model does plainly.

Every private run is the product's own: ``transfer.prepare``, ``Plan.calibrate``, ``Trainer`` with Poisson batches. The
step size and the threshold are the best of a grid by test accuracy in one run of each: an oracle, not paid for.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks import datasets
from dpilot import Budget, Plan, Trainer, clipping, transfer
from dpilot.train.run import predict
from dpilot.transfer import backbones

DELTA = 1e-5
BATCH = 4096
LRS = (0.008, 0.016, 0.032)
THRESHOLDS = (1.0, 10.0)
REPEATS = 5
LOSS = nn.CrossEntropyLoss(reduction="none")


@dataclass(frozen=True, slots=True)
class Images:
    """Images as the network wants them, on one device, and their classes."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same in every run: how long, in which chunks, and whether in halves."""

    epochs: float = 8.0
    batch: int = BATCH
    chunk: int = 4608  # a whole batch, practically always: quickest where it fits
    amp: bool = False
    method: str = "film"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the grid chooses."""

    lr: float
    threshold: float = 1.0


def load(device: str, size: int | None = None) -> Images:
    """CIFAR-10 prepared for WRN-16-4; only the first ``size`` of each part if given."""
    backbone: Any = backbones.load("wrn-16-4")
    backbone.model.to(device)
    parts = [datasets.load("cifar-10", part) for part in ("train", "test")]
    train, test = ((backbone.prepared(p.inputs[:size]), p.labels[:size].to(device)) for p in parts)
    return Images(train, test, len(parts[0].classes))


def prepared(images: Images, method: str) -> nn.Module:
    """A fresh copy of the pretrained network on the images' device, with what the method trains."""
    backbone: Any = backbones.load("wrn-16-4")
    return transfer.prepare(backbone.model.to(images.train[0].device), method=method, classes=images.classes)


def calibrated(images: Images, epsilon: float, setting: Setting) -> Plan:
    """The plan of one budget; runs of the grid take it with their own thresholds."""
    size = len(images.train[1])
    batch = min(setting.batch, size)
    return Plan.calibrate(Budget(epsilon, DELTA), size=size, batch_size=batch, epochs=setting.epochs)


def private(images: Images, plan: Plan, recipe: Recipe, setting: Setting) -> tuple[float, float]:
    """Test accuracy of one private run, and the seconds it took."""
    model, rule = prepared(images, setting.method), clipping.get("constant", threshold=recipe.threshold)
    started = time.perf_counter()
    run = Trainer(
        model,
        LOSS,
        replace(plan, clipping=rule),
        optimizer="adam",
        lr=recipe.lr,
        schedule="cosine",
        chunk_size=setting.chunk,
        amp=setting.amp,
    ).fit(TensorDataset(*images.train))
    found = accuracy(images, run.model)
    return found, time.perf_counter() - started


def plain(images: Images, lr: float, setting: Setting, batch: int = 512) -> float:
    """Test accuracy of the same parameters trained by Adam without clipping, noise or sampling."""
    model, (inputs, labels) = prepared(images, setting.method), images.train
    steps = max(1, round(setting.epochs * len(labels) / batch))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    shuffled = torch.cat([torch.randperm(len(labels)) for _ in range(1 + steps * batch // len(labels))])
    for rows in shuffled.to(labels.device).split(batch)[:steps]:
        optimizer.zero_grad()
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=setting.amp):
            loss = LOSS(model(inputs[rows]), labels[rows]).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
    return accuracy(images, model)


def accuracy(images: Images, model: nn.Module) -> float:
    """The share of test records whose class is found."""
    inputs, labels = images.test
    return float((predict(model, inputs).argmax(1) == labels.cpu()).double().mean())


def grid(
    images: Images, plan: Plan, setting: Setting, lrs=LRS, thresholds=THRESHOLDS
) -> Iterator[tuple[Recipe, float]]:
    """Step sizes at the first threshold, then the best of them at the others: each recipe with its accuracy."""
    found = []
    for lr in lrs:
        recipe = Recipe(lr, thresholds[0])
        found.append((private(images, plan, recipe, setting)[0], recipe))
        yield recipe, found[-1][0]
    best = max(found, key=lambda each: each[0])[1]
    for threshold in thresholds[1:]:
        recipe = replace(best, threshold=threshold)
        yield recipe, private(images, plan, recipe, setting)[0]


def row(
    images: Images, epsilon: float, setting: Setting, *, lrs=LRS, thresholds=THRESHOLDS, repeats: int = REPEATS
) -> Iterator[str]:
    """What the grid finds, as comments, then a row of the table: fresh runs of the best recipe, or of the only one."""
    plan, found = calibrated(images, epsilon, setting), [(0.0, Recipe(lrs[0], thresholds[0]))]
    for recipe, score in grid(images, plan, setting, lrs, thresholds) if len(lrs) + len(thresholds) > 2 else ():
        found.append((score, recipe))
        yield f"<!-- epsilon {epsilon:g}: lr {recipe.lr:g}, C {recipe.threshold:g}: {score:.2%} -->"
    best = max(found, key=lambda each: each[0])[1]
    runs = []
    for _ in range(repeats):
        runs.append(private(images, plan, best, setting))
        yield f"<!-- epsilon {epsilon:g}, the best recipe again: {runs[-1][0]:.2%} -->"
    scores, seconds = [score for score, _ in runs], statistics.median(taken for _, taken in runs)
    yield (
        f"| {setting.method} | {epsilon:g} | {statistics.mean(scores):.2%} | {statistics.stdev(scores):.2%} "
        f"| {best.lr:g}, {best.threshold:g} | {setting.batch}, {plan.steps}, {plan.noise_multiplier:.3f} "
        f"| {seconds:.1f} |"
    )


def rate(images: Images, setting: Setting, steps: int = 6) -> float:
    """Records that the Trainer takes a second, from the times between its steps; the first ones are warm-up."""
    plan = Plan.calibrate(
        Budget(8.0, DELTA), size=len(images.train[1]), batch_size=setting.batch, steps=steps, clipping="constant"
    )
    times: list[float] = []

    def tick(_: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    model = prepared(images, setting.method)
    options = {"optimizer": "adam", "lr": 1e-3, "chunk_size": setting.chunk, "amp": setting.amp}
    Trainer(model, LOSS, plan, callback=tick, **options).fit(TensorDataset(*images.train))  # type: ignore[arg-type]
    apart = [after - before for before, after in itertools.pairwise(times[1:])]
    return setting.batch / statistics.median(apart)
