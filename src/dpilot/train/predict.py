"""Outputs of a trained model, batch by batch, without gradients and in evaluation mode."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.errors import InvalidInput
from dpilot.sampling import blocks

_ROWS: Final = (8, 512)  # at a time: of the first records, so that few of them are quick, and at most


@torch.no_grad()
def predict(model: nn.Module, inputs: Any) -> Tensor:
    """The model's outputs for ``inputs``: a tensor or array, a tuple of arguments or a dict of keyword arguments.

    For classes take ``.argmax(1)``. The modes of the model's layers are put back.

    Guarantee:
        The model sees batches whose sizes follow from the place alone, the last one filled up with copies of a record:
        if it treats each record on its own, one record more changes no bit of another's output.

    Example:
        >>> from torch import nn
        >>> predict(nn.Linear(2, 3), np.zeros((4, 2), dtype=np.float32)).shape
        torch.Size([4, 3])
    """
    inputs = torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs
    found = [t for t in batches.tensors(inputs) if t.dim()]
    if not found:
        raise InvalidInput(
            f"inputs are {type(inputs).__name__}: expected a tensor, an array, a tuple or a dict of them."
        )
    n, device = found[0].shape[0], next(model.parameters()).device
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        outputs = [
            _called(model, batches.rebuild(_filled(inputs, n, start, rows), lambda t: t.to(device)))[: n - start].cpu()
            for start, rows in blocks(n, *_ROWS)
        ]
    finally:
        for module, training in modes.items():
            module.training = training
    return torch.cat(outputs)


def _filled(inputs: Any, n: int, start: int, rows: int) -> Any:
    """Records start .. start + rows, the first of them again in place of those that are not there."""
    if not n or start + rows <= n:
        return batches.rows(inputs, n, start, start + rows)
    places = torch.arange(start, start + rows)
    places = torch.where(places < n, places, start)
    return batches.rebuild(inputs, lambda t: t[places.to(t.device)] if t.dim() and t.shape[0] == n else t)


def _called(model: nn.Module, piece: Any) -> Tensor:
    if isinstance(piece, dict):
        made = model(**piece)
    else:
        made = model(*piece) if isinstance(piece, tuple | list) else model(piece)
    return made if isinstance(made, Tensor) else made.logits
