"""The papers' models: how many parameters they have, that they run, and that records stay apart in them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.errors import InvalidInput
from dpilot.transfer import models

LOSS = nn.CrossEntropyLoss(reduction="none")
SIZES: dict[str, dict[str, int]] = {"logistic": {"features": 7, "outputs": 2}, "mlp": {"features": 7}}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def inputs(name: str, n: int = 3) -> Tensor:
    torch.manual_seed(0)
    if name in ("imdb-mlp", "char-lstm"):
        return torch.randint(1, 50, (n, 6))
    if name in ("logistic", "mlp"):
        return torch.randn(n, 7)
    grey = name in ("cnn-2", "cnn-2-wide", "cnn-64-64-500-500")
    return torch.randn(n, *((1, 28, 28) if grey else (3, 32, 32)))


PUBLISHED = {
    "cnn-2": 26_010,  # about 26k wherever this network is used
    "resnet-18-gn": 11_181_642,  # 11.7M with the 1,000 classes of ImageNet, which a test below counts
    "wrn-16-4": 2_748_890,  # 2.7M, De et al. 2022
}
BY_HAND = {
    # layer by layer, weights and biases: no paper states these
    "cnn-2-wide": (9 * 32 + 32) + (32 * 9 * 64 + 64) + (3136 * 128 + 128) + (128 * 10 + 10),
    "cnn-4": (27 * 32 + 32) + (32 * 9 * 64 + 64) + (64 * 9 * 64 + 64) + (64 * 9 * 128 + 128) + (128 * 10 + 10),
    "cnn-64-64-500-500": (9 * 64 + 64) + (64 * 9 * 64 + 64) + (1024 * 500 + 500) + (500 * 500 + 500) + 5010,
    "imdb-mlp": 28_996 * 16 + (16 * 16 + 16) + (16 * 2 + 2),
    "char-lstm": 59 * 128 + (4 * 128 * (128 + 128) + 8 * 128) + (128 * 18 + 18),
    "logistic": 2 * (7 + 1),
    "mlp": 64 * (7 + 1) + 64 * (64 + 1) + 2 * (64 + 1),
}


@pytest.mark.parametrize("name", models.names())
def test_parameters_are_as_many_as_published_or_counted_by_hand(name: str) -> None:
    assert count(models.get(name, **SIZES.get(name, {}))) == (PUBLISHED | BY_HAND)[name]


def test_other_sizes_have_the_counts_that_go_with_them() -> None:
    assert count(models.get("resnet-18-gn", classes=1000)) == 11_689_512
    assert count(models.get("logistic", features=104)) == 105
    assert count(models.get("cnn-64-64-500-500", channels=3, side=32)) == 805_578 + 2 * 9 * 64 + 64 * 500 * (25 - 16)


@pytest.mark.parametrize("name", [n for n in models.names() if n not in ("resnet-18-gn", "wrn-16-4")])
def test_each_sample_has_its_own_gradient(name: str) -> None:
    torch.manual_seed(0)
    model, x = models.get(name, **SIZES.get(name, {})), inputs(name)
    assert engine.check(model) == []
    y = torch.zeros(len(x), dtype=torch.long)
    assert model(x).shape[0] == len(x)
    ours, oracle = (engine.per_sample(model, LOSS, (x, y), e) for e in ("single-backward", "loop"))
    torch.testing.assert_close(ours.norms, oracle.norms, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("name", "side"), [("resnet-18-gn", 32), ("wrn-16-4", 16)])
def test_the_large_ones_run_and_pass_the_check(name: str, side: int) -> None:
    model = models.get(name, classes=4)
    assert engine.check(model) == []
    x = torch.randn(2, 3, side, side)
    together = model(x)
    assert together.shape == (2, 4)
    torch.testing.assert_close(together[1:], model(x[1:]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["imdb-mlp", "char-lstm"])
def test_padding_changes_nothing(name: str) -> None:
    model, ids = models.get(name), inputs(name)
    padded = torch.cat([ids, torch.zeros(3, 4, dtype=torch.long)], 1)
    torch.testing.assert_close(model(padded), model(ids), rtol=1e-5, atol=1e-6)
    assert torch.isfinite(model(torch.zeros_like(ids))).all()


def test_a_wrong_name_or_size_is_named_with_what_is_expected() -> None:
    with pytest.raises(InvalidInput, match=r"name is 'cnn-3'.*'cnn-2'"):
        models.get("cnn-3")
    with pytest.raises(InvalidInput, match=r"given depth: expected channels=3, classes=10"):
        models.get("cnn-4", depth=3)
    with pytest.raises(InvalidInput, match="stem is 'tiny'"):
        models.get("resnet-18-gn", stem="tiny")
