"""Bare parameters: sums, products, concatenations and the like, where a weight meets the samples by broadcasting.

The weight is repeated along the batch (a view, nothing is copied) and the repeated tensor is tapped: the gradient that
arrives there is, row by row, the per-sample gradient. Autograd itself does the rest, so one rule serves every operation
that lines its operands up dimension by dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpilot.engine.base import NoRule
from dpilot.engine.layers.base import Operation, Scope, rule

ELEMENTWISE = (
    "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "pow", "maximum", "minimum",
    "where", "lerp", "addcmul", "addcdiv", "atan2", "masked_fill", "logaddexp", "hypot", "fmax", "fmin",
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__pow__",
    "__rpow__", "__rdiv__", "__div__", "scaled_dot_product_attention",
)  # fmt: skip
"""Operations that line up their operands from the last dimension backwards, samples on the first of the widest."""
IN_PLACE = ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__")


@rule(*ELEMENTWISE, *IN_PLACE)
def _elementwise(scope: Scope, operation: Operation, *args: Any, **kwargs: Any) -> Any:
    samples = [v for v in (*args, *kwargs.values()) if scope.is_sample(v)]
    widest = max(samples, key=lambda t: t.dim())

    def line_up(value: Any) -> Any:
        return scope.spread(value, widest) if scope.is_weight(value) else value

    if operation.__name__ in IN_PLACE and scope.is_weight(args[0]):
        raise NoRule(f"{operation.__name__} writes samples into a trained weight. Write it out of place.")
    return operation(*map(line_up, args), **{key: line_up(value) for key, value in kwargs.items()})


@rule("cat", "concat", "concatenate", "stack")
def _join(scope: Scope, operation: Operation, tensors: Any, dim: int = 0) -> Any:
    sample = next(t for t in tensors if scope.is_sample(t))
    if dim % (sample.dim() + (operation.__name__ == "stack")) == 0:
        raise NoRule(f"{operation.__name__} along the samples' dimension. Join along another dimension.")
    lined_up = [scope.spread(t, sample) if scope.is_weight(t) else t for t in tensors]
    return operation(lined_up, dim)


@rule("prelu")
def _prelu(scope: Scope, _: Operation, input: Tensor, weight: Tensor) -> Tensor:
    slopes = scope.spread(weight, input, 2)  # one slope a channel: dimension 1
    channels = [weight.numel(), *[1] * (input.dim() - 2)] if input.dim() > 1 else []
    return torch.where(input > 0, input, slopes.reshape(input.shape[0], *channels).to(input.dtype) * input)


@rule("einsum")
def _einsum(scope: Scope, _: Operation, equation: Any, *operands: Any) -> Any:
    """Weights get the letter of the samples; equations that leave letters out are spelled out by ``fallback``."""
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return NotImplemented
    values = list(operands[0]) if isinstance(operands[0], (tuple, list)) else list(operands)
    left, right = equation.replace(" ", "").split("->")
    terms = list(zip(left.split(","), values, strict=True))
    samples = [(t, v) for t, v in terms if scope.is_sample(v)]
    letter, like = samples[0][0][:1], samples[0][1]
    for each in samples:
        scope.require_rows(each[1])
    alone = all(t.startswith(letter) for t, _ in samples) and right.startswith(letter)
    if not alone or any(letter in t for t, v in terms if not scope.is_sample(v)):
        return NotImplemented
    spelled = ",".join(letter + t if scope.is_weight(v) else t for t, v in terms)
    lined_up = [scope.spread(v, like, v.dim() + 1) if scope.is_weight(v) else v for v in values]
    return torch.einsum(f"{spelled}->{right}", *lined_up)


SHAPE_ONLY = frozenset({"type_as", "to", "expand_as", "view_as", "reshape_as", "zeros_like", "ones_like", "empty_like"})
"""Operations that look at another tensor's shape or type, never at its values."""


def repeat_view(weight: Tensor, dims: int, lead: int) -> Tensor:
    """A view (lead, 1, .., *shape) of a weight without a batch dimension, with ``dims`` dimensions."""
    if weight.dim() > dims:
        raise NoRule(
            f"a weight of shape {tuple(weight.shape)} meets samples of {dims} dimensions: broadcasting would move the "
            "samples off the first dimension. Add dimensions to the input after the first."
        )
    if weight.dim() == dims and weight.shape[0] == 1:
        return weight.expand(lead, *weight.shape[1:])
    if weight.dim() == dims:
        raise NoRule(f"a weight of shape {tuple(weight.shape)} lies along the samples' dimension. Keep samples first.")
    return weight.view(*[1] * (dims - weight.dim()), *weight.shape).expand(lead, *[-1] * (dims - 1))
