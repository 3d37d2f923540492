"""The two ideas of a layer rule: an operation taught to the recorder, and a use of a weight it leaves behind.

A *use* is one place where a trained weight met the samples. It holds what is needed to know that weight's per-sample
gradients without, in general, forming them. A *rule* is a function, registered under the name of the torch operation it
stands for; it runs the operation with the weight detached and taps the output: the backward pass then leaves the uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dpilot.engine.base import accumulator
from dpilot.numerics import euclidean


class Use(Protocol):
    """Per-sample gradients of one weight at one place, (n, *shape) in spirit."""

    def measure(self) -> tuple[Tensor, Use]:
        """Upper bounds of the squared norms (n,), and the use to sum with (perhaps now materialised).

        Squares of the gradient's own numbers may have vanished: ``base.refill_squares`` adds them for all parameters.
        """
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over i of w_i g_i, of the weight's shape."""
        ...

    def gradients(self, start: int, stop: int) -> Tensor:
        """The gradients of samples start .. stop, materialised."""
        ...

    def magnitude(self) -> Tensor:
        """Sum over tokens of |a_t| |e_t|: the scale that float rounding is relative to, (n,)."""
        ...

    def keep(self, finite: Tensor) -> Use:
        """The same with the rows of null samples replaced by zeros."""
        ...


MakeUse = Callable[[tuple[Tensor, ...], Tensor], Use]


class Scope(Protocol):
    """What a rule may ask of the recorder."""

    batch_size: int

    def is_weight(self, value: object) -> bool:
        """A trained parameter, or a tensor computed from trained parameters alone."""
        ...

    def is_sample(self, value: object) -> bool:
        """A tensor that depends on the samples."""
        ...

    def tap(self, out: Tensor, saved: Sequence[Tensor], uses: Sequence[tuple[Tensor, MakeUse]]) -> Tensor:
        """Tap ``out``; each (weight, make) leaves make(saved, gradient of out) as a use of weight.

        Raises NoRule unless the samples lie on the first axis of ``out``, all of them, in equal blocks of rows.
        """
        ...

    def require_rows(self, tensor: Tensor) -> None:
        """Raise NoRule unless the samples lie on the first axis of a tensor, all of them, in equal blocks of rows."""
        ...

    def has_equal_rows(self, weight: Tensor) -> bool:
        """Whether a weight was repeated along the samples: each row is the whole of a smaller weight."""
        ...

    def spread(self, weight: Tensor, like: Tensor, dims: int | None = None) -> Tensor:
        """The weight repeated along the samples of ``like``, aligned for broadcasting with ``dims`` dimensions."""
        ...

    def derive(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Run an operation on weights alone; what it gives are weights too."""
        ...

    def input_of_several(self, x: Tensor, cast: Tensor) -> tuple[Tensor, Any]:
        """What to save of a linear map's input, and what maps of the same input in a row share (gram.Shared)."""
        ...

    def transposed_from(self, weight: Tensor) -> Tensor | None:
        """The weight this one is the plain transpose of, if it is one."""
        ...


Operation = Callable[..., Any]
Rule = Callable[..., Any]
"""rule(scope, operation, *args, **kwargs) -> the operation's result with its uses tapped, or NotImplemented."""
RULES: dict[str, Rule] = {}


def rule(*operations: str) -> Callable[[Rule], Rule]:
    """Register a rule under the names of torch operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operations, function))
        return function

    return register


@dataclass(frozen=True, slots=True)
class Dense:
    """Gradients held as they are, (n, *shape): biases, scales, position embeddings, whatever was materialised."""

    values: Tensor

    def measure(self) -> tuple[Tensor, Use]:
        return euclidean.norms(rows_of(self.values)).square(), self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.mv(rows_of(self.values).T, weights).view(self.values.shape[1:])

    def gradients(self, start: int, stop: int) -> Tensor:
        return self.values[start:stop]

    def magnitude(self) -> Tensor:
        return euclidean.lengths(rows_of(self.values))

    def keep(self, finite: Tensor) -> Dense:
        return Dense(torch.where(finite.view(-1, *[1] * (self.values.dim() - 1)), self.values, 0.0))


def group_rows(tensor: Tensor, batch_size: int) -> Tensor:
    """View (n r, ...) as (n, r, ...), where ``Scope.tap`` has made sure that each sample has r rows."""
    if tensor.shape[0] == batch_size:
        return tensor.unsqueeze(1)
    return tensor.reshape(batch_size, -1, *tensor.shape[1:])


def per_sample_rows(tensor: Tensor, batch_size: int) -> Tensor:
    """View (n r, ...) as (n, r, ...) in the dtype that norms and sums live in."""
    return group_rows(tensor.to(accumulator(tensor)), batch_size)


def cast(x: Tensor) -> Tensor:
    """What autocast would make of an operand: cast here, the record holds the very numbers that were multiplied."""
    if x.is_cuda and x.dtype == torch.float32 and torch.is_autocast_enabled("cuda"):
        return x.to(torch.get_autocast_dtype("cuda"))
    return x


def detach_unseen(t: Tensor) -> Tensor:
    """``t.detach()`` that no dispatch mode sees: it needs no judging, as a view has the tag of its memory.

    A tensor with operations of its own (a wrapper subclass) is detached by them.
    """
    if type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return t.detach()
    with torch._C._DisableTorchDispatch():
        return t.detach()


def plain(scope: Scope, value: Tensor) -> Tensor:
    """A weight without its graph, so that autograd forms no gradient for it; anything else as it is."""
    return detach_unseen(value) if scope.is_weight(value) else value


def plain_or_none(scope: Scope, value: Tensor | None) -> Tensor | None:
    """The same for what may be absent."""
    return None if value is None else plain(scope, value)


def rows_of(values: Tensor) -> Tensor:
    """(n, *shape) as (n, numbers), a scalar parameter being one number."""
    return values.reshape(values.shape[0], -1)
