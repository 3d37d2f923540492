"""Small models of the kinds people fine-tune, with random weights, a batch and a loss; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

N, CLASSES, WORDS = 8, 3, 17


@dataclass(frozen=True)
class Case:
    """How to make a model, the records it reads, and the loss of its output."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    language: bool = False

    def data(self) -> TensorDataset:
        x = self.inputs()
        return TensorDataset(x, x if self.language else torch.arange(N) % CLASSES)

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        logits = outputs if isinstance(outputs, Tensor) else outputs.logits
        if self.language:
            return F.cross_entropy(logits[:, :-1].transpose(1, 2), y[:, 1:], reduction="none").mean(1)
        return F.cross_entropy(logits, y, reduction="none")


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=CLASSES))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    config = BertConfig(
        **sizes, vocab_size=WORDS, max_position_embeddings=8, num_labels=CLASSES, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def _gpt2() -> Any:
    from transformers import GPT2Config

    sizes = {"vocab_size": WORDS, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "num_labels": CLASSES}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2Config(**sizes, **quiet, bos_token_id=1, eos_token_id=1, pad_token_id=0)


def gpt2() -> nn.Module:
    from transformers import GPT2ForSequenceClassification

    return GPT2ForSequenceClassification(_gpt2())


def gpt2_language() -> nn.Module:
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel(_gpt2())


class Attention(nn.Module):
    """Self-attention in layers of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.proj(F.scaled_dot_product_attention(q, k, v))


def plain() -> nn.Module:
    patches = [nn.Conv2d(3, 8, 4, 4), nn.Flatten(2), nn.Linear(4, 4)]
    return nn.Sequential(*patches, nn.LayerNorm(4), Attention(4), nn.Flatten(), nn.Linear(32, CLASSES))


def images() -> Tensor:
    return torch.randn(N, 3, 8, 8)


def words() -> Tensor:
    return torch.randint(2, WORDS, (N, 5))


CASES = {
    "vit": Case(vit, images),
    "bert": Case(bert, words),
    "gpt2": Case(gpt2, words),
    "gpt2-language": Case(gpt2_language, words, language=True),
    "plain": Case(plain, images),
}
