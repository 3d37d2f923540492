"""Linear maps: F.linear, x @ W, addmm (Hugging Face's Conv1D)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpilot.engine import precision
from dpilot.engine.base import NoRule
from dpilot.engine.layers.base import Dense, MakeUse, Operation, Scope, Use, per_sample_rows, plain, plain_or_none, rule


@dataclass(frozen=True, slots=True)
class Product:
    """g_i = sum over tokens t of e_it a_it^T, from inputs a (n, T, d) and output gradients e (n, T, p).

    Norm: |a|^2 |e|^2 for one token; else the cheaper of the Gram form sum_st <a_s, a_t> <e_s, e_t>, with its rounding
    error added (precision.gram_slack), or the materialised gradient, which the sum then reuses.
    Sum: one product (w e)^T a over all tokens of all samples.
    ``swapped`` says that the weight is stored (d, p), as x @ W and Hugging Face's Conv1D have it.
    """

    inputs: Tensor
    errors: Tensor
    swapped: bool = False

    def measure(self) -> tuple[Tensor, Use]:
        tokens, d, p = self.inputs.shape[1], self.inputs.shape[2], self.errors.shape[2]
        if tokens == 1:
            return self.magnitude().square(), self
        if gram_is_cheaper(tokens, d, p):
            return self._gram_measure()
        return Dense(self.gradients(0, self.inputs.shape[0])).measure()

    def _gram_measure(self) -> tuple[Tensor, Use]:
        scale = self.magnitude()
        unit = precision.gram_slack(self.inputs.shape[2], self.errors.shape[2], scale.dtype)
        return bounded(gram(self.inputs, self.errors), scale, unit, self.inputs.shape[1], self._exact), self

    def _exact(self, chosen: Tensor) -> Tensor:
        return Dense(Product(self.inputs[chosen], self.errors[chosen]).gradients(0, self.inputs.shape[0])).magnitude()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        a, e = self.inputs, self.errors
        if a.shape[2] < e.shape[2]:
            a = a * weights[:, None, None]
        else:
            e = e * weights[:, None, None]
        a, e = a.flatten(0, 1), e.flatten(0, 1)
        return torch.mm(a.T, e) if self.swapped else torch.mm(e.T, a)

    def gradients(self, start: int, stop: int) -> Tensor:
        a, e = self.inputs[start:stop], self.errors[start:stop]
        return torch.bmm(a.mT, e) if self.swapped else torch.bmm(e.mT, a)

    def magnitude(self) -> Tensor:
        lengths = torch.linalg.vector_norm(self.inputs, dim=2) * torch.linalg.vector_norm(self.errors, dim=2)
        return torch.sum(lengths, 1)

    def keep(self, finite: Tensor) -> Product:
        rows = finite[:, None, None]
        return Product(torch.where(rows, self.inputs, 0.0), torch.where(rows, self.errors, 0.0), self.swapped)


def gram(a: Tensor, e: Tensor) -> Tensor:
    """sum_st <a_s, a_t> <e_s, e_t> for each sample, (n,)."""
    pairs = torch.bmm(a, a.mT)
    pairs *= torch.bmm(e, e.mT)
    return pairs.flatten(1).sum(1)


def bounded(squares: Tensor, scale: Tensor, unit: float, tokens: int, exact: Callable[[Tensor], Tensor]) -> Tensor:
    """Upper bounds of squared norms from Gram norms: n^2 + k u S^2, or where that is loose (|g| + c u S)^2.

    ``exact(chosen)`` materialises the norms of some samples. Whether a sample is among them is its own affair: a norm
    never depends on other samples.
    """
    slack = unit * scale.square()
    loose = slack > precision.LOOSE * squares  # false for nan: a null sample stays null
    upper = squares.clamp_min(0) + slack
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
    """Several uses of one weight are one use with more tokens."""
    return Product(
        torch.cat([u.inputs for u in uses], dim=1), torch.cat([u.errors for u in uses], dim=1), uses[0].swapped
    )


def product_use(n: int, swapped: bool) -> MakeUse:
    """The use a weight leaves from (inputs,) and the output gradient."""

    def make(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        a, e = per_sample_rows(saved[0], n), per_sample_rows(e, n)
        return Product(a.flatten(1, -2), e.flatten(1, -2), swapped)

    return make


def bias_use(n: int) -> MakeUse:
    """The output gradient summed over tokens."""

    def make(_: tuple[Tensor, ...], e: Tensor) -> Use:
        rows = per_sample_rows(e, n).flatten(1, -2)
        return Dense(rows[:, 0] if rows.shape[1] == 1 else rows.sum(1))

    return make


def linear(scope: Scope, x: Tensor, weight: Tensor, bias: Tensor | None, swapped: bool = False) -> Tensor:
    """x W^T + b (x W + b when swapped) with its uses recorded; the one place where linear maps are computed."""
    if x.dim() < 2:
        raise NoRule(
            f"a linear map of a tensor of shape {tuple(x.shape)} without samples first. Add a batch dimension."
        )
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
