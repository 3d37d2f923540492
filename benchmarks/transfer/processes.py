"""Features that no photograph is behind, side by side on CIFAR-10: scattering, a network untrained and trained.

It learned from images of random processes alone. Step sizes and steps are an oracle's, as for the heads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import datasets
from benchmarks.transfer import fitting, pretraining
from dpilot.transfer.features import Features
from dpilot.transfer.scattering import scattered

POOL = 400_000
SEED = 7
GRID = {"lrs": tuple(2.0**k for k in range(8)), "steps": (80, 320)}


def network(device: str, seconds: float, pool: int, file: Path | None) -> pretraining.Network:
    """The network that learned from random processes: from the file, or made now and written there."""
    if file is not None and file.exists():
        made = pretraining.Network()
        made.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        return made.to(device, memory_format=torch.channels_last).eval()
    started = time.perf_counter()
    images = pretraining.pool_of(pool, SEED, device)
    print(f"<!-- {pool} images generated in {time.perf_counter() - started:.1f} s -->", flush=True)
    made, steps = pretraining.pretrained(images, seconds, pairs=min(2048, pool // 4))
    print(f"<!-- pretrained: {steps} steps in {seconds:g} s -->", flush=True)
    if file is not None:
        torch.save({name: value.cpu() for name, value in made.state_dict().items()}, file)
    return made


def contenders(
    device: str, learned: pretraining.Network, size: int | None = None
) -> Iterator[tuple[str, Features, Features]]:
    """Training and test features of CIFAR-10 by each of the three, one at a time: they are large."""
    parts = [datasets.load("cifar-10", part) for part in ("train", "test")]
    given = [(part.inputs[:size], part.labels[:size], len(part.classes)) for part in parts]
    fresh = pretraining.untrained(pretraining.pool_of(8192 if size is None else 64, SEED, device))
    for name, made in (("random processes", learned), ("the same network, untrained", fresh)):
        train, test = (pretraining.features(made, *each) for each in given)
        yield name, train.to(device), test.to(device)
    train, test = (scattered(images.to(device), *rest, batch=2048) for images, *rest in given)
    yield "scattering", train.to(device), test.to(device)


def rows(name: str, train: Features, test: Features, grid: dict[str, Any]) -> Iterator[str]:
    """One row of the table for each epsilon."""
    plain = fitting.plain(train, test)
    for epsilon in (1.0, 8.0):
        found = fitting.oracle(train, test, epsilon, centres=False, **grid)
        yield (
            f"| {name} | {train.width:,} | {epsilon:g} | {found.mean:.2%} | {found.spread:.2%} "
            f"| {found.lr:g}, {found.steps} | {plain:.2%} |"
        )
