"""Data sets and collate functions that draw, or seed, random numbers as they read a record."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from dpilot import Budget, Plan, PrivateStep, Trainer, audit, poisson_loader
from tests.attacks.judge import places_in_order

N = 12


class Seeds(Dataset):
    """Every record draws; those that are named seed all generators first, as some augmentations do."""

    def __init__(self, seeding: dict[int, int], length: int = N) -> None:
        self.seeding, self.length = seeding, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index >= self.length:
            raise IndexError
        if index in self.seeding:
            torch.manual_seed(self.seeding[index])
            np.random.seed(self.seeding[index])
            random.seed(self.seeding[index])
        drawn = torch.rand(1) + np.random.rand() + random.random()
        return (drawn > 1.5).float().reshape(1), torch.zeros(1)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1, bias=False))


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -outputs.squeeze(1) - 0 * targets.squeeze(1)


def plan() -> Plan:
    return Plan.calibrate(Budget(1.0, 1e-5), size=N, batch_size=N, steps=2, clipping="constant")


def collate_and_seed(records: list[Any]) -> Any:
    torch.manual_seed(7)
    return tuple(torch.stack(parts) for parts in zip(*records, strict=True))


@pytest.mark.parametrize("collate", [None, collate_and_seed])
def test_a_record_that_seeds_moves_its_own_draws_alone(collate: Any) -> None:
    """The seeding record is the last one: with it and without, the other records draw the same, in data and model."""

    def train(data: Dataset) -> Any:
        run = Trainer(model(), loss, plan(), lr=0.1, chunk_size=16, collate_fn=collate)
        return run.fit(data).thresholds

    for seeding in ({N: 3}, {N: 3, 0: 5}):
        before = {number: seed for number, seed in seeding.items() if number < N}
        with places_in_order():
            found = audit.replay(train, Seeds(before), Seeds(seeding, N + 1))
        assert not [each for each in found.differences if "more than its bound" in each]
        assert found.largest <= 1 + 1e-6


def test_records_that_seed_alike_do_not_share_the_dropout_of_a_model() -> None:
    """All seeding with one seed, the model's own draws are still those of the step."""
    sums = set()
    for _ in range(6):
        releases: list[float] = []

        def watch(record: Any, kept: list[float] = releases) -> None:
            kept.append(record.length)

        trainer = Trainer(model(), loss, plan(), lr=0.0001, chunk_size=16, callback=watch)
        trainer.fit(Seeds(dict.fromkeys(range(N), 1)))
        sums.add(round(releases[0], 6))
    assert len(sums) > 1


def test_a_loop_of_ones_own_gives_each_record_draws_of_its_own() -> None:
    def train(data: Dataset) -> Any:
        torch.manual_seed(1)
        own = plan()
        trained = model()
        step = PrivateStep(trained, loss, torch.optim.SGD(trained.parameters(), lr=0.1), own, chunk_size=16)
        return [step(batch).threshold for batch in poisson_loader(data, own)]

    with places_in_order():
        found = audit.replay(train, Seeds({}), Seeds({N: 3}, N + 1))
    assert not [each for each in found.differences if "more than its bound" in each]


def test_the_generators_are_where_they_were_after_records_were_read() -> None:
    from dpilot.train.batches.reader import Reader

    torch.manual_seed(4)
    torch.randint(256, (16,), dtype=torch.uint8)
    expected = torch.rand(3)
    torch.manual_seed(4)
    list(Reader(Seeds({2: 9}), None).chunks([np.arange(N)]))
    assert (torch.rand(3) == expected).all()
