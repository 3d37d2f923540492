"""Linear maps: F.linear, x @ W, addmm (Hugging Face's Conv1D).

Their gradients are sums of outer products, as those of convolutions are, whose norms come from Gram matrices:
sum_st <a_s, a_t> <e_s, e_t>, with what rounding can hide.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpilot.engine.base import NoRule, accumulator, constants
from dpilot.engine.layers.base import (
    Apart,
    Dense,
    Formed,
    MakeUse,
    Operation,
    Scope,
    Use,
    cast,
    plain,
    rule,
)
from dpilot.numerics import kernels, precision
from dpilot.numerics.devices import tightens_bounds
from dpilot.numerics.precision import Grade


@dataclass(slots=True)
class SharedInput:
    """What linear maps of the same input share on the way back: its fitted numbers and its Gram matrix.

    The numbers live as long as a use holds them, the Gram matrix until the last of the ``users`` has read it.
    """

    users: int = 0
    _numbers: tuple[weakref.ref[Tensor], Grade, torch.dtype] | None = None
    _gram: Tensor | None = None
    _left: int = 0

    def fitted(self, rows: Tensor, grade: Grade, kind: torch.dtype) -> Tensor:
        held = self._numbers[0]() if self._numbers and self._numbers[1:] == (grade, kind) else None
        if held is None:
            held = precision.fit_to_grade(rows, grade, kind)
            self._numbers = weakref.ref(held), grade, kind
        return held

    def gram(self, rows: Tensor) -> Tensor:
        made = precision.gram(rows) if self._gram is None else self._gram
        self._left = (self._left or self.users) - 1
        self._gram = made if self._left else None
        return made


def gram(a: Tensor, e: Tensor) -> Tensor:
    """sum_st <a_s, a_t> <e_s, e_t> for each sample, (n,)."""
    return gram_norm(precision.gram(a), precision.gram(e))


def gram_norm(inputs: Tensor, errors: Tensor) -> Tensor:
    """The Gram norm from the Gram matrices (n, T, T); the second one is overwritten."""
    errors *= inputs
    return errors.sum(2).sum(1)  # row by row: in one chain as long as both, little is lost with many


@dataclass(frozen=True, slots=True)
class GramParts:
    """What a Gram norm on tensor cores is made of.

    n^2; |A A^T|_F^2 of the operand A that the sum does not round; S; |E|_F^2 of the one it does; V; k u; the part
    rounded; the number of tokens.
    """

    squares: Tensor
    other: Tensor
    scale: Tensor
    mass: Tensor
    vanished: Tensor
    unit: float
    shave: float
    tokens: int


def gram_bound(
    a: Tensor,
    e: Tensor,
    grade: Grade,
    few: Callable[[Tensor], Use],
    rounds_inputs: bool,
    shared: SharedInput | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Upper bounds of the squared norms of sum_t e_t a_t^T by the Gram form, a (n, T, d) and e (n, T, p).

    And which samples (n,) have to be summed as they are formed, if any has.
    ``rounds_inputs`` says which of the two the caller's sum weighs, and so rounds: the inputs or else the errors.
    """
    if grade.shave:
        return finish_bounds([gram_parts(a, e, grade, rounds_inputs, shared)])[0], None
    inputs, errors = precision.lengths(a), precision.lengths(e)
    scale, vanished = along(inputs, errors, roots_of(a, e, inputs.dtype))
    unit = precision.gram_slack(a.shape[2], e.shape[2], scale.dtype)
    with precision.use_full_precision():
        return bound_squares(gram(a, e), scale, vanished, unit, a.shape[1], few)


def roots_of(a: Tensor, e: Tensor, dtype: torch.dtype) -> kernels.Roots:
    """What may vanish of a token of each."""
    return precision.underflow_length(a.shape[2], dtype), precision.underflow_length(e.shape[2], dtype)


def along(inputs: Tensor, errors: Tensor, roots: kernels.Roots) -> tuple[Tensor, Tensor]:
    """S = sum_t |a_t| |e_t| and V = sum_t root(d) |e_t| + root(p) |a_t| from lengths (n, T) that are no smaller.

    Entries of a Gram matrix are off by root^2 where products vanish, however large the other matrix is there: the Gram
    norm's square is off by no more than (root(d) sum |e_t|)^2 + (root(p) sum |a_t|)^2 < V^2. Neither product vanishes
    itself: lengths are no smaller than roots.
    """
    return torch.sum(inputs * errors, 1), torch.sum(errors * roots[0] + inputs * roots[1], 1)


def gram_parts(a: Tensor, e: Tensor, grade: Grade, rounds_inputs: bool, shared: SharedInput | None = None) -> GramParts:
    """The parts of the Gram norms of records whose sum rounds: everything that needs the records.

    The tokens' lengths are read off the diagonals: they only scale what is added for rounding.
    """
    alone = joint_parts(a, [e], grade, rounds_inputs) if shared is None or shared.users == 1 else None
    if alone is not None:
        return alone[0]
    with precision.use_grade(grade):
        inputs, errors = precision.gram(a) if shared is None else shared.gram(a), precision.gram(e)
    return parts_of(inputs, errors, (a.shape[1], a.shape[2], e.shape[2]), grade, rounds_inputs)


def joint_parts(a: Tensor, errors: Sequence[Tensor], grade: Grade, rounds_inputs: bool) -> list[GramParts] | None:
    """The same for several maps of one input, without writing Gram matrices; None where no kernel does that.

    Its tiles are formed by the instructions of plain products, every entry by one chain over d or p. Products of
    entries are summed by chains of at most four in a thread, then over lanes, warps and tiles: fewer roundings than the
    64 of ``gram_slack``.
    """
    if grade not in (precision.TF32, precision.BFLOAT16):
        return None
    (_, tokens, d), widths = a.shape, [e.shape[2] for e in errors]
    if max(d, *widths) > precision.WIDE:
        return None
    roots = [roots_of(a, e, torch.float32) for e in errors]
    found = kernels.gram_products(a, errors, rounds_inputs, roots)
    if found is None:
        return None
    units = [precision.gram_slack(d, p, torch.float32, grade, a.device, fused=True) for p in widths]
    return [GramParts(*sums, unit, grade.shave, tokens) for sums, unit in zip(found, units, strict=True)]


def parts_of(
    inputs: Tensor, errors: Tensor, sizes: tuple[int, int, int], grade: Grade, rounds_inputs: bool, terms: int = 0
) -> GramParts:
    """The same from the Gram matrices, of T tokens with d and p numbers; the errors' may be overwritten.

    ``terms`` is how many inner products an entry of the inputs' matrix was added up from.
    """
    tokens, d, p = sizes
    roots = precision.underflow_length(d, torch.float32), precision.underflow_length(p, torch.float32)
    found = kernels.gram_sums(inputs, errors, rounds_inputs, roots)
    if found is None:
        found = gram_sums(inputs, errors, rounds_inputs, roots)
    unit = precision.gram_slack(d, p, torch.float32, grade, inputs.device)
    unit += terms * precision.unit_roundoff(torch.float32)
    return GramParts(*found, unit, grade.shave, tokens)


def gram_sums(inputs: Tensor, errors: Tensor, rounds_inputs: bool, roots: kernels.Roots) -> kernels.FiveSums:
    """The five sums of ``GramParts`` by plain operations; the errors' matrices are overwritten."""
    a, e = (g.diagonal(dim1=1, dim2=2).sqrt() + root for g, root in zip((inputs, errors), roots, strict=True))
    scale, vanished = along(a, e, roots)
    other, rounded = (errors, a) if rounds_inputs else (inputs, e)
    other, mass = torch.linalg.vector_norm(other, dim=(1, 2)).square(), rounded.square().sum(1)
    return gram_norm(inputs, errors), other, scale, mass, vanished


def finish_bounds(parts: Sequence[GramParts]) -> tuple[Tensor, ...]:
    """Upper bounds of squared norms, of many parameters: (sqrt(n^2 + k u S^2 + V^2) + 2 T u S + r min(S, |A| |E|_F))^2.

    Rounding each entry of E by its part r moves sum_t e_t a_t^T by no more than r |A| |E|_F, with |A| the largest
    singular value, at most sqrt(|A A^T|_F): for tokens in different directions far less than r S. The sum's own chain
    over T tokens loses up to 2 T u S. V is what vanished where products are too small for a float; of the T^2 products
    of both matrices, T^2 of the smallest float vanish.
    """
    if not parts:
        return ()
    names = ("squares", "other", "scale", "mass", "vanished")
    squares, other, scale, mass, vanished = (torch.stack([getattr(p, f) for p in parts]) for f in names)
    unit, shave = (constants(tuple(getattr(p, f) for p in parts), squares.device) for f in ("unit", "shave"))
    tiny = torch.finfo(squares.dtype).tiny
    lost = constants(tuple(2 * tiny * p.tokens**2 for p in parts), squares.device)
    chains = constants(tuple(SUMMED * p.tokens for p in parts), squares.device)
    # |E' A - E A|_F <= |E' - E|_F |A| <= r |E|_F |A|, and |A|^2 = |A A^T| <= |A A^T|_F
    # (tests/engine/test_tensor_cores.py::test_tf32_norms_bound_what_tf32_sums_add)
    rounded = torch.minimum(scale, other.add_(lost).sqrt_().sqrt_().mul_(mass.sqrt_())).mul_(shave)
    rounded.addcmul_(scale, chains)
    upper = torch.addcmul(not_below_0(squares).add_(lost), scale.square(), unit).addcmul_(vanished, vanished)
    return upper.sqrt_().add_(rounded).square_().unbind(0)


SUMMED = 2 * precision.unit_roundoff(torch.float32)
"""What a sum on tensor cores may lose with each token, of S."""


def not_below_0(squares: Tensor) -> Tensor:
    """Squares that rounding left below 0 are 0; one that fell below all floats is no number: its sample is null."""
    return squares.clamp_min(0).masked_fill_(squares == -torch.inf, torch.nan)


def bound_squares(
    squares: Tensor, scale: Tensor, vanished: Tensor, unit: float, tokens: int, few: Callable[[Tensor], Use]
) -> tuple[Tensor, Tensor | None]:
    """Upper bounds of squared norms from Gram norms: (sqrt(n^2 + k u S^2 + V^2) + T u S)^2; if loose (|g| + T u S)^2.

    ``few(chosen)`` is the use of some samples, to be formed. Whether a sample is among them is its own affair: a norm
    never depends on other samples. A GPU would have to stop and look, so there the first form stays, loose or not.
    """
    lost = 2 * torch.finfo(squares.dtype).tiny * tokens**2
    slack = unit * scale.square() + vanished.square() + lost
    summed = precision.product_slack(tokens, scale.dtype) * scale
    upper = (torch.sqrt(not_below_0(squares) + slack) + summed).square()
    if not tightens_bounds(upper.device):
        return upper, None
    # where tokens cancel the slack may be all of the bound: then the gradient itself is measured, and so summed
    # (tests/engine/test_precision.py::test_norm_is_tight_when_tokens_cancel)
    loose = slack > precision.LOOSE * squares  # false for nan: a null sample stays null
    loose &= scale > vanished  # nothing is to be formed of a gradient of zeros
    if not bool(loose.any()):
        return upper, None
    upper[loose] = Formed.of((few(loose),), int(loose.sum())).measure()[0]
    return upper, loose


def gram_is_cheaper(tokens: int, d: int, p: int, factor: int = 8) -> bool:
    """factor T^2 < d p: the Gram norm and a second product cost less than writing and reading the gradient.

    Bu et al. 2023 compare memory and have 2; a materialised gradient is also summed almost for free, and up to 8 it is
    no larger than about 1.4 times the records it replaces.
    """
    return factor * tokens * tokens < d * p


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

    def tokens(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """a (m, T, d) and e (m, T, p) of a few samples, of which the gradient is sum_t e_t a_t^T as it is stored."""
        a, e = self.inputs[start:stop], self.errors[start:stop]
        return (e, a) if self.swapped else (a, e)

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
