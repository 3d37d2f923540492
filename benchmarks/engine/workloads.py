"""Models and batches to time, by name: small ones for the CPU, the papers' sizes for the GPU. Made-up data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.transfer import models

Batch = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """How to make the model and a batch; ``peers`` says whether Opacus is timed too."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    size: int
    loss: Callable[..., Any] = nn.CrossEntropyLoss
    peers: bool = True


class Output(nn.Module):
    """A Hugging Face model that returns its logits, so that every peer can take it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits  # type: ignore[no-any-return]


class SequenceLoss(nn.Module):
    """The mean loss over the tokens of each sequence; logits (n, t, v), targets (n, t)."""

    def __init__(self, reduction: str = "none") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)
        return losses if self.reduction == "none" else losses.mean()


class TokenLoss(SequenceLoss):
    """The same number from logits laid out token by token, where torch has its fast kernel."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        losses = each.view(targets.shape).mean(1)
        return losses if self.reduction == "none" else losses.mean()


class Encoder(nn.Module):
    """A transformer encoder of our own layers, so that every peer has rules for it."""

    def __init__(self, width: int = 256, depth: int = 6, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden).mean(1))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward, pre-norm."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.first(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def cnn2() -> nn.Module:
    return models.get("cnn-2")


def resnet18() -> nn.Module:
    return models.get("resnet-18-gn", stem="small")


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return Output(ViTForImageClassification(ViTConfig(num_labels=100)))


def vit_film() -> nn.Module:
    model = vit()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layernorm" in name or "classifier" in name)
    return model


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    return Output(GPT2LMHeadModel(config))


def images(channels: int, side: int, classes: int = 10) -> Callable[[int], Batch]:
    return lambda n: (torch.randn(n, channels, side, side), torch.randint(classes, (n,)))


def tokens(length: int, vocabulary: int) -> Callable[[int], Batch]:
    return lambda n: (torch.randint(vocabulary, (n, length)), torch.randint(10, (n,)))


def sequences(length: int, vocabulary: int) -> Callable[[int], Batch]:
    return lambda n: (torch.randint(vocabulary, (n, length)), torch.randint(vocabulary, (n, length)))


CPU = {
    "mlp": Workload(mlp, images(1, 28), 512),
    "cnn2": Workload(cnn2, images(1, 28), 512),
    "encoder": Workload(Encoder, tokens(64, 1000), 32),
}
GPU = {
    "vit-full": Workload(vit, images(3, 224, 100), 64),
    "vit-film": Workload(vit_film, images(3, 224, 100), 128),
    "resnet18": Workload(resnet18, images(3, 32), 512),
    "cnn2": Workload(cnn2, images(1, 28), 1024),
    "gpt2": Workload(gpt2, sequences(512, 50257), 16, SequenceLoss, peers=False),
    "gpt2-flat": Workload(gpt2, sequences(512, 50257), 16, TokenLoss),
}
