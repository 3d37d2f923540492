"""The two ideas of a layer rule: an operation taught to the recorder, and a use of a weight it leaves behind.

A *use* is one place where a trained weight met the samples. It holds what is needed to know that weight's per-sample
gradients without, in general, forming them. A *rule* is a function, registered under the name of the torch operation it
stands for; it runs the operation with the weight detached and taps the output: the backward pass then leaves the uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dpilot.engine.base import accumulator, zero_null_rows
from dpilot.numerics import precision


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


MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)
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
        """What to save of a linear map's input, and what maps of the same input in a row share (linear.SharedInput)."""
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
        return precision.norms(rows_of(self.values)).square(), self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.mv(rows_of(self.values).T, weights).view(self.values.shape[1:])

    def gradients(self, start: int, stop: int) -> Tensor:
        return self.values[start:stop]

    def magnitude(self) -> Tensor:
        return precision.lengths(rows_of(self.values))

    def keep(self, finite: Tensor) -> Dense:
        return Dense(zero_null_rows(self.values, finite))


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


def plain(scope: Scope, value: MaybeTensor) -> MaybeTensor:
    """A weight without its graph, so that autograd forms no gradient for it; anything else is returned itself."""
    return detach_unseen(value) if value is not None and scope.is_weight(value) else value


def rows_of(values: Tensor) -> Tensor:
    """(n, *shape) as (n, numbers), a scalar parameter being one number."""
    return values.reshape(values.shape[0], -1)


MEMORY = 1 << 24
"""Numbers formed at a time."""

# A sum of float32 products keeps partial sums. Where a sample's tokens are far longer than its gradient, its weight is
# large, and so are its partial sums: whatever other samples add while they stand is rounded to them. So what cancels
# within a sample enters a sum as it is formed (tests/engine/test_cancelling.py).


@dataclass(frozen=True, slots=True)
class Formed:
    """g_i = the sum of all uses, formed a few samples at a time: once to be measured, once more to be summed.

    Both times by the same products of the same numbers; should their rounding differ nevertheless (a neighbour that is
    null has its rows copied), T u S is allowed for.
    """

    uses: tuple[Use, ...]
    n: int
    step: int

    @staticmethod
    def of(uses: tuple[Use, ...], n: int) -> Formed:
        """The gradients of ``n`` samples, of which as many are formed at a time as fit."""
        return Formed(uses, n, max(1, MEMORY // max(uses[0].gradients(0, 1).numel(), 1)))

    def measure(self) -> tuple[Tensor, Use]:
        scales = self.magnitude()
        norms = torch.cat([precision.norms(rows_of(self.gradients(*few))) for few in self._few()])
        terms = max(getattr(use, "terms", 1) for use in self.uses) + len(self.uses)
        grade = max((getattr(use, "grade", precision.FULL) for use in self.uses), key=lambda g: g.tensor_cores)
        slack = precision.product_slack(terms, scales.dtype, replace(grade, shave=0.0))
        return (norms + slack * scales).square(), self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total: Any = 0
        for start, stop in self._few():
            made = self.gradients(start, stop)
            total = total + torch.mv(rows_of(made).T, weights[start:stop].to(made.dtype)).view(made.shape[1:])
        return torch.as_tensor(total)

    def gradients(self, start: int, stop: int) -> Tensor:
        return sum_formed(self.uses, start, stop)

    def magnitude(self) -> Tensor:
        return torch.stack([use.magnitude() for use in self.uses]).sum(0)

    def keep(self, finite: Tensor) -> Formed:
        return replace(self, uses=tuple(use.keep(finite) for use in self.uses))

    def _few(self) -> Iterator[tuple[int, int]]:
        return ((start, min(start + self.step, self.n)) for start in range(0, self.n, self.step))


@dataclass(frozen=True, slots=True)
class Apart:
    """A use of which the ``chosen`` samples are summed as they are formed, the others together, with zeros for them."""

    together: Use
    chosen: Tensor
    alone: Formed

    @staticmethod
    def of(use: Use, chosen: Tensor, few: Use) -> Apart:
        """``few`` is the use of the chosen samples only."""
        return Apart(use.keep(~chosen), chosen, Formed.of((few,), int(chosen.sum())))

    def measure(self) -> tuple[Tensor, Use]:
        squares = self.together.measure()[0].clone()
        squares[self.chosen] = self.alone.measure()[0]
        return squares, self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.together.weighted_sum(weights) + self.alone.weighted_sum(weights[self.chosen])

    def gradients(self, start: int, stop: int) -> Tensor:
        made = self.together.gradients(start, stop).clone()
        for place, at in enumerate(self.chosen.nonzero().flatten().tolist()):
            if start <= at < stop:
                made[at - start] = self.alone.gradients(place, place + 1)[0]
        return made

    def magnitude(self) -> Tensor:
        scales = self.together.magnitude().clone()
        scales[self.chosen] = self.alone.magnitude()
        return scales

    def keep(self, finite: Tensor) -> Apart:
        return Apart(self.together.keep(finite), self.chosen, self.alone.keep(finite[self.chosen]))


def sum_formed(uses: Sequence[Use], start: int, stop: int) -> Tensor:
    """Summed gradients of samples start .. stop; look-ups are added in place, without a table of their own."""
    ordered = sorted(uses, key=lambda use: 2 if hasattr(use, "add_to") else 1 if isinstance(use, Dense) else 0)
    first = ordered[0].gradients(start, stop)
    if len(ordered) == 1:
        return first
    whole = first.clone(memory_format=torch.contiguous_format) if isinstance(ordered[0], Dense) else first.contiguous()
    for use in ordered[1:]:
        if hasattr(use, "add_to"):
            use.add_to(whole, start)
        else:
            whole += use.gradients(start, stop)
    return whole
