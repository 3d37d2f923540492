"""Augmentation multiplicity: several views of a record, averaged inside its own gradient.

The gradient of a record is that of the mean loss over its K views, so it is clipped once and one record still counts
once: nothing changes in what a step costs.

    >>> loss = averaged(nn.CrossEntropyLoss(reduction="none"), views=4, transform=crop_and_flip(padding=4))
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
    >>> loss(model, (torch.randn(2, 3, 8, 8), torch.tensor([3, 7]))).shape    # with Trainer(..., per_batch=True)
    torch.Size([2])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpilot import _validate
from dpilot.errors import InvalidInput

Transform = Callable[[Tensor], Tensor]
"""From inputs (m, ...) to as many changed ones, each from its own row and its own coins."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """The loss of a record averaged over its views; call it as ``loss(model, (inputs, targets))``."""

    loss_fn: Callable[..., Tensor]
    views: int
    transform: Transform | None

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        count = self.views if self.transform is not None else inputs.shape[1]
        rows = inputs.flatten(0, 1) if self.transform is None else self.transform(inputs.repeat_interleave(count, 0))
        outputs: Any = model(rows)
        logits = outputs if isinstance(outputs, Tensor) else outputs.logits
        losses = self.loss_fn(logits, targets.repeat_interleave(count, 0))  # (n count,), a record's views in a row
        return losses.reshape(-1, count).mean(1)


def averaged(loss_fn: Callable[..., Tensor], *, views: int = 8, transform: Transform | None = None) -> Averaged:
    """The loss for a Trainer with ``per_batch=True`` that averages ``loss_fn`` over ``views`` of each record.

    L_i = mean over k of loss_fn(model(transform(x_i)), y_i). Without a transform the views lie in the record already:
    inputs (n, views, ...), for records whose data set makes its own.

    Guarantee:
        A record's views stay in its own row, so its gradient is the mean of its views' gradients and depends on no
        other record. A transform must treat each row on its own: no statistics over rows.

    Edge cases:
        Coins come from torch's generator, which a Trainer seeds for each step: a resumed run draws the same views.

    Reference: De et al. 2022, section 3.2 (augmentation multiplicity); Hoffer et al. 2019.
    """
    if getattr(loss_fn, "reduction", "none") != "none":
        raise InvalidInput('the loss\'s reduction is not "none": expected one loss a view. Use reduction="none".')
    return Averaged(loss_fn, _validate.count(least=1, views=views), transform)


@dataclass(frozen=True, slots=True)
class CropAndFlip:
    """Each image shifted by up to ``padding`` pixels along each side, and mirrored by a coin if ``flip``."""

    padding: int
    flip: bool

    def __call__(self, images: Tensor) -> Tensor:
        m, _, height, width = images.shape
        padded = functional.pad(images, (self.padding,) * 4, mode="reflect") if self.padding else images
        top, left = (torch.randint(0, 2 * self.padding + 1, (m, 1), device=images.device) for _ in range(2))
        rows = top + torch.arange(height, device=images.device)
        columns = left + torch.arange(width, device=images.device)
        if self.flip:
            mirrored = torch.rand(m, 1, device=images.device) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        which = torch.arange(m, device=images.device)[:, None, None]
        made = padded.movedim(1, -1)[which, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
        return made.contiguous()  # torch may crash on colours last: docs/transfer.md


def crop_and_flip(*, padding: int = 4, flip: bool = True) -> CropAndFlip:
    """The usual augmentation of small images (n, channels, height, width): reflect-pad, crop at random, mirror.

    Example:
        >>> image = torch.arange(4.0).reshape(1, 1, 2, 2)
        >>> crop_and_flip(padding=0, flip=False)(image).equal(image)
        True
    """
    return CropAndFlip(_validate.count(least=0, padding=padding), bool(flip))
