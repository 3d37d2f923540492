"""BiTFiT: every bias."""

from __future__ import annotations

from torch import nn

from dpilot.errors import UnsupportedModel


def parameters(model: nn.Module) -> list[nn.Parameter]:
    """Every one-dimensional parameter whose own name holds "bias": of layers, attention and recurrent cells alike.

    Example:
        >>> [len(p) for p in parameters(nn.Sequential(nn.Linear(2, 6), nn.LSTM(6, 3)))]
        [6, 12, 12]

    Reference: Ben Zaken et al. 2022; Bu et al. 2022 (under differential privacy).
    """
    found = [p for name, p in model.named_parameters() if "bias" in name.rpartition(".")[2] and p.dim() == 1]
    if not found:
        raise UnsupportedModel(
            f'{type(model).__name__} has no bias: expected one for method="bitfit". Use method="film" or "lora".'
        )
    return found
