"""Outputs of a trained model, batch by batch, without gradients and in evaluation mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.errors import InvalidInput

_ROWS = 512


@torch.no_grad()
def predict(model: nn.Module, inputs: Any) -> Tensor:
    """The model's outputs for ``inputs``: a tensor or array, a tuple of arguments or a dict of keyword arguments.

    For classes take ``.argmax(1)``. The modes of the model's layers are put back.

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
        pieces = (batches.rows(inputs, n, start, start + _ROWS) for start in range(0, max(n, 1), _ROWS))
        outputs = [_called(model, batches.rebuild(piece, lambda t: t.to(device))).cpu() for piece in pieces]
    finally:
        for module, training in modes.items():
            module.training = training
    return torch.cat(outputs)


def _called(model: nn.Module, piece: Any) -> Tensor:
    if isinstance(piece, dict):
        made = model(**piece)
    else:
        made = model(*piece) if isinstance(piece, tuple | list) else model(piece)
    return made if isinstance(made, Tensor) else made.logits
