"""How the clipped sums of a step's chunks are added up and released: in this process, or over ranks.

Floats added in another order round to another sum, and the same noise must not cover two. Over ranks the sums are
therefore added as whole numbers on a public grid, which has one result in whatever order and on however many ranks::

    grid = 2^ceil(log2 bound) 2^-bits        sum = grid * sum over chunks of round(chunk sum / grid)

A chunk's rounding moves a coordinate by at most half the grid: at 38 bits, less than adding in float32 does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Protocol, final

import numpy as np
import torch
from torch import Tensor, nn

from dpilot.engine.base import trainable
from dpilot.errors import BudgetExceeded
from dpilot.keys import KEY_BYTES
from dpilot.mechanism import Draws, Noise, gaussian_event, release
from dpilot.noise import KeyedNoise, SharedNoise, Stretch
from dpilot.privacy.events import Event
from dpilot.private_sum import Clip, PerSampleGradients, Summand
from dpilot.train.ranks import Ranks
from dpilot.train.shards import Shards

Gradients = dict[str, Tensor]
Both = tuple[Gradients, Tensor]
"""The sums of gradients by name, and the sum of the extras."""

_MANY: Final = 4096  # records of a batch, from which on the roundings of a float32 sum would show beside the bound
_SPARE: Final = 10  # bits: room for 1,024 times the expected batch
_LEAST_ROOM: Final = 24  # bits: room for 16 million records
_LIMBS: Final = 8  # of 32 bits, of a hash


class ChunkGradients(PerSampleGradients, Protocol):
    """A chunk whose sums can be had for some parameters, ``names``, alone."""

    def weighted_sum(self, weights: Tensor, names: Collection[str] | None = None) -> Gradients: ...


class Sums(Protocol):
    """What a step asks of it: each chunk's ``piece`` of the sum, and the noisy ``release`` of the whole.

    Where the model is in pieces, so are the sums: then the model is put together for the step (``whole``), ranks go
    through their chunks side by side (``rounds``), and what was released is handed on as the parameters are.
    """

    @property
    def shards(self) -> Shards | None:
        """The pieces of the model; None of a whole one."""
        return None

    def trained(self, model: nn.Module) -> Mapping[str, nn.Parameter]:
        """The parameters that the optimizer moves."""
        return trainable(model)

    def whole(self) -> AbstractContextManager[None]:
        """The model as chunks are computed with it."""
        return nullcontext()

    def rounds(self, chunks: Iterable[Any]) -> Iterable[Any]:
        """The chunks of this rank, None where others have more."""
        return chunks

    def piece(self, chunk: ChunkGradients) -> Summand: ...

    def release(self, total: Both, *, bound: float, **terms: Any) -> Both: ...

    def length(self, released: Gradients) -> Tensor:
        """The length of the whole of what was released."""
        lengths = torch.stack(torch._foreach_norm(list(released.values())))
        return torch.linalg.vector_norm(lengths)  # type: ignore[no-any-return]

    def gradients(self, means: Gradients) -> Sequence[Tensor]:
        """The noisy means, as the optimizer's parameters lie."""
        return list(means.values())


@final
@dataclass(frozen=True, slots=True)
class FloatSums(Sums):
    """Sums of one process, added chunk by chunk in the precision in which they are released."""

    def piece(self, chunk: ChunkGradients) -> Summand:
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
        return cls(ranks, sum_types(parameters, batch_size), grid_bits(batch_size))

    def piece(self, chunk: ChunkGradients) -> Summand:
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
class ShardSums(Sums):
    """Sums on the same grid of a model in pieces: each rank has, adds up and releases those of its own pieces.

    Guarantee:
        That of ``ExactSums``. Noise is that of one vector, whose seed rank 0 draws from its receipt and tells the
        others; each computes the stretches it holds (``SharedNoise``), after all ranks have told rank 0's witness what
        it will cover.

    Edge cases:
        a rank that has no more chunks    takes part in the others' rounds, with zeros
        a rank that fails in a round      sends zeros in what is left of it; all stop before the release
    """

    ranks: Ranks
    held: Shards
    kinds: Mapping[str, torch.dtype]
    bits: int
    witnessed: bool

    @classmethod
    def of(cls, shards: Shards, batch_size: float, noise: Noise) -> ShardSums:
        """Those of a model whose batches are expected to hold so many records."""
        parameters = shards.trained_pieces
        witnessed = shards.ranks.once(lambda: isinstance(noise, KeyedNoise) and noise.looks)
        return cls(shards.ranks, shards, sum_types(parameters, batch_size), grid_bits(batch_size), witnessed)

    @property
    def shards(self) -> Shards:
        return self.held

    def trained(self, model: nn.Module) -> Mapping[str, nn.Parameter]:
        """Those in pieces, also where a forward pass of torch's own has left whole ones in their places."""
        del model
        return self.held.trained_pieces

    def whole(self) -> AbstractContextManager[None]:
        return self.held.whole()

    def rounds(self, chunks: Iterable[Any]) -> Iterator[Any]:
        left = iter(chunks)
        chunk = next(left, None)
        while self.ranks.agree(chunk is not None):
            yield chunk
            chunk = next(left, None)

    def piece(self, chunk: ChunkGradients) -> Summand:
        return _InPieces(chunk, self)

    def release(self, total: Both, *, bound: float, **terms: Any) -> Both:
        gradients, extras = total
        noise: KeyedNoise = terms.pop("noise")
        paid: Draws = terms.pop("receipt")
        grid = _grid(torch.tensor(bound, dtype=torch.float64), self.bits).item()
        kind, count = next(iter(self.kinds.values())), extras.numel()
        own = [(gradients[name].double() * grid).to(kind) for name, kind in self.kinds.items()]
        hashed = self._hash(gradients) if self.witnessed else torch.zeros(_LIMBS, dtype=torch.int64)
        whole = self.ranks.add(torch.cat([extras.reshape(-1), hashed.to(extras.device)]))
        exact = (whole[:count].double() * grid).to(kind)
        leads, made = self.ranks.leads, list[Tensor]()

        def share(seed_of: Callable[[float], bytes], receipt: Draws) -> bytes:
            """This rank's part of the release; the seed of its noise."""
            layout = [*self.held.layout, Stretch(count, 0, count if leads else 0)]
            source = SharedNoise(layout, seed_of, noise.stamp)
            mine = [*own, exact if leads else exact[:0]]
            made.extend(release(mine, bound=bound, noise=source, receipt=receipt, **terms))
            return source.seed or os.urandom(KEY_BYTES)  # a tape that gave back a release drew no noise; so do others

        def lead() -> list[Tensor]:
            seed = share(partial(noise.surrender_release, [whole]), paid)
            return [made[-1].view(extras.shape), torch.frombuffer(bytearray(seed), dtype=torch.uint8)]

        forms = [(extras.shape, kind, extras.device), (torch.Size([KEY_BYTES]), torch.uint8, torch.device("cpu"))]
        noisy_extras, told = self.ranks.spread(lead, forms)
        if not leads:
            event = gaussian_event(terms["noise_multiplier"], terms["sample_rate"])
            share(lambda _: told.numpy().tobytes(), DrawnElsewhere(event))
        return dict(zip(self.kinds, made, strict=False)), noisy_extras

    def _hash(self, sums: Gradients) -> Tensor:
        """What tells exact sums from others, whoever has which rows: hashes of each row, added over rows and ranks."""
        total = np.zeros(_LIMBS, np.int64)
        for part, (_, first, _) in zip(self.held.trained, self.held.layout, strict=True):
            name, rows = part.name.encode(), sums[part.name].cpu().numpy().reshape(-1, part.row)
            for place, row in enumerate(rows, first // part.row):
                made = blake2b(b"%b %d " % (name, place), digest_size=4 * _LIMBS)
                made.update(row.data)
                total += np.frombuffer(made.digest(), np.uint32)  # up to 2^31 rows
        return torch.from_numpy(total)

    def length(self, released: Gradients) -> Tensor:
        square = torch.stack([each.double().square().sum() for each in released.values()]).sum()
        self.ranks.agree()
        return self.ranks.collect(square.reshape(1), square.new_empty(self.ranks.size, 1)).sum().sqrt()

    def gradients(self, means: Gradients) -> Sequence[Tensor]:
        return [self.held.piece(means[each.name], each.whole.shape) for each in self.held.trained]


@final
@dataclass(slots=True)
class DrawnElsewhere:
    """One release that rank 0 drew from its receipt, and in which this rank has a part."""

    left: Event | None

    def draw(self, event: Event) -> None:
        if event != self.left:
            raise BudgetExceeded(f"a release of {event!r} was not drawn by rank 0: expected {self.left!r}.")
        self.left = None


@final
@dataclass(frozen=True, slots=True)
class _InPieces(Summand):
    """A chunk of which each rank gets the sums of its own pieces, over all ranks."""

    chunk: ChunkGradients
    sums: ShardSums

    def clip_and_sum(self, clip: Clip, state: Any) -> Both:
        weights, extras = clip(self.chunk.norms, state)
        grid, ranks, shards = _grid(state.bound, self.sums.bits), self.sums.ranks, self.sums.held
        ranks.agree()
        mine: Gradients = {}
        problem: BaseException | None = None
        for bucket in shards.buckets():
            names = [part.name for part in bucket]
            try:
                if problem is None:
                    exact = self.chunk.weighted_sum(weights, names=names)
                    theirs = shards.split({name: _round(each, grid) for name, each in exact.items()}, bucket)
            except BaseException as raised:  # the others wait for these sums: they get zeros, and learn of it after
                problem = raised
            if problem is not None:
                theirs = shards.split({part.name: _zeros(part.whole) for part in bucket}, bucket)
            added = [ranks.add_for(owner, each) for owner, each in enumerate(theirs)]
            mine.update(shards.join(added[ranks.rank], bucket))
        if problem is not None:
            raise problem
        return mine, _round(extras.sum(0), grid)


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


def grid_bits(batch_size: float) -> int:
    """How much finer than the bound the grid is, in bits, where batches are expected to hold so many records."""
    return 62 - max(_LEAST_ROOM, _SPARE + math.ceil(math.log2(max(batch_size, 1.0))))


def _grid(bound: Tensor, bits: int) -> Tensor:
    """A power of two, so that dividing by it rounds nothing: 2^-bits times the least one that is above the bound."""
    exponent = torch.frexp(bound.double())[1]
    return torch.exp2((exponent - bits).double())


def _zeros(like: Tensor) -> Tensor:
    return like.detach().new_zeros((), dtype=torch.int64).expand(like.shape)


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
