"""Linear maps: F.linear, x @ W, addmm (Hugging Face's Conv1D)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dpilot.engine import precision
from dpilot.engine.base import NoRule, accumulator
from dpilot.engine.layers.base import (
    Dense,
    MakeUse,
    Operation,
    Scope,
    Use,
    cast,
    grouped_rows,
    plain,
    plain_or_none,
    rule,
)
from dpilot.engine.precision import Grade


@dataclass(frozen=True, slots=True)
class Product:
    """g_i = sum over tokens t of e_it a_it^T, from inputs a (n, T, d) and output gradients e (n, T, p).

    Norm: |a|^2 |e|^2 for one token; else the cheaper of the Gram form sum_st <a_s, a_t> <e_s, e_t>, with its rounding
    error added (precision.gram_slack), or the materialised gradient, which the sum then reuses.
    Sum: one product (w e)^T a over all tokens of all samples; what rounding w e can add is part of the norm.
    ``swapped`` says that the weight is stored (d, p), as x @ W and Hugging Face's Conv1D have it.
    """

    inputs: Tensor
    errors: Tensor
    swapped: bool = False
    grade: Grade = precision.FULL

    def measure(self) -> tuple[Tensor, Use]:
        tokens, d, p = self.inputs.shape[1], self.inputs.shape[2], self.errors.shape[2]
        if tokens == 1:
            return (self.magnitude() * (1 + self.grade.shave)).square(), self
        if gram_is_cheaper(tokens, d, p):
            return gram_bound(self.inputs, self.errors, self.grade, self._exact), self
        return Dense(self.gradients(0, self.inputs.shape[0])).measure()

    def gram_parts(self) -> GramParts | None:
        """The parts of a norm that is finished together with others, where it is of that kind."""
        tokens, d, p = self.inputs.shape[1], self.inputs.shape[2], self.errors.shape[2]
        together = self.grade.shave and tokens > 1 and gram_is_cheaper(tokens, d, p)
        return gram_parts(self.inputs, self.errors, self.grade) if together else None

    def _exact(self, chosen: Tensor) -> Tensor:
        return Dense(Product(self.inputs[chosen], self.errors[chosen]).gradients(0, self.inputs.shape[0])).magnitude()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        a, e = self.inputs, self.errors
        if weighs_inputs(a.shape[2], e.shape[2]):
            a = precision.weighted(a, weights)
        else:
            e = precision.weighted(e, weights)
        a, e = a.flatten(0, 1), e.flatten(0, 1)
        with precision.using(self.grade):
            return precision.mm(a.T, e) if self.swapped else precision.mm(e.T, a)

    def gradients(self, start: int, stop: int) -> Tensor:
        a, e = self.inputs[start:stop], self.errors[start:stop]
        with precision.using(self.grade):
            return precision.bmm(a.mT, e) if self.swapped else precision.bmm(e.mT, a)

    def magnitude(self) -> Tensor:
        return torch.sum(precision.lengths(self.inputs, 2) * precision.lengths(self.errors, 2), 1)

    def keep(self, finite: Tensor) -> Product:
        rows = finite[:, None, None]
        return replace(self, inputs=torch.where(rows, self.inputs, 0.0), errors=torch.where(rows, self.errors, 0.0))


def weighs_inputs(d: int, p: int) -> bool:
    """Whether a sum multiplies the weights into the inputs: into the narrower of the two."""
    return d < p


def gram(a: Tensor, e: Tensor) -> Tensor:
    """sum_st <a_s, a_t> <e_s, e_t> for each sample, (n,)."""
    return paired(precision.gram(a), precision.gram(e))


def paired(inputs: Tensor, errors: Tensor) -> Tensor:
    """The Gram norm from the Gram matrices (n, T, T); the first one is overwritten."""
    inputs *= errors
    return inputs.sum((1, 2))


@dataclass(frozen=True, slots=True)
class GramParts:
    """What a Gram norm on tensor cores is made of.

    n^2; S; |A A^T|_F of the operand A that the sum does not round; |E|_F^2 of the one it does; k u; the part rounded.
    """

    squares: Tensor
    scale: Tensor
    other: Tensor
    mass: Tensor
    unit: float
    shave: float


def gram_bound(a: Tensor, e: Tensor, grade: Grade, exact: Callable[[Tensor], Tensor]) -> Tensor:
    """Upper bounds of the squared norms of sum_t e_t a_t^T by the Gram form, a (n, T, d) and e (n, T, p)."""
    if grade.shave:
        return finished([gram_parts(a, e, grade)])[0]
    scale = torch.sum(precision.lengths(a, 2) * precision.lengths(e, 2), 1)
    unit = precision.gram_slack(a.shape[2], e.shape[2], scale.dtype)
    with precision.full():
        return bounded(gram(a, e), scale, unit, a.shape[1], exact)


def gram_parts(a: Tensor, e: Tensor, grade: Grade) -> GramParts:
    """The parts of the Gram norms of records whose sum rounds: everything that needs the records.

    The tokens' lengths are read off the diagonals: they only scale what is added for rounding.
    """
    d, p = a.shape[2], e.shape[2]
    with precision.using(grade):
        inputs, errors = precision.gram(a), precision.gram(e)
    lengths = inputs.diagonal(dim1=1, dim2=2), errors.diagonal(dim1=1, dim2=2)  # squared
    scale = torch.mul(*lengths).sqrt_().sum(1)
    other, rounded = (errors, lengths[0]) if weighs_inputs(d, p) else (inputs, lengths[1])
    parts = torch.linalg.vector_norm(other, dim=(1, 2)), rounded.sum(1)
    unit = precision.gram_slack(d, p, torch.float32, grade)
    return GramParts(paired(inputs, errors), scale, *parts, unit, grade.shave)


def finished(parts: Sequence[GramParts]) -> tuple[Tensor, ...]:
    """Upper bounds of squared norms, of many parameters at once: (sqrt(n^2 + k u S^2) + r min(S, |A| |E|_F))^2.

    Rounding each entry of E by its part r moves sum_t e_t a_t^T by no more than r |A| |E|_F, with |A| the largest
    singular value, at most sqrt(|A A^T|_F): for tokens in different directions far less than r S.
    """
    if not parts:
        return ()
    names = ("squares", "scale", "other", "mass")
    squares, scale, other, mass = (torch.stack([getattr(p, f) for p in parts]) for f in names)
    unit, shave = (constants(tuple(getattr(p, f) for p in parts), squares.device) for f in ("unit", "shave"))
    rounded = torch.minimum(scale, other.mul_(mass).sqrt_()).mul_(shave)
    least = torch.finfo(squares.dtype).tiny * VANISHED
    return torch.addcmul(squares.clamp_min_(least), scale.square(), unit).sqrt_().add_(rounded).square_().unbind(0)


VANISHED = 1 << 10
"""Squares too small for a float are zero; so many of the smallest float are put in their place."""


@cache
def constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A column of numbers on the device, kept: copying them there each time would make the processor wait."""
    return torch.tensor(values, device=device)[:, None]


def bounded(squares: Tensor, scale: Tensor, unit: float, tokens: int, exact: Callable[[Tensor], Tensor]) -> Tensor:
    """Upper bounds of squared norms from Gram norms: n^2 + k u S^2, or where that is loose (|g| + c u S)^2.

    ``exact(chosen)`` materialises the norms of some samples. Whether a sample is among them is its own affair: a norm
    never depends on other samples. A GPU would have to stop and look, so there the first form stays, loose or not.
    """
    slack = unit * scale.square()
    upper = squares.clamp_min(0) + slack
    if upper.is_cuda:
        return upper
    loose = slack > precision.LOOSE * squares  # false for nan: a null sample stays null
    if bool(loose.any()):
        upper[loose] = (exact(loose) + precision.product_slack(tokens, scale.dtype) * scale[loose]).square()
    return upper


def gram_is_cheaper(tokens: int, d: int, p: int, factor: int = 8) -> bool:
    """factor T^2 < d p: the Gram norm and a second product cost less than writing and reading the gradient.

    Bu et al. 2023 compare memory and have 2; a materialised gradient is also summed almost for free, and up to 8 it is
    no larger than about 1.4 times the records it replaces.
    """
    return factor * tokens * tokens < d * p


def merge(uses: Sequence[Product]) -> Product:
    """Several uses of one weight, of one grade, are one use with more tokens."""
    inputs, errors = torch.cat([u.inputs for u in uses], dim=1), torch.cat([u.errors for u in uses], dim=1)
    return replace(uses[0], inputs=inputs, errors=errors)


def product(a: Tensor, e: Tensor, n: int, swapped: bool = False) -> Product:
    """The use of inputs (r n, ..., d) and output gradients (r n, ..., p), in the precision the user's products have."""
    rows = [t if t.dim() == 3 and t.shape[0] == n else grouped_rows(t, n).flatten(1, -2) for t in (a, e)]
    a, e, grade = precision.graded(rows[0], rows[1])
    return Product(a, e, swapped, grade)


def product_use(n: int, swapped: bool) -> MakeUse:
    """The use a weight leaves from (inputs,) and the output gradient."""

    def make(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        return product(saved[0], e, n, swapped)

    return make


def bias_use(n: int) -> MakeUse:
    """The output gradient summed over tokens."""

    def make(_: tuple[Tensor, ...], e: Tensor) -> Use:
        rows = grouped_rows(e, n).flatten(1, -2)
        kind = accumulator(e)
        return Dense(rows[:, 0].to(kind) if rows.shape[1] == 1 else rows.sum(1, dtype=kind))

    return make


def linear(scope: Scope, x: Tensor, weight: Tensor, bias: Tensor | None, swapped: bool = False) -> Tensor:
    """x W^T + b (x W + b when swapped) with its uses recorded; the one place where linear maps are computed."""
    if x.dim() < 2:
        raise NoRule(
            f"a linear map of a tensor of shape {tuple(x.shape)} without samples first. Add a batch dimension."
        )
    x = cast(x)
    matrix = plain(scope, weight).mT if swapped else plain(scope, weight)
    out = torch.nn.functional.linear(x, matrix, plain_or_none(scope, bias))
    uses: list[tuple[Tensor, MakeUse]] = []
    if scope.is_weight(weight):
        base = scope.transposed_from(weight)
        turned = base is not None
        uses.append((weight if base is None else base, product_use(scope.batch_size, swapped != turned)))
    if bias is not None and scope.is_weight(bias):
        uses.append((bias, bias_use(scope.batch_size)))
    needs_input = scope.is_weight(weight)
    return scope.tap(out, (x.detach(),) if needs_input else (), uses)


@rule("linear")
def _linear(scope: Scope, _: Operation, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return linear(scope, input, weight, bias) if scope.is_sample(input) else NotImplemented


@rule("matmul", "mm", "__matmul__", "__rmatmul__", "bmm")
def _matmul(scope: Scope, operation: Operation, left: Tensor, right: Tensor) -> Any:
    if operation.__name__ == "__rmatmul__":
        left, right = right, left
    if scope.is_sample(left) and right.dim() == 2:
        return linear(scope, left, right, None, swapped=True)
    if scope.is_sample(left) and 2 < right.dim() <= left.dim():
        return torch.matmul(left, scope.spread(right, left.dim(), left.shape[0]))
    if scope.is_sample(right) and right.dim() > 2 and left.dim() <= right.dim():
        return torch.matmul(scope.spread(left, right.dim(), right.shape[0]), right)
    return NotImplemented


@rule("addmm")
def _addmm(scope: Scope, _: Operation, bias: Tensor, x: Tensor, weight: Tensor, **factors: float) -> Any:
    if factors or not scope.is_sample(x) or scope.is_sample(bias) or bias.dim() != 1:
        return NotImplemented
    return linear(scope, x, weight, bias, swapped=True)
