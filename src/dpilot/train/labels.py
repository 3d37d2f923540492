"""Labels outside the classes on a GPU, where torch's kernel would end the process: their records are null instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

__all__ = ["null_outside_classes"]

Loss = Callable[..., Tensor]

_CLASSES: Final = frozenset({nn.CrossEntropyLoss, nn.NLLLoss})  # losses whose labels torch itself defines


def null_outside_classes(loss_fn: Loss, device: torch.device) -> Loss:
    """The same loss, not a number for a record whose label is none; on the CPU, and any other loss, as it is.

    On the CPU such a label is an error, which ``nulls.guarded`` turns into the null record. On a GPU it is an assertion
    in a kernel, after which the process can do nothing there: one record would decide whether a run goes on.

    Guarantee:
        A record's loss depends on its own outputs and label alone. For labels that are classes, or ignored, it is the
        same number with the same gradient; for others its gradient is not a number, so it is the null record.

    Edge cases:
        Losses of one's own, and ids outside a vocabulary, are not seen: there such a record still ends the process.

    Example:
        >>> safe = null_outside_classes(nn.CrossEntropyLoss(reduction="none"), torch.device("meta"))
        >>> [round(each, 3) for each in safe(torch.zeros(4, 2), torch.tensor([0, 1, 2, -100])).tolist()]
        [0.693, 0.693, nan, 0.0]
    """
    if device.type == "cpu" or type(loss_fn) not in _CLASSES:
        return loss_fn
    return partial(_losses, loss_fn)


def _losses(loss_fn: Any, outputs: Any, labels: Any) -> Tensor:
    whole = isinstance(labels, Tensor) and labels.dtype in (torch.int64, torch.uint8)
    if not (whole and isinstance(outputs, Tensor) and outputs.dim() == 2 and labels.dim() == 1):
        return loss_fn(outputs, labels)  # type: ignore[no-any-return]
    number = labels.long()
    taken = ((number >= 0) & (number < outputs.shape[1])) | (number == loss_fn.ignore_index)
    losses: Tensor = loss_fn(outputs, labels.masked_fill(~taken, 0))
    return losses * torch.ones_like(losses).masked_fill(~taken, torch.nan)
