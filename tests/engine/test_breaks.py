"""Breaks that were found by attack and must stay mended."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.errors import UnsupportedModel
from tests.contracts.zoo import DEVICE


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, reduction="none")


class Counts(nn.Module):
    """Remembers which ids it saw, how many records, or their sum."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.embed, self.head = what, nn.Embedding(10, 3), nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(10))

    def forward(self, ids: Tensor) -> Tensor:
        if self.what == "ids":
            self.seen += torch.bincount(ids.flatten(), minlength=10)
        elif self.what == "rows":
            self.seen += ids.shape[0]
        return self.head(self.embed(ids).mean(1))


@pytest.mark.parametrize("name", ["auto", "single-backward", "vmap", "loop"])
@pytest.mark.parametrize("what", ["ids", "rows"])
def test_no_buffer_remembers_the_samples(what: str, name: str) -> None:
    model = Counts(what)
    if name == "vmap" and what == "ids":
        pytest.skip("torch.func cannot run this model")
    batch = torch.randint(2, 10, (6, 4)), torch.randint(2, (6,))
    with contextlib.suppress(UnsupportedModel):  # refusing is as good
        engine.per_sample(model, cross_entropy, batch, name).weighted_sum(torch.ones(6))
    assert torch.equal(model.seen, torch.zeros(10))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


def divided_by_all_labels(out: Tensor, y: Tensor) -> Tensor:
    losses = nn.functional.cross_entropy(out.transpose(1, 2), y, reduction="none", ignore_index=-100).sum(1)
    return losses / (y != -100).sum(1).float().mean()


def divided_by_own_labels(out: Tensor, y: Tensor) -> Tensor:
    losses = nn.functional.cross_entropy(out.transpose(1, 2), y, reduction="none", ignore_index=-100).sum(1)
    return losses / (y != -100).sum(1).clamp_min(1)


def masked_by_all(out: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
    labels, mask = y
    losses = nn.functional.cross_entropy(out.transpose(1, 2), labels, reduction="none") * mask
    return losses.sum(1) * mask.shape[0] / mask.sum()


@pytest.mark.skipif(
    DEVICE.type != "cpu", reason="-100 as an index ends a process on a GPU: labels are not masked there"
)
def test_a_loss_divided_by_labels_of_all_samples_is_refused() -> None:
    batch = torch.randint(10, (4, 6)), torch.randint(5, (4, 6))
    engine.per_sample(Tokens(), divided_by_own_labels, batch)
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Tokens(), divided_by_all_labels, batch)


def test_a_loss_divided_by_a_mask_of_all_samples_is_refused() -> None:
    batch = torch.randint(10, (4, 6)), (torch.randint(5, (4, 6)), torch.rand(4, 6) < 0.5)
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Tokens(), masked_by_all, batch)


@pytest.mark.parametrize("tokens", [1, 4])
def test_squares_that_vanish_hide_no_gradient(tokens: int) -> None:
    model = nn.Linear(64, 64)
    x = torch.zeros(1, tokens, 64)
    x[..., 0], x[..., 1] = 1e18, -52.0
    small = torch.full((1, tokens, 64), 1e-23)
    gradients = engine.per_sample(model, lambda out, y: (out * y).flatten(1).sum(1), (x, small), "single-backward")
    added = gradients.weighted_sum(torch.ones(1))
    true = sum(float(g.double().square().sum()) for g in added.values()) ** 0.5
    assert true > 1e-6
    assert float(gradients.norms) >= true
