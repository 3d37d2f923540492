"""Functions of autograd for models in tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Identity(torch.autograd.Function):
    """The identity, with a backward pass of its own; a subclass says what vmap makes of it."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
