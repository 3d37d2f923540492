"""Norms of sums of outer products from Gram matrices: sum_st <a_s, a_t> <e_s, e_t>, with what rounding can hide."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from dpilot.engine import kernels, precision
from dpilot.engine.precision import Grade


@dataclass(slots=True)
class Shared:
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
            held = precision.fitted(rows, grade, kind)
            self._numbers = weakref.ref(held), grade, kind
        return held

    def gram(self, rows: Tensor) -> Tensor:
        made = precision.gram(rows) if self._gram is None else self._gram
        self._left = (self._left or self.users) - 1
        self._gram = made if self._left else None
        return made


def weighs_inputs(d: int, p: int) -> bool:
    """Whether a sum multiplies the weights into the inputs: into the narrower of the two."""
    return d < p


def gram(a: Tensor, e: Tensor) -> Tensor:
    """sum_st <a_s, a_t> <e_s, e_t> for each sample, (n,)."""
    return paired(precision.gram(a), precision.gram(e))


def paired(inputs: Tensor, errors: Tensor) -> Tensor:
    """The Gram norm from the Gram matrices (n, T, T); the second one is overwritten."""
    errors *= inputs
    return errors.sum((1, 2))


@dataclass(frozen=True, slots=True)
class GramParts:
    """What a Gram norm on tensor cores is made of.

    n^2; |A A^T|_F^2 of the operand A that the sum does not round; S; |E|_F^2 of the one it does; k u; the part rounded;
    the number of tokens.
    """

    squares: Tensor
    other: Tensor
    scale: Tensor
    mass: Tensor
    unit: float
    shave: float
    tokens: int


def gram_bound(
    a: Tensor, e: Tensor, grade: Grade, exact: Callable[[Tensor], Tensor], shared: Shared | None = None
) -> Tensor:
    """Upper bounds of the squared norms of sum_t e_t a_t^T by the Gram form, a (n, T, d) and e (n, T, p)."""
    if grade.shave:
        return finished([gram_parts(a, e, grade, shared)])[0]
    scale = torch.sum(precision.lengths(a, 2) * precision.lengths(e, 2), 1)
    unit = precision.gram_slack(a.shape[2], e.shape[2], scale.dtype)
    with precision.full():
        return bounded(gram(a, e), scale, unit, a.shape[1], exact)


def gram_parts(a: Tensor, e: Tensor, grade: Grade, shared: Shared | None = None) -> GramParts:
    """The parts of the Gram norms of records whose sum rounds: everything that needs the records.

    The tokens' lengths are read off the diagonals: they only scale what is added for rounding.
    """
    tokens, d, p = a.shape[1], a.shape[2], e.shape[2]
    with precision.using(grade):
        inputs, errors = precision.gram(a) if shared is None else shared.gram(a), precision.gram(e)
    narrow = weighs_inputs(d, p)
    found = kernels.gram_sums(inputs, errors, narrow)
    unit = precision.gram_slack(d, p, torch.float32, grade)
    return GramParts(*(gram_sums(inputs, errors, narrow) if found is None else found), unit, grade.shave, tokens)


def gram_sums(inputs: Tensor, errors: Tensor, rounds_inputs: bool) -> kernels.FourSums:
    """The four sums of ``GramParts`` by plain operations; the errors' matrices are overwritten."""
    lengths = inputs.diagonal(dim1=1, dim2=2), errors.diagonal(dim1=1, dim2=2)  # squared
    scale = torch.mul(*(t.sqrt() for t in lengths)).sum(1)
    other, rounded = (errors, lengths[0]) if rounds_inputs else (inputs, lengths[1])
    other, mass = torch.linalg.vector_norm(other, dim=(1, 2)).square(), rounded.sum(1)
    return paired(inputs, errors), other, scale, mass


def finished(parts: Sequence[GramParts]) -> tuple[Tensor, ...]:
    """Upper bounds of squared norms, of many parameters at once: (sqrt(n^2 + k u S^2) + r min(S, |A| |E|_F))^2.

    Rounding each entry of E by its part r moves sum_t e_t a_t^T by no more than r |A| |E|_F, with |A| the largest
    singular value, at most sqrt(|A A^T|_F): for tokens in different directions far less than r S.
    """
    if not parts:
        return ()
    names = ("squares", "other", "scale", "mass")
    squares, other, scale, mass = (torch.stack([getattr(p, f) for p in parts]) for f in names)
    unit, shave = (constants(tuple(getattr(p, f) for p in parts), squares.device) for f in ("unit", "shave"))
    tiny = torch.finfo(squares.dtype).tiny
    lost = constants(tuple(tiny * p.tokens**2 for p in parts), squares.device)  # squares too small for a float
    rounded = torch.minimum(scale, other.add_(lost).sqrt_().mul_(mass).sqrt_()).mul_(shave)
    least = tiny * VANISHED
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
