"""Norms of sums of outer products from Gram matrices: sum_st <a_s, a_t> <e_s, e_t>, with what rounding can hide."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpilot.engine.base import constants
from dpilot.engine.layers.base import Formed, Use
from dpilot.numerics import kernels, precision
from dpilot.numerics.devices import policy_of
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
    if not policy_of(upper.device).tightens_bounds:
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
