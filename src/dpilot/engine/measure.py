"""From the uses of all parameters to their squared norms, in few calls.

On a GPU a model of a hundred layers has hundreds of small vectors of length n to compute: each call costs more than its
work. So Gram norms leave their parts behind and are finished together, and small dense gradients (biases, scales) are
laid side by side, one matrix for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from dpilot.engine.combine import combine
from dpilot.engine.layers.base import Dense, Use, rows_of
from dpilot.engine.layers.conv import Correlation
from dpilot.engine.layers.embedding import Lookups
from dpilot.engine.layers.formed import Apart, Formed
from dpilot.engine.layers.gram import GramParts, finish_bounds
from dpilot.engine.layers.linear import Product, mates_parts
from dpilot.engine.layers.offsets import ByEntry
from dpilot.engine.tied import tied_parts

TOGETHER = frozenset({"cuda"})
"""Kinds of device on which calls are worth saving."""
SMALL = 1 << 12
"""Numbers a sample up to which dense gradients are laid side by side: a copy that size is cheaper than a call."""

Uses = tuple[Use, ...]


@dataclass(slots=True)
class Measured:
    """What is known of every parameter: squared norms, or what they are to be made of, and the uses to sum with."""

    squares: dict[str, Tensor] = field(default_factory=dict)
    uses: dict[str, Uses] = field(default_factory=dict)
    parts: dict[str, GramParts] = field(default_factory=dict)
    small: dict[str, Dense] = field(default_factory=dict)
    side_by_side: list[SideBySide] = field(default_factory=list)
    waiting: dict[int, dict[str, Product]] = field(default_factory=dict)

    def add(self, name: str, found: Sequence[Use]) -> None:
        """Take the uses of one parameter."""
        use = found[0]
        if len(found) == 1 and isinstance(use, Dense) and joins(use):
            self.small[name] = use
        elif len(found) == 1 and isinstance(use, Product) and (mates := use.mates()) > 1:
            present = self.waiting.setdefault(id(use.shared), {})
            present[name] = use
            if len(present) == mates:
                self._meet(id(use.shared))
        elif len(found) == 1 and isinstance(use, (Product, Correlation)) and (parts := use.gram_parts()) is not None:
            self.parts[name], self.uses[name] = parts, (use,)
        elif (tied := tied_parts(found)) is not None:
            self.parts[name], self.uses[name] = tied
        else:
            self.squares[name], uses = combine(found)
            if len(uses) == 1 and isinstance(uses[0], Dense) and joins(uses[0]):
                self.small[name] = uses[0]
            else:
                self.uses[name] = uses

    def _meet(self, shared: int) -> None:
        """Form the Gram norms of maps of one input."""
        mates = self.waiting.pop(shared)
        self.parts.update(zip(mates, mates_parts(list(mates.values())), strict=True))
        self.uses.update((name, (use,)) for name, use in mates.items())

    def finish(self) -> None:
        """Make the squared norms of all parameters."""
        for shared in list(self.waiting):
            self._meet(shared)
        self.squares.update(zip(self.parts, finish_bounds(list(self.parts.values())), strict=True))
        kinds = {(d.values.device, d.values.dtype) for d in self.small.values()}
        for kind in kinds:
            mine = {name: d for name, d in self.small.items() if (d.values.device, d.values.dtype) == kind}
            bundle = SideBySide.of(mine)
            self.squares.update(bundle.squares())
            self.side_by_side.append(bundle)
        self.small.clear()  # copied: held twice, they would take twice the memory


def joins(use: Dense) -> bool:
    """Whether a dense gradient is laid side by side with others."""
    return use.values.device.type in TOGETHER and use.values[0].numel() <= SMALL


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Small dense gradients in one matrix (n, numbers), those of one width next to each other."""

    shapes: Mapping[str, torch.Size]
    matrix: Tensor

    @staticmethod
    def of(gradients: Mapping[str, Dense]) -> SideBySide:
        ordered = sorted(gradients.items(), key=lambda item: item[1].values[0].numel())
        shapes = {name: use.values.shape[1:] for name, use in ordered}
        return SideBySide(shapes, torch.cat([rows_of(use.values) for _, use in ordered], dim=1))

    def squares(self) -> dict[str, Tensor]:
        """Squared norms by parameter, one call for each width."""
        found: dict[str, Tensor] = {}
        widths: dict[int, list[str]] = {}
        for name, shape in self.shapes.items():
            widths.setdefault(shape.numel(), []).append(name)
        start = 0
        for width, names in widths.items():
            stop = start + width * len(names)
            block = self.matrix[:, start:stop].view(-1, len(names), width)
            norms = torch.linalg.vector_norm(block, dim=2).square()
            found.update(zip(names, norms.unbind(1), strict=True))
            start = stop
        return found

    def keep(self, finite: Tensor) -> SideBySide:
        """The same with the rows of null samples replaced by zeros, in place: the matrix is nobody else's."""
        self.matrix.masked_fill_(~finite[:, None], 0.0)
        return self

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum over i of w_i g_i for every parameter here; one product where all have the same weights."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        mine = [weights[name] for name in self.shapes]
        if all(w is mine[0] for w in mine):
            sums = torch.split(torch.mv(self.matrix.T, mine[0]), sizes)
        else:
            columns = torch.split(self.matrix, sizes, dim=1)
            sums = tuple(torch.mv(c.T, w) for c, w in zip(columns, mine, strict=True))
        return {name: s.view(shape) for (name, shape), s in zip(self.shapes.items(), sums, strict=True)}


CHEAP = 1 << 24
"""Recorded numbers up to which rewriting them costs less than waiting to know whether a sample is null."""


def cheap(measured: Measured) -> bool:
    """Whether null samples are zeroed without looking for any: decided by device and sizes, not by what is in them."""
    records = [t for uses in measured.uses.values() for use in uses for t in tensors_of(use)]
    return all(t.is_cuda for t in records) and sum(t.numel() for t in records) <= CHEAP


def tensors_of(held: Any) -> list[Tensor]:
    """The tensors that a use holds, and those of the uses in it."""
    if isinstance(held, Tensor):
        return [held]
    if isinstance(held, tuple):
        return [t for each in held for t in tensors_of(each)]
    inside = (Dense, Product, Correlation, ByEntry, Lookups, Formed, Apart)
    return [t for f in fields(held) for t in tensors_of(getattr(held, f.name))] if isinstance(held, inside) else []
