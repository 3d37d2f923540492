"""Augmentation multiplicity: the mean over a record's own views, and nothing of any other record's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer, engine
from dpilot.errors import InvalidInput
from dpilot.transfer import augment

N, VIEWS = 5, 3
LOSS = nn.CrossEntropyLoss(reduction="none")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)]
    return nn.Sequential(*body).double()


def views() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(N, VIEWS, 2, 6, 6, dtype=torch.float64), torch.arange(N) % 3


def mean_gradient(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The mean over one record's views of the gradient of each view, by plain autograd."""
    total = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for view in x:
        net.zero_grad()
        LOSS(net(view[None]), y[None]).sum().backward()
        for name, parameter in net.named_parameters():
            total[name] += parameter.grad / len(x)
    net.zero_grad()
    return total


@pytest.mark.parametrize("way", ["single-backward", "vmap", "loop"])
def test_a_records_gradient_is_the_mean_over_its_views(way: str) -> None:
    net, (x, y) = model(), views()
    found = engine.per_sample(net, augment.averaged(LOSS), (x, y), way, per_batch=True)
    for i in range(N):
        expected = mean_gradient(net, x[i], y[i])
        alone = found.weighted_sum(torch.eye(N, dtype=torch.float64)[i])
        for name, gradient in expected.items():
            torch.testing.assert_close(alone[name], gradient, rtol=1e-9, atol=1e-12)
        norm = torch.cat([gradient.flatten() for gradient in expected.values()]).norm()
        torch.testing.assert_close(found.norms[i], norm, rtol=1e-9, atol=0)


def test_another_record_moves_nothing() -> None:
    net, (x, y) = model(), views()
    loss = augment.averaged(LOSS, views=VIEWS, transform=augment.crop_and_flip(padding=1))
    changed = x[:, 0].clone()
    changed[-1] = 100.0
    found = []
    for images in (x[:, 0], changed):
        torch.manual_seed(2)
        found.append(engine.per_sample(net, loss, (images, y), "single-backward", per_batch=True).norms)
    torch.testing.assert_close(found[0][:-1], found[1][:-1], rtol=1e-12, atol=0)
    assert found[0][-1] != found[1][-1]


def test_views_of_a_record_differ_and_keep_its_pixels() -> None:
    torch.manual_seed(0)
    images = torch.arange(2 * 36.0).reshape(2, 1, 6, 6)
    made = augment.crop_and_flip(padding=2)(images.repeat_interleave(50, 0))
    assert made.shape == (100, 1, 6, 6)
    assert augment.crop_and_flip()(torch.randn(2, 3, 8, 8)).is_contiguous()
    assert len({tuple(view.flatten().tolist()) for view in made[:50]}) > 20
    assert made[:50].max() <= 35
    assert made[50:].min() >= 36  # no pixel of the other record
    mirrored = augment.crop_and_flip(padding=0)(images[:1].repeat(50, 1, 1, 1))
    same = (mirrored == images[:1]).flatten(1).all(1)
    flipped = (mirrored == images[:1].flip(3)).flatten(1).all(1)
    assert (same | flipped).all()
    assert 10 < int(flipped.sum()) < 40


def test_shifts_are_crops_of_the_padded_image() -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 2, 5, 5)
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1), mode="reflect")[0]
    crops = {tuple(padded[:, i : i + 5, j : j + 5].flatten().tolist()) for i in range(3) for j in range(3)}
    made = augment.crop_and_flip(padding=1, flip=False)(image.repeat(200, 1, 1, 1))
    assert {tuple(view.flatten().tolist()) for view in made} == crops


def test_it_trains_privately() -> None:
    plan = Plan.calibrate(Budget(4.0, 1e-5), size=16, batch_size=16, steps=2, clipping="constant")
    net = model().float()
    data = TensorDataset(torch.randn(16, 2, 6, 6), torch.arange(16) % 3)
    loss = augment.averaged(LOSS, views=4, transform=augment.crop_and_flip(padding=1))
    run = Trainer(net, loss, plan, per_batch=True, chunk_size=8).fit(data)
    assert run.epsilon <= 4.0
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(InvalidInput, match='reduction="none"'):
        augment.averaged(nn.CrossEntropyLoss())
    with pytest.raises(InvalidInput, match="views is 0"):
        augment.averaged(LOSS, views=0)
    with pytest.raises(InvalidInput, match="padding is -1"):
        augment.crop_and_flip(padding=-1)
