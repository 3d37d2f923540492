"""Data sets and collate functions that draw, or seed, random numbers as they read a record."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from dpilot import Budget, Plan, PrivateStep, Trainer, audit, poisson_loader
from dpilot.privacy.unit import PrivacyUnit
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
    expected = torch.rand(3)
    torch.manual_seed(4)
    list(Reader(Seeds({2: 9}), None).chunks([np.arange(N)]))
    assert (torch.rand(3) == expected).all()


SHARED = np.random.default_rng(0)


EXTRA, LAST = 3, N - 1


class Turned(Dataset):
    """Each record lies on an axis of its own, turned round by a draw; two draw more often, one may be null."""

    def __init__(self, draw: Any = None, *, lists: bool = False, null: int | None = None) -> None:
        self.draw, self.lists, self.null = draw, lists, null
        self.held = [np.random.default_rng(0)]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == self.null or index >= N:
            raise IndexError
        for _ in range(1 + (index in (EXTRA, LAST))):
            drawn = torch.rand(()).item() if self.draw is None else self.draw(self, index)
        record = torch.eye(N)[index] * (1 if drawn < 0.5 else -1), torch.zeros(1)
        return [record] if self.lists else record


def of_an_attribute(data: Turned, _: int) -> float:
    return float(data.held[0].random())


def of_a_global_variable(*_: Any) -> float:
    return float(SHARED.random())


def of_a_seed_of_its_own(_: Turned, index: int) -> float:
    torch.manual_seed(index)
    return torch.rand(()).item()


EXAMPLE = torch.zeros(1, N), torch.zeros(1, 1)


def sums(data: Dataset, unit: PrivacyUnit | None = None, *, own: bool, example: Any = EXAMPLE, workers: int = 0) -> Any:
    """What a run says, and where it leaves torch's generator, seeded by everybody's favourite seed."""
    torch.manual_seed(0)
    many = replace(plan(), unit=unit) if unit else plan()
    trained = nn.Sequential(nn.Dropout(0.5 if unit else 0.0), nn.Linear(N, 1, bias=False))
    if own:
        descent = torch.optim.SGD(trained.parameters(), lr=0.1)
        step = PrivateStep(trained, loss, descent, many, chunk_size=16, example=example)
        said: Any = [step(batch).threshold for batch in poisson_loader(data, many, num_workers=workers)]
    else:
        said = Trainer(trained, loss, many, lr=0.1, chunk_size=16, example=example).fit(data).thresholds
    return said, torch.rand(()).item()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("draw", [of_an_attribute, of_a_global_variable])
@pytest.mark.parametrize("holder", [None, lambda data: ConcatDataset([Subset(data, range(N))])])
def test_a_generator_that_a_data_set_holds_gives_each_record_draws_of_its_own(
    draw: Any, holder: Any, own: bool
) -> None:
    """It went on from record to record: one more turned those behind it by other numbers (5 bounds)."""
    pair = Turned(draw, null=EXTRA), Turned(draw)
    with places_in_order():
        found = audit.replay(lambda data: sums(data, own=own), *(map(holder, pair) if holder else pair))
    assert found.largest <= 1 + 1e-6
    assert not found.differences


def test_a_generator_that_a_collate_function_holds_gives_each_record_draws_of_its_own() -> None:
    def run(data: Dataset) -> Any:
        held = np.random.default_rng(0)

        def collate(records: list[Any]) -> Any:
            ((axis, target),) = records
            sign = [held.choice([-1.0, 1.0]) for _ in range(1 + int(axis[EXTRA]))][-1]
            return sign * axis[None], target[None]

        trained = nn.Linear(N, 1, bias=False)
        run = Trainer(trained, loss, plan(), lr=0.1, chunk_size=16, example=EXAMPLE, collate_fn=collate)
        return run.fit(data).thresholds

    still = lambda *_: 0.0  # noqa: E731
    with places_in_order():
        found = audit.replay(run, Turned(still, null=EXTRA), Turned(still))
    assert found.largest <= 1 + 1e-6
    assert not found.differences


@pytest.mark.parametrize("draw", [None, of_a_seed_of_its_own, of_an_attribute])
def test_a_person_who_is_read_as_a_list_moves_no_draw_of_others(draw: Any) -> None:
    """A list that seeds as it is read decided the dropout of all persons behind it."""
    unit = PrivacyUnit("person", 2)
    persons = [Turned(draw, lists=True, null=null) for null in (LAST, None)]
    with places_in_order():
        found = audit.replay(lambda data: sums(data, unit, own=False), *persons)
    assert found.largest <= 1 + 1e-6
    assert not found.differences


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("lists", [False, True])
def test_no_generator_tells_how_many_records_could_not_be_read(own: bool, lists: bool) -> None:
    """Where the first record shows the form, each one that could not be read moved torch's generator."""
    unit = PrivacyUnit("person", 2) if lists else None
    ends = []
    for null in (None, 0):
        ends.append(sums(Turned(lists=lists, null=null), unit, own=own, example=None)[1])
    assert ends[0] == ends[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_no_seed_of_torch_decides_the_draws_of_a_loop_of_ones_own(workers: int) -> None:
    """Whoever knows the seed knew all draws, by the records' numbers: with one more in front others turned (5.7)."""

    def drawn() -> list[bool]:
        many, trained = plan(), nn.Linear(N, 1)
        loader = poisson_loader(Turned(), many, num_workers=workers)
        PrivateStep(trained, loss, torch.optim.SGD(trained.parameters(), lr=0.1), many, example=EXAMPLE)
        torch.manual_seed(0)
        return [bool(turned) for batch in loader for turned in batch[0].sum(1) < 0]

    assert drawn() != drawn()  # equal once in 2^24
