"""Chunks that are filled up with made-up samples, and the gradients of those that are not made up."""

from __future__ import annotations

from queue import SimpleQueue

import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine import batch as batches
from dpilot.engine.base import select_rows


def squared(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().sum(1)


def test_a_filled_chunk_begins_with_its_samples_and_has_a_public_number_of_rows() -> None:
    x, y, shared = torch.randn(3, 4), torch.tensor([5, 6, 7]), torch.randn(2, 2)
    whole, labels, kept = batches.fill_up((x, y, shared), 3, 8, torch.arange(3))
    assert torch.equal(whole[:3], x)
    assert torch.equal(labels[:3], y)
    assert kept is shared
    assert (len(whole), len(labels)) == (8, 8)


def test_a_chunk_is_filled_up_with_what_its_model_takes() -> None:
    batch = torch.full((3, 4), 7.0), torch.tensor([2, 3, 4])
    whole, labels = batches.fill_up(batch, 3, 5, torch.tensor([4, 0, 2]))
    assert torch.equal(whole, torch.full((5, 4), 7.0))
    assert labels.tolist() == [3, 2, 4, 2, 2]


def test_a_tensor_that_all_samples_share_is_not_taken_for_samples() -> None:
    table = torch.randn(5, 2)
    whole, kept = batches.fill_up((torch.randn(3, 4), table), 3, 5, torch.arange(3))
    assert kept is table
    assert len(whole) == 6


def test_samples_in_other_rows_add_exactly_nothing() -> None:
    torch.manual_seed(0)
    model, batch, places = nn.Linear(4, 2), (torch.randn(5, 4), torch.randn(5, 2)), torch.tensor([3, 0, 4])
    alone = engine.per_sample(model, squared, tuple(part[places] for part in batch))
    first = select_rows(engine.per_sample(model, squared, batch), places)
    assert first.norms.shape == (3,)
    assert torch.allclose(first.norms, alone.norms)
    for weights in (torch.tensor([1.0, 0.5, 2.0]), torch.ones(3, 2)):
        ours, theirs = first.weighted_sum(weights), alone.weighted_sum(weights)
        assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in theirs)


def test_a_model_meets_a_public_number_of_rows() -> None:
    met: SimpleQueue[int] = SimpleQueue()

    class Sized(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            met.put(len(x))
            return super().forward(x)

    run, batch = engine.Graphed(Sized(4, 2), squared, rows=8, replayed=False), (torch.randn(8, 4), torch.randn(8, 2))
    run(batch)
    while not met.empty():
        met.get()  # of made-up chunks, once
    for n in (1, 3, 7, 8):
        assert run(batches.rows(batch, 8, 0, n)).norms.shape == (n,)
    assert {met.get() for _ in range(met.qsize())} == {8}


def test_samples_are_handed_out_without_those_around_them() -> None:
    whole = torch.arange(12.0).view(6, 2)
    for part in (whole[1:3], whole[:2], whole[::2], whole[:1].expand(3, 2)):
        own = batches.copy_tensors((part,))[0]
        assert torch.equal(own, part)
        assert own.untyped_storage().nbytes() == own.numel() * own.element_size()
    assert batches.copy_tensors(whole) is whole


def test_tensors_of_a_chunk_are_laid_out_row_by_row():
    """A chunk that is filled up, or made of copies, lies in memory as a full one does."""
    whole = torch.arange(24.0).reshape(2, 3, 4).transpose(1, 2)
    for each in (whole, whole[1:]):
        assert batches.copy_tensors(each).is_contiguous()
        assert torch.equal(batches.copy_tensors(each), each)
