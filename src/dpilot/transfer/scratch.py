"""From scratch: weights drawn afresh."""

from __future__ import annotations

from typing import Any

from torch import nn

from dpilot.errors import UnsupportedModel

_RESETS = ("reset_parameters", "_reset_parameters")


def renew(model: nn.Module) -> None:
    """Draw every weight anew, in place, the way its layer (or its model, for transformers) draws it.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 2)
        >>> nn.init.zeros_(layer.weight).sum().item()
        0.0
        >>> renew(layer)
        >>> bool(layer.weight.any())
        True
    """
    check(model)
    if _of_transformers(model):
        made: Any = type(model)
        model.load_state_dict(made(model.config).state_dict())
        return
    for module in model.modules():
        reset = _reset(module)
        if reset is not None:
            reset()


def check(model: nn.Module) -> None:
    """Refuse a model with weights that nobody knows how to draw."""
    if _of_transformers(model):
        return
    unknown = [name or "model" for name, module in model.named_modules() if _holds(module) and _reset(module) is None]
    if unknown:
        raise UnsupportedModel(
            f"cannot draw the weights of {', '.join(unknown[:4])} anew: expected a reset_parameters method. Give it "
            'one, or make the model afresh and use method="full".'
        )


def _of_transformers(model: nn.Module) -> bool:
    return hasattr(getattr(model, "config", None), "to_dict") and hasattr(model, "from_pretrained")


def _holds(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _reset(module: nn.Module) -> Any:
    return next((getattr(module, name) for name in _RESETS if callable(getattr(module, name, None))), None)
