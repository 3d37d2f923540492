"""The models of a table: logistic or linear regression, or a small network of one hidden layer."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

from dpilot import _validate
from dpilot.tables.declared import MODELS

__all__ = ["build", "loss_of"]

_HIDDEN: Final = 32


def build(model: str, inputs: int, outputs: int) -> nn.Module:
    """A fresh model; its first weights depend on no record. The last layer starts at zero.

    >>> build("logistic", 3, 2)
    Linear(in_features=3, out_features=2, bias=True)
    """
    _validate.one_of(MODELS, model=model)
    last = nn.Linear(inputs if model == "logistic" else _HIDDEN, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return last if model == "logistic" else nn.Sequential(nn.Linear(inputs, _HIDDEN), nn.Tanh(), last)


class _Squared(nn.Module):
    """Half the squared error of one output."""

    reduction: Final = "none"

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output[:, 0] - target).square() / 2


def loss_of(*, numeric_target: bool) -> nn.Module:
    """One loss a record."""
    return _Squared() if numeric_target else nn.CrossEntropyLoss(reduction="none")
