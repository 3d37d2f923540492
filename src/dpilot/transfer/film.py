"""FiLM: the scale and bias of the normalisation layers."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpilot.errors import UnsupportedModel
from dpilot.transfer.batchnorm import FrozenNorm

_KNOWN = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _InstanceNorm, _BatchNorm, FrozenNorm)


def parameters(model: nn.Module) -> list[nn.Parameter]:
    """Scales and biases of every normalisation layer: torch's own, and classes named ...Norm with one-dimensional weights.

    Example:
        >>> [len(p) for p in parameters(nn.Sequential(nn.Linear(2, 6), nn.LayerNorm(6), nn.GroupNorm(2, 6)))]
        [6, 6, 6, 6]

    Reference: Perez et al. 2018; Tobaben et al. 2023 (under differential privacy).
    """  # noqa: E501
    found = [p for module in model.modules() if is_norm(module) for p in module.parameters(recurse=False)]
    if not found:
        raise UnsupportedModel(
            f"{type(model).__name__} has no normalisation layer with a scale and bias: expected one for "
            'method="film". Use method="bitfit", "lora" or "head".'
        )
    return found


def is_norm(module: nn.Module) -> bool:
    """A layer that normalises: one of torch's, or one that calls itself so, as models of transformers do."""
    own = list(module.parameters(recurse=False))
    named = type(module).__name__.endswith("Norm") and all(p.dim() == 1 for p in own)
    return isinstance(module, _KNOWN) or (named and bool(own))
