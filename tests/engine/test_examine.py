"""Made-up samples: which sizes are tried, what is refused by operations and what by numbers, what is remembered."""

from __future__ import annotations

from functools import lru_cache
from queue import Queue
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine import api, made_up
from dpilot.engine.base import NoRule
from dpilot.engine.batch import Chunk
from dpilot.engine.trace.watch import Verdict
from dpilot.errors import UnsupportedModel


def squared(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().sum(1)


def pair(n: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randn(n, 2)


class Centred(nn.Linear):
    """Centres chunks of one size."""

    def __init__(self, size: int) -> None:
        super().__init__(4, 2)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0) if len(x) == self.size else x)


class Picking(nn.Linear):
    """Which rows a record takes depends on the records."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[x[:, 0].argsort()])


def test_sizes_are_the_batchs_own_and_one_that_is_prime_to_every_width() -> None:
    assert made_up.sizes(Chunk(nn.Linear(6, 5), squared, (torch.zeros(8, 6), torch.zeros(8, 3, 7)), 8)) == [11, 8]
    assert made_up.sizes(Chunk(nn.Linear(4, 2), squared, pair(1), 1)) == [3]


def test_no_size_is_a_length_of_something_that_all_samples_share() -> None:
    """Buffers, the loss's own, and tensors of the batch without a row a sample, which would be taken for samples."""
    model, loss = nn.Linear(4, 2), nn.CrossEntropyLoss(weight=torch.ones(5))
    model.register_buffer("positions", torch.zeros(3, 7))
    batch = (torch.zeros(8, 4), torch.zeros(11, 13)), torch.zeros(8, dtype=torch.long)
    assert made_up.sizes(Chunk(model, loss, batch, 8)) == [17, 8]
    assert made_up.free_size(Chunk(model, loss, batch, 8), 2) == 17


@pytest.mark.parametrize("way", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("rows", [2, 3])
def test_a_table_of_the_batch_with_few_rows_is_not_taken_for_samples(way: str, rows: int) -> None:
    class Reads(nn.Linear):
        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            assert len(table) == rows  # each sample, however it is computed, has all of it
            return super().forward(x[x[:, 0].argsort()] if way == "auto" else x) + table.sum()

    (x, y), table = pair(), torch.ones(rows, 5)
    found = engine.per_sample(Reads(4, 2), squared, ((x, table), y), way)
    assert found.engine != "single-backward"


@pytest.mark.parametrize("size", [3, 6])
def test_samples_that_are_combined_at_one_of_these_sizes_are_refused(size: int) -> None:
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Centred(size), squared, pair())


def test_rows_that_are_not_known_are_no_refusal_but_need_another_engine() -> None:
    with pytest.raises(NoRule, match='Use engine="auto", which then computes one sample at a time'):
        made_up.examine(Chunk(Picking(4, 2), squared, pair(), 6))
    assert engine.per_sample(Picking(4, 2), squared, pair()).engine != "single-backward"


class Queued(nn.Linear):
    """Adds what the pass before left in a queue of the standard library, which is not restored."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.waiting = Queue[Tensor]()
        self.waiting.put(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        before = self.waiting.get()
        self.waiting.put(x.detach().mean(0))
        return super().forward(x + before)


@pytest.mark.parametrize("way", ["auto", "loop"])
def test_samples_that_meet_although_each_is_computed_alone_are_refused(way: str) -> None:
    with pytest.raises(UnsupportedModel, match="also where each is computed alone"):
        engine.per_sample(Queued(), squared, pair(), way)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_numbers_are_a_second_line(monkeypatch: pytest.MonkeyPatch, dropout: float) -> None:
    """A model that mixes is refused though every operation was called sound."""
    monkeypatch.setattr(made_up, "judge", lambda *_: Verdict("apart"))
    monkeypatch.setattr("dpilot.engine.trace.watch.Pass.verdict", lambda *_, **__: Verdict("apart"))
    monkeypatch.setattr("dpilot.engine.single_backward.Recorder.require_rows", lambda *_: None)
    with pytest.raises(UnsupportedModel, match="how many there are"):
        engine.per_sample(nn.Sequential(nn.Dropout(dropout), Centred(6)), squared, pair())


def test_a_refusal_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = Centred(6), []
    examine = api.examine
    monkeypatch.setattr(api, "examine", lambda *given: asked.append(1) or examine(*given))
    for _ in range(3):
        with pytest.raises(UnsupportedModel):
            engine.per_sample(model, squared, pair())
    assert len(asked) == 1


def test_a_choice_holds_for_its_loss_modes_and_trained_parameters() -> None:
    model, batch = nn.Sequential(nn.Linear(4, 2), nn.Dropout()), pair()
    forms = [api.form_of_call(Chunk(model, squared, batch, 6))]
    forms.append(api.form_of_call(Chunk(model, lambda out, y: squared(out, y), batch, 6)))
    forms.append(api.form_of_call(Chunk(model.eval(), squared, batch, 6)))
    forms.append(api.form_of_call(Chunk(model.train().requires_grad_(False), squared, batch, 6)))
    forms.append(api.form_of_call(Chunk(model.requires_grad_(), squared, (batch[0].double(), batch[1]), 6)))
    assert len(set(forms)) == 5
    assert api.form_of_call(Chunk(model, squared, batch, 6)) == forms[0]


def test_a_chunk_that_is_judged_otherwise_than_made_up_ones_is_computed_and_not_refused() -> None:
    class Later(nn.Linear):
        centres = False

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(0) if self.centres else x)

    model, batch = Later(4, 2), pair()
    assert engine.per_sample(model, squared, batch).engine == "single-backward"
    model.centres = True
    found = engine.per_sample(model, squared, batch)
    assert found.engine == "loop"
    assert "mean" in found.reason


def test_one_sample_is_computed_as_it_is() -> None:
    found = engine.per_sample(nn.Linear(4, 2), squared, pair(1))
    assert (found.engine, found.reason) == ("loop", "one sample")


@lru_cache
def table() -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_a_global_constant_is_known_for_one() -> None:
    """A tensor that neither model nor loss holds, where no snapshot finds it."""

    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * table())

    table()
    assert engine.per_sample(Scaled(4, 2), squared, pair()).engine == "single-backward"


def test_one_hot_of_so_many_classes_keeps_samples_apart() -> None:
    """torch looks at the smallest and the largest label of the batch, and need not."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (out * F.one_hot(y, 2)).sum(1)

    labels = torch.tensor([0, 1, 1, 0, 1, 0])
    assert engine.per_sample(nn.Linear(4, 2), loss, (torch.randn(6, 4), labels)).engine == "single-backward"


class Straight(torch.autograd.Function):
    """The identity, with a backward pass of its own that keeps samples apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clone()


def test_a_backward_pass_that_is_not_watched_is_taken_one_sample_at_a_time() -> None:
    """No number shows it: what it does with other records is not known."""

    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return Straight.apply(super().forward(x))

    found = engine.per_sample(Own(4, 2), squared, pair())
    assert found.engine != "single-backward"
    assert "Straight has a backward pass of its own" in found.reason
