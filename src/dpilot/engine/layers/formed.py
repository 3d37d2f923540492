"""Gradients that enter a sum as they are formed: what cancels within a sample must not stand in a sum of all.

A sum of float32 products keeps partial sums. Where a sample's tokens are far longer than its gradient, its weight is
large, and so are its partial sums: whatever other samples add while they stand is rounded to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpilot.engine.layers.base import Dense, Use, rows_of
from dpilot.numerics import euclidean, precision

MEMORY = 1 << 24
"""Numbers formed at a time."""


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
        norms = torch.cat([euclidean.norms(rows_of(self.gradients(*few))) for few in self._few()])
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
