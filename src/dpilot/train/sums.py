"""How the clipped sums of a step's chunks are added up and released: in this process, or over ranks.

Floats added in another order round to another sum, and the same noise must not cover two. Over ranks the sums are
therefore added as whole numbers on a public grid, which has one result in whatever order and on however many ranks::

    grid = 2^ceil(log2 bound) 2^-bits        sum = grid * sum over chunks of round(chunk sum / grid)

A chunk's rounding moves a coordinate by at most half the grid: at 38 bits, less than adding in float32 does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

import torch
from torch import Tensor, nn

from dpilot.mechanism import release
from dpilot.private_sum import Clip, Summand
from dpilot.train.ranks import Ranks

Gradients = dict[str, Tensor]
Both = tuple[Gradients, Tensor]
"""The sums of gradients by name, and the sum of the extras."""

_MANY: Final = 4096  # records of a batch, from which on the roundings of a float32 sum would show beside the bound
_SPARE: Final = 10  # bits: room for 1,024 times the expected batch
_LEAST_ROOM: Final = 24  # bits: room for 16 million records


class Sums(Protocol):
    """What a step asks of it: each chunk's ``piece`` of the sum, and the noisy ``release`` of the whole."""

    def piece(self, chunk: Summand) -> Summand: ...

    def release(self, total: Both, *, bound: float, **terms: Any) -> Both: ...


@final
@dataclass(frozen=True, slots=True)
class FloatSums(Sums):
    """Sums of one process, added chunk by chunk in the precision in which they are released."""

    def piece(self, chunk: Summand) -> Summand:
        return chunk

    def release(self, total: Both, *, bound: float, **terms: Any) -> Both:
        return release(total, bound=bound, **terms)


@final
@dataclass(frozen=True, slots=True)
class ExactSums(Sums):
    """Sums on a public grid, added over ranks; rank 0 releases them and tells the others what was released.

    Guarantee:
        The released sum is the same, bit for bit, however the chunks are shared out: addition of whole numbers has no
        order. A rank without records adds zeros. The noise is drawn once, by rank 0, from its receipt.

    Edge cases:
        room    a coordinate holds 2^(62 - bits) bounds: a batch of 1,024 times the expected one, 16 million at least
    """

    ranks: Ranks
    kinds: Mapping[str, torch.dtype]
    bits: int

    @classmethod
    def of(cls, ranks: Ranks, model: nn.Module, batch_size: float) -> ExactSums:
        """Those of a model whose batches are expected to hold so many records."""
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        room = max(_LEAST_ROOM, _SPARE + math.ceil(math.log2(max(batch_size, 1.0))))
        return cls(ranks, sum_types(parameters, batch_size), 62 - room)

    def piece(self, chunk: Summand) -> Summand:
        return _OnGrid(chunk, self.bits)

    def release(self, total: Both, *, bound: float, **terms: Any) -> Both:
        gradients, extras = total
        leaves, kinds = [*gradients.values(), extras], [*self.kinds.values(), next(iter(self.kinds.values()))]
        forms = [(each.shape, kind, each.device) for each, kind in zip(leaves, kinds, strict=True)]
        whole = self.ranks.add(torch.cat([each.reshape(-1) for each in leaves]))

        def noisy() -> list[Tensor]:
            grid = _grid(torch.tensor(bound, dtype=torch.float64), self.bits).item()
            parts = torch.split(whole.double() * grid, [shape.numel() for shape, _, _ in forms])
            exact = [part.reshape(shape).to(kind) for part, (shape, kind, _) in zip(parts, forms, strict=True)]
            return list(release(exact, bound=bound, **terms))

        *released, last = self.ranks.spread(noisy, forms)
        return dict(zip(gradients, released, strict=True)), last


@final
@dataclass(frozen=True, slots=True)
class _OnGrid(Summand):
    """A chunk whose sums are whole numbers of the grid."""

    chunk: Summand
    bits: int

    def clip_and_sum(self, clip: Clip, state: Any) -> Both:
        gradients, extras = self.chunk.clip_and_sum(clip, state)
        grid = _grid(state.bound, self.bits)  # a tensor where the sums are: nothing waits for the device
        return {name: _round(each, grid) for name, each in gradients.items()}, _round(extras, grid)


def _grid(bound: Tensor, bits: int) -> Tensor:
    """A power of two, so that dividing by it rounds nothing: 2^-bits times the least one that is above the bound."""
    exponent = torch.frexp(bound.double())[1]
    return torch.exp2((exponent - bits).double())


def _round(values: Tensor, grid: Tensor) -> Tensor:
    return torch.div(values.double(), grid).round_().long()


def sum_types(parameters: Mapping[str, nn.Parameter], batch_size: float) -> dict[str, torch.dtype]:
    """The precision in which sums are added up and released: float32 or better.

    A batch that is expected to be large is summed, and released, in float64: in float32 each addition rounds by the
    length of the sum, and what one record changes in those roundings grows with the batch.
    """
    double, large = (torch.float64, torch.complex128), batch_size > _MANY
    return {
        name: torch.float64 if p.dtype in double or (large and p.device.type != "mps") else torch.float32
        for name, p in parameters.items()  # mps has no float64
    }
