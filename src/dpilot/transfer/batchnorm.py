"""Doing without BatchNorm: its statistics are those of a batch, so one record would move the gradients of others."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from dpilot import _validate
from dpilot.engine import replace_batch_norm
from dpilot.errors import UnsupportedModel

WAYS: Final = ("refuse", "group", "freeze")


class FrozenNorm(nn.Module):
    """What a BatchNorm computes in evaluation mode, in every mode: (x - mean) / sqrt(variance + eps) * weight + bias.

    Mean and variance are those it was trained with; scale and bias are the very parameters it had.

    Example:
        >>> import torch
        >>> norm = nn.BatchNorm1d(2).eval()
        >>> x = torch.randn(3, 2)
        >>> torch.equal(FrozenNorm(norm).train()(x), norm(x))
        True
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self.get_buffer("running_mean"), self.get_buffer("running_var")
        return functional.batch_norm(x, mean, variance, self.weight, self.bias, False, 0.0, self.eps)


def without(model: nn.Module, way: str = "refuse") -> nn.Module:
    """The model without a BatchNorm, by one of ``WAYS``; in place, but for a model that is itself one.

    "group": GroupNorm in its place. Scale and shift are kept, the running statistics are lost, and with them what a
    pretrained model computed. "freeze": its running statistics, for good. Both keep records apart.
    """
    _validate.one_of(WAYS, batchnorm=way)
    found = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    if not found:
        return model
    if way == "refuse":
        raise UnsupportedModel(
            f"{len(found)} BatchNorm layer(s), the first is {found[0] or 'the model'!r}: expected none, as they mix "
            'records. Use batchnorm="freeze" (keeps the statistics it was pretrained with) or batchnorm="group" '
            "(GroupNorm in its place: scale and shift are kept, the running statistics are lost)."
        )
    return replace_batch_norm(model) if way == "group" else _is_frozen(model)


def _is_frozen(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        if module.running_mean is None:
            raise UnsupportedModel(
                'a BatchNorm has no running statistics to freeze: expected some with batchnorm="freeze". '
                'Use batchnorm="group".'
            )
        return FrozenNorm(module)
    for name, child in module.named_children():
        setattr(module, name, _is_frozen(child))
    return module
