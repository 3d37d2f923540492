"""Losses of sequences, one a record: a causal language model's, and a private perplexity from clipped ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.mechanism import Draws, release

IGNORED = -100
"""Labels with this value count for nothing, as everywhere in torch and transformers."""


def causal_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean over a sequence's own tokens of -log p(token | before), one number a sequence: for ``per_batch=True``.

    ``batch`` has ``input_ids`` (n, length) and may have ``attention_mask`` and ``labels``; without labels every token
    that is not masked is one.

    Guarantee:
        Each sequence is divided by its own number of tokens, never by a count over the batch.

    Edge cases:
        a sequence without tokens to predict    loss 0
    """
    mask = batch.get("attention_mask")
    labels = batch.get("labels", batch["input_ids"])
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    if mask is not None:
        labels = torch.where(mask.bool(), labels, IGNORED)
    outputs = model(**inputs)
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    return token_mean(logits[:, :-1], labels[:, 1:])


def token_mean(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of (n, length, classes) logits, averaged over each sequence's own labels: (n,).

    >>> token_mean(torch.zeros(2, 3, 4), torch.tensor([[0, 1, -100], [-100, -100, -100]]))
    tensor([1.3863, 0.0000])
    """
    losses = functional.cross_entropy(
        logits.transpose(1, 2).float(), labels, ignore_index=IGNORED, reduction="none"
    )  # (n, length)
    counted = (labels != IGNORED).sum(1).clamp_min(1)
    return losses.sum(1) / counted


def perplexity(
    losses: Iterable[Tensor], *, highest: float, size: float, noise_multiplier: float, receipt: Draws
) -> float:
    """exp of the mean loss a sequence, from one noisy sum of losses clipped to [0, highest] and centred.

    ``losses`` are tensors (n,) of per-sequence losses on held-out records, such as ``causal_loss`` gives; ``size`` is
    the declared number of sequences. Reserve ``Gaussian(noise_multiplier)``.

    Guarantee:
        One sequence moves the sum of (clipped loss - highest / 2) by at most highest / 2, which is the bound.

    Edge cases:
        not finite    the null record: it adds 0, as if it were not there
    """
    half, declared = _validate.positive(highest=highest) / 2, _validate.positive(size=size)
    total = torch.zeros((), dtype=torch.float64)
    for chunk in losses:
        centred = chunk.detach().double().cpu().clamp(0, highest) - half
        total += torch.where(torch.isfinite(chunk.detach().cpu()), centred, 0.0).sum()
    noisy = release(float(total), bound=half, noise_multiplier=noise_multiplier, receipt=receipt)
    return math.exp(min(max(noisy / declared + half, 0.0), highest))


def train_only(model: nn.Module, *patterns: str) -> list[str]:
    """Train the parameters whose names match a pattern, such as "*.attention.*" or "head.*", and freeze the others.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> train_only(model, "1.*")
    ['1.weight', '1.bias']
    """
    chosen = [name for name, _ in model.named_parameters() if any(fnmatch(name, pattern) for pattern in patterns)]
    if not chosen:
        raise InvalidInput(f"no parameter matches {patterns!r}: expected patterns of names such as {_some(model)}.")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return chosen


def blocks(model: nn.Module) -> dict[str, int]:
    """How many numbers are trained in each of the model's top-level blocks: what a release is made of.

    >>> blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    {'0': 6, '1': 3}
    """
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        block = name.partition(".")[0]
        found[block] = found.get(block, 0) + (parameter.numel() if parameter.requires_grad else 0)
    return found


def _some(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()][:3]
