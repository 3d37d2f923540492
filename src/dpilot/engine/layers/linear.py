"""Linear maps: F.linear, x @ W, addmm (Hugging Face's Conv1D)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpilot.engine.base import NoRule, accumulator
from dpilot.engine.layers.base import (
    Apart,
    Dense,
    MakeUse,
    Operation,
    Scope,
    Use,
    cast,
    plain,
    rule,
)
from dpilot.engine.layers.gram import (
    GramParts,
    SharedInput,
    gram_bound,
    gram_is_cheaper,
    gram_parts,
    joint_parts,
)
from dpilot.numerics import kernels, precision
from dpilot.numerics.precision import Grade


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
    shared: SharedInput | None = None

    def measure(self) -> tuple[Tensor, Use]:
        tokens, d, p = self.inputs.shape[1], self.inputs.shape[2], self.errors.shape[2]
        if tokens == 1:
            return (self.magnitude() * (1 + self.grade.shave)).square(), self
        if gram_is_cheaper(tokens, d, p):
            made = self.inputs, self.errors, self.grade, self._few, weighs_inputs(d, p), self.shared
            squares, loose = gram_bound(*made)
            return squares, self if loose is None else Apart.of(self, loose, self._few(loose))
        return Dense(self.gradients(0, self.inputs.shape[0])).measure()

    @property
    def defers_finish(self) -> bool:
        """Whether the norm is a Gram norm that is finished together with others, from ``gram_parts``."""
        tokens, d, p = self.inputs.shape[1], self.inputs.shape[2], self.errors.shape[2]
        return bool(self.grade.shave) and tokens > 1 and gram_is_cheaper(tokens, d, p)

    def gram_parts(self) -> GramParts:
        """What the Gram norm is made of."""
        d, p = self.inputs.shape[2], self.errors.shape[2]
        return gram_parts(self.inputs, self.errors, self.grade, weighs_inputs(d, p), self.shared)

    def mates(self) -> int:
        """How many maps of this input, itself among them, have their Gram norms formed together."""
        if self.shared is None or not kernels.forms_products(self.inputs):
            return 1
        return min(self.shared.users, kernels.MOST)

    @property
    def terms(self) -> int:
        """From how many products an entry of a gradient is summed."""
        return self.inputs.shape[1]

    def _few(self, chosen: Tensor) -> Product:
        return replace(self, inputs=self.inputs[chosen], errors=self.errors[chosen], shared=None)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        a, e = self.inputs, self.errors
        if weighs_inputs(a.shape[2], e.shape[2]):
            a = precision.weight_rows(a, weights)
        else:
            e = precision.weight_rows(e, weights)
        a, e = a.flatten(0, 1), e.flatten(0, 1)
        with precision.use_grade(self.grade):
            return precision.mm(a.T, e) if self.swapped else precision.mm(e.T, a)

    def gradients(self, start: int, stop: int) -> Tensor:
        a, e = self.inputs[start:stop], self.errors[start:stop]
        with precision.use_grade(self.grade):
            return precision.bmm(a.mT, e) if self.swapped else precision.bmm(e.mT, a)

    def magnitude(self) -> Tensor:
        return torch.sum(precision.lengths(self.inputs) * precision.lengths(self.errors), 1)

    def keep(self, finite: Tensor) -> Product:
        rows = finite[:, None, None]
        inputs, errors = torch.where(rows, self.inputs, 0.0), torch.where(rows, self.errors, 0.0)
        return replace(self, inputs=inputs, errors=errors, shared=None)


def weighs_inputs(d: int, p: int) -> bool:
    """Whether a linear map's sum multiplies the weights into the inputs: into the narrower of the two."""
    return d < p


def mates_parts(uses: Sequence[Product]) -> list[GramParts]:
    """The parts of maps of one input, formed together where that can be done."""
    kinds = {(u.grade, weighs_inputs(u.inputs.shape[2], u.errors.shape[2]), id(u.inputs)) for u in uses}
    if len(kinds) == 1:
        grade, rounds_inputs, _ = kinds.pop()
        together = joint_parts(uses[0].inputs, [u.errors for u in uses], grade, rounds_inputs)
        if together is not None:
            return together
    return [u.gram_parts() for u in uses]


def merge(uses: Sequence[Product]) -> Product:
    """Several uses of one weight, of one grade, are one use with more tokens."""
    inputs, errors = torch.cat([u.inputs for u in uses], dim=1), torch.cat([u.errors for u in uses], dim=1)
    return replace(uses[0], inputs=inputs, errors=errors, shared=None)


def product(a: Tensor, e: Tensor, n: int, swapped: bool = False, shared: SharedInput | None = None) -> Product:
    """The use of inputs (r n, ..., d) and output gradients (r n, ..., p), in the precision the user's products have."""
    a, e = tokens_of(a, n), tokens_of(e, n)
    grade, kind = precision.grade_of(a, e)
    inputs = fit_inputs(a, grade, kind, shared)
    return Product(inputs, precision.fit_to_grade(e, grade, kind), swapped, grade, shared)


def tokens_of(t: Tensor, n: int) -> Tensor:
    """(r n, ..., d) as (n, T, d)."""
    return t.reshape(n, t.shape[:-1].numel() // n, t.shape[-1])


def fit_inputs(a: Tensor, grade: Grade, kind: torch.dtype, shared: SharedInput | None) -> Tensor:
    """Inputs that fit a grade, once for all maps that share them."""
    return precision.fit_to_grade(a, grade, kind) if shared is None else shared.fitted(a, grade, kind)


def product_use(
    n: int, swapped: bool, shared: SharedInput | None = None, summed: list[Tensor] | None = None
) -> MakeUse:
    """The use a weight leaves from (inputs,) and the output gradient.

    ``summed`` takes the output gradient's sums over tokens, for the bias, where they are had in the same reading.
    """

    def make(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        a, rows = saved[0], tokens_of(e, n)
        if summed is not None and rows.is_cuda and rows.shape[1] > 1:
            grade, kind = precision.grade_of(tokens_of(a, n), rows)
            both = precision.truncate_and_sum(rows) if grade is precision.TF32 and rows.dtype == kind else None
            if both is not None:
                summed.append(both[1])
                inputs = fit_inputs(tokens_of(a, n), grade, kind, shared)
                return Product(inputs, both[0], swapped, grade, shared)
        return product(a, rows, n, swapped, shared)

    return make


def bias_use(n: int, summed: list[Tensor] | None = None) -> MakeUse:
    """The output gradient summed over tokens, if the weight's use has not summed it already."""

    def make(_: tuple[Tensor, ...], e: Tensor) -> Use:
        if summed:
            return Dense(summed.pop())
        rows = tokens_of(e, n)
        kind = accumulator(e)
        return Dense(rows[:, 0].to(kind) if rows.shape[1] == 1 else rows.sum(1, dtype=kind))

    return make


def linear(scope: Scope, x: Tensor, weight: Tensor, bias: Tensor | None, swapped: bool = False) -> Tensor:
    """x W^T + b (x W + b when swapped) with its uses recorded; the one place where linear maps are computed."""
    if x.dim() < 2:
        raise NoRule(
            f"a linear map of a tensor of shape {tuple(x.shape)} without samples first. Add a batch dimension."
        )
    matrix, offset, own = plain(scope, weight), plain(scope, bias), cast(x)
    out = torch.nn.functional.linear(own, matrix.mT if swapped else matrix, offset)
    uses: list[tuple[Tensor, MakeUse]] = []
    saved: tuple[Tensor, ...] = ()
    summed = None if offset is bias else list[Tensor]()  # filled and emptied between two uses of one tap
    if matrix is not weight:
        base = scope.transposed_from(weight)
        turned = base is not None
        record, shared = scope.input_of_several(x, own)
        saved = (record,)
        make = product_use(scope.batch_size, swapped != turned, shared, summed)
        uses.append((weight if base is None else base, make))
    if bias is not None and summed is not None:
        uses.append((bias, bias_use(scope.batch_size, summed)))
    return scope.tap(out, saved, uses)


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
        return torch.matmul(left, scope.spread(right, left))
    if scope.is_sample(right) and right.dim() > 2 and left.dim() <= right.dim():
        return torch.matmul(scope.spread(left, right), right)
    return NotImplemented


@rule("addmm")
def _addmm(scope: Scope, _: Operation, bias: Tensor, x: Tensor, weight: Tensor, **factors: float) -> Any:
    if factors or not scope.is_sample(x) or scope.is_sample(bias) or bias.dim() != 1:
        return NotImplemented
    return linear(scope, x, weight, bias, swapped=True)
