"""From the uses of all parameters to their squared norms, in few calls.

On a GPU a model of a hundred layers has hundreds of small vectors of length n to compute: each call costs more than its
work. So Gram norms leave their parts behind and are finished together, and small dense gradients (biases, scales) are
laid side by side, one matrix for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine.base import accumulator
from dpilot.engine.layers.base import Apart, Dense, Formed, Use, rows_of
from dpilot.engine.layers.conv import ByEntry, Correlation
from dpilot.engine.layers.embedding import Lookups, tied_parts
from dpilot.engine.layers.gram import GramParts, finish_bounds
from dpilot.engine.layers.linear import Product, mates_parts, merge
from dpilot.numerics import precision
from dpilot.numerics.devices import policy_of

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
        elif len(found) == 1 and isinstance(use, (Product, Correlation)) and use.defers_finish:
            self._add_deferred(name, use)
        elif len(found) == 2 and (tied := tied_parts(found)) is not None:
            self.parts[name], self.uses[name] = tied
        else:
            self.squares[name], uses = combine(found)
            if len(uses) == 1 and uses[0] is not use and isinstance(uses[0], Dense) and joins(uses[0]):
                self.small[name] = uses[0]
            else:
                self.uses[name] = uses

    def _add_deferred(self, name: str, use: Product | Correlation) -> None:
        """Take a use whose Gram norm is finished together with others; maps of one input wait for each other."""
        if isinstance(use, Correlation) or (mates := use.mates()) == 1:
            self.parts[name], self.uses[name] = use.gram_parts(), (use,)
            return
        present = self.waiting.setdefault(id(use.shared), {})
        present[name] = use
        if len(present) == mates:
            self._meet(id(use.shared))

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
    return policy_of(use.values.device).joins_small and use.values[0].numel() <= SMALL


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


def combine(uses: Sequence[Use]) -> tuple[Tensor, tuple[Use, ...]]:
    """Squared norms of the sum of all uses, and the uses to sum with.

    Uses of one kind merge exactly (more tokens, more rows, added values). Gradients of uses of different kinds are
    formed and added, a few samples at a time, to be measured and to be summed.
    """
    merged = uses if len(uses) == 1 else merge_alike(uses)
    if len(merged) == 1:
        squares, use = merged[0].measure()
        return squares, (use,)
    apart = tuple(use.merge() if isinstance(use, Lookups) else use for use in merged)
    formed = Formed.of(apart, apart[0].magnitude().shape[0])
    return formed.measure()[0], (formed,)


def merge_alike(uses: Sequence[Use]) -> list[Use]:
    """Merge dense uses with each other, products with each other, look-ups with each other."""
    dense = [u for u in uses if isinstance(u, Dense)]
    lookups = [u for u in uses if isinstance(u, Lookups)]
    products: dict[Any, list[Product]] = {}
    for u in uses:
        if isinstance(u, Product):
            products.setdefault((u.swapped, u.grade), []).append(u)
    rest = [u for u in uses if not isinstance(u, (Dense, Lookups, Product))]
    merged: list[Use] = list(rest)
    if dense:
        values: Any = sum(u.values for u in dense)
        merged.append(Dense(values))
    if lookups:
        merged.append(one_lookup(lookups))
    merged.extend(p[0] if len(p) == 1 else merge(p) for p in products.values())
    return merged


def one_lookup(uses: Sequence[Lookups]) -> Lookups:
    """Look-ups in the same table, one after the other."""
    if len(uses) == 1:
        return uses[0]
    tokens, owners, rows = (torch.cat([getattr(u, f) for u in uses]) for f in ("tokens", "owners", "rows"))
    return Lookups(tokens, owners, rows, uses[0].batch_size, uses[0].vocabulary)


Shape = tuple[torch.Size, torch.dtype, torch.device]


@dataclass(frozen=True, slots=True)
class WeightedSums:
    """Sum over i of w_i g_i for every parameter; null samples are zeroed before any product.

    Where records are large, zeroing rows costs more than waiting to learn whether a sample is null (``waits``). The
    numbers of the other samples are the same either way.
    """

    finite: Tensor
    measured: Measured
    shapes: Mapping[str, Shape]
    waits: bool

    @staticmethod
    def of(whole: Tensor, measured: Measured, parameters: Mapping[str, nn.Parameter]) -> WeightedSums:
        shapes = {name: (p.shape, accumulator(p), p.device) for name, p in parameters.items()}
        return WeightedSums(torch.isfinite(whole), measured, shapes, not cheap(measured))

    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.without_null_rows(weights) if self.any_null() else self.steady(weights)

    def any_null(self) -> bool:
        """Whether a sample is null, where ``steady`` has to be told."""
        return self.any_null_asked()()

    def any_null_asked(self) -> Callable[[], bool]:
        """The same, asked now and told when called: work that is launched in between is not waited for."""
        if not self.waits:
            return lambda: False
        none = self.finite.all()
        if not none.is_cuda:
            return lambda: not bool(none)
        told = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(none, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(none.device))

        def answer() -> bool:
            event.synchronize()
            return not bool(told)

        return answer

    def steady(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums without waiting; where records are large, right if no sample is null."""
        return self._summed(weights, zeroing=not self.waits)

    def without_null_rows(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums from records whose null rows are zeros."""
        return self._summed(weights, zeroing=True)

    def _summed(self, weights: Mapping[str, Tensor], *, zeroing: bool) -> dict[str, Tensor]:
        """Parameter after parameter: a copy without null rows lives no longer than its own sum takes."""
        with torch.no_grad(), precision.use_own_settings():
            sides = [side.keep(self.finite) if zeroing else side for side in self.measured.side_by_side]
            small = {name: s for side in sides for name, s in side.weighted_sums(weights).items()}
            kept = self.finite if zeroing else None
            return {
                name: small[name]
                if name in small
                else total(self.measured.uses.get(name, ()), w, kept, *self.shapes[name])
                for name, w in weights.items()
            }


def total(
    uses: Iterable[Use], weights: Tensor, finite: Tensor | None, shape: torch.Size, dtype: torch.dtype,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """The weighted sum of one parameter over all its uses, the rows of samples that are not finite zeroed."""
    mine = weights.to(dtype)
    parts = [(use if finite is None else use.keep(finite)).weighted_sum(mine) for use in uses]
    if not parts:
        return torch.zeros(shape, dtype=dtype, device=device)
    result: Tensor = sum(parts[1:], start=parts[0])
    return result.view(shape)
