"""Replacing layers that mix samples by layers that do not."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def replace_batch_norm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """Put GroupNorm where BatchNorm was, in place, and return the model.

    The number of groups is the largest divisor of the channels up to ``groups`` that leaves at least two channels a
    group (eight for BatchNorm1d, which may have no positions to average over); scale and shift are copied, running
    statistics are dropped. A model that is itself a BatchNorm comes back as a new module.

    Example:
        >>> from torch import nn
        >>> replace_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
        24
    """
    if isinstance(model, _BatchNorm):
        return group_norm_like(model, groups)
    for name, child in model.named_children():
        setattr(model, name, replace_batch_norm(child, groups=groups))
    return model


def group_norm_like(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    """A GroupNorm with the BatchNorm's channels, affine values, device, dtype and training mode."""
    channels = norm.num_features
    least = 8 if isinstance(norm, nn.BatchNorm1d) else 2
    most = min(groups, max(1, channels // least))
    count = max(g for g in range(1, most + 1) if channels % g == 0)
    made = nn.GroupNorm(count, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        made.to(norm.weight)
        made.weight.data.copy_(norm.weight.data)
        made.bias.data.copy_(norm.bias.data)
        made.weight.requires_grad_(norm.weight.requires_grad)
        made.bias.requires_grad_(norm.bias.requires_grad)
    return made.train(norm.training)
