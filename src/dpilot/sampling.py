"""Poisson batches: every record tosses its own coin, at every step, and no other record can move it.

>>> sampler = PoissonSampler(rate=0.5, steps=2)
>>> for batch in sampler.batches(length=100):
...     sampler.claim(batch)                       # a step takes only its own sampler's batches, in order, once
...     print(batch)
Batch(step=0)
Batch(step=1)
>>> sampler.claim(batch)
Traceback (most recent call last):
dpilot.errors.InvalidInput: a batch of step 1 is used again: expected each batch once, in order (next: step 2)...
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final, NoReturn

import numpy as np
from numpy.random import Generator

from dpilot import _validate
from dpilot._arrays import Indices
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES, Chain, fresh_key

_LEAST_RATE: Final = 1e-12
_LEAST_SKIPPED: Final = 1e-8
_MOST_SKIPPED: Final = 1 / 32
_DRAWS: Final = 1 << 12  # skips at a time
_BLOCK: Final = 1 << 16  # coins tossed at a time: they stay in cache, and memory does not grow with the data


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Batch:
    """The records of one step. Which ones and how many is secret: the representation shows the step only.

    ``seed`` is of the secret places that its records take in the step.
    """

    indices: Indices
    step: int
    sampler: str
    seed: bytes = bytes(KEY_BYTES)

    def chunks(self, size: int) -> Iterator[Indices]:
        """The same batch in physical pieces of at most ``size``, in random order; the mechanism sees their sum."""
        return (self.indices[places] for places in self.scatter(self.indices.size, _validate.count(size=size)))

    def scatter(self, count: int, size: int, usual: int = 0, part: int = 0) -> Iterator[Indices]:
        """Which of ``count`` records of a ``part`` of this batch go together, by a secret of each part."""
        return scatter(count, size, usual, Chain(self.seed).generator(f"places {part}" if part else "places"))

    def split(self, place: int) -> tuple[Batch, Batch]:
        """The records before ``place`` and those from there on, as two parts of the batch."""
        before = int(np.searchsorted(self.indices, place))
        return replace(self, indices=self.indices[:before]), replace(self, indices=self.indices[before:])

    def __repr__(self) -> str:
        return f"Batch(step={self.step})"


class PoissonSampler:
    """Issues ``steps`` batches in order; each keeps every record independently with probability ``rate``.

    Batch t draws one float64 coin a record, in the records' order, from a stream of its own::

        batch_t = { i : coin(key_t, i) < rate }        key_{t+1} = hash(key_t)

    At rates of 1/32 and less it draws how many records toss tails before the next heads instead, with the same law, in
    time and memory of the batch and not of the data (``_skips``).

    Guarantee:
        The coin of record i is a function of the key, t and i alone: adding a record at the end, or removing the last
        one, moves no other record's coins. P[in the batch], whatever all other coins are, is at most ``rate``, rounded
        up to a multiple of 2^-53.
        ``claim`` admits each batch of this sampler once and in order, so a step cannot see a batch twice, skip one, or
        take one drawn at another rate.

    Edge cases:
        rate = 1          the full batch, at every step
        empty batch       issued like any other: the step adds its noise and counts
        copies, forks     refused: two runs on the same batches cost more than each is priced
        resume            ``PoissonSampler(rate, steps, state=old.state)`` repeats the batches not yet claimed, exactly

    Reference:
        privacy of the sampled Gaussian: Abadi et al. 2016; why not shuffled: Chua et al. 2024.
    """

    __slots__ = ("_ahead", "_claimed", "_id", "_lock", "_process", "_state", "rate", "steps")

    def __init__(self, rate: float, steps: int, *, state: Chain | None = None) -> None:
        self.rate = _validate.rate(rate=rate)
        if self.rate < _LEAST_RATE:
            _validate.refuse("rate", rate, f"at least {_LEAST_RATE}", "Coins have 53 bits and would fall too often.")
        self.steps = _validate.count(steps=steps)
        self._state = Chain(fresh_key("sampling")) if state is None else state
        self._claimed = self._state.position
        self._ahead: deque[Chain] = deque()  # issued, not yet claimed: what a resumed run must draw again
        self._id = self._state.token(f"sampling at {self.rate!r} for {self.steps} steps")
        self._process = os.getpid()
        self._lock = Lock()

    @property
    def position(self) -> int:
        """How many batches were claimed."""
        return self._claimed

    @property
    def state(self) -> Chain:
        """The secret to resume from: the batches claimed so far cannot be found from it."""
        return self._ahead[0] if self._ahead else self._state

    def issue(self, length: int) -> Batch:
        """The next batch of a data set of ``length`` records."""
        self._check_process()
        if self._state.position >= self.steps:
            raise InvalidInput(f"steps is {self.steps}: all batches were issued. Plan more steps before the run.")
        seed = self._state.generator("places").bytes(KEY_BYTES)
        batch = Batch(self._coins(_validate.count(least=0, length=length)), self._state.position, self._id, seed)
        self._ahead.append(self._state)
        self._state = self._state.next()
        return batch

    def batches(self, length: int) -> Iterator[Batch]:
        """All batches that are left, in order."""
        while self._state.position < self.steps:
            yield self.issue(length)

    def claim(self, batch: Batch) -> None:
        """Take ``batch`` for the one step it may be used in, or raise."""
        self._check_process()
        with self._lock:
            self._claim(batch)

    def _claim(self, batch: Batch) -> None:
        if not isinstance(batch, Batch):
            raise InvalidInput(f"a {type(batch).__name__} is not a batch: expected one issued by this sampler.")
        if batch.sampler != self._id:
            raise InvalidInput(
                "a batch comes from another sampler: expected one of this run's own plan, which prices it."
            )
        if batch.step != self._claimed:
            how = "again" if batch.step < self._claimed else "early"
            raise InvalidInput(
                f"a batch of step {batch.step} is used {how}: expected each batch once, in order "
                f"(next: step {self._claimed}). Iterate over the batches and use each where it comes."
            )
        if not self._ahead:
            raise InvalidInput(
                f"a batch of step {batch.step} was issued before its loader began anew: expected one of the loader's "
                "present round. Iterate over the loader once, and use each batch where it comes."
            )
        self._ahead.popleft()  # of this very step: batches are issued and claimed in order, from one position
        self._claimed += 1

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidInput(
                "a sampler is used in a process forked from its own: expected one sampler a process. "
                "Two runs on the same batches cost more than they are priced; make a new one after the fork."
            )

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a sampler is copied or pickled: expected one holder, as a copy repeats its batches. "
            "Store its .state in a secret file and build PoissonSampler(rate, steps, state=state) once."
        )

    def _coins(self, length: int) -> Indices:
        if self.rate == 1:
            return np.arange(length, dtype=np.int64)
        generator = self._state.generator("sampling")
        if _LEAST_SKIPPED <= self.rate <= _MOST_SKIPPED:
            return _skips(generator, self.rate, length)
        kept = [
            start + np.flatnonzero(generator.random(min(_BLOCK, length - start)) < self.rate)
            for start in range(0, length, _BLOCK)
        ]
        return np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)


def _skips(generator: Generator, rate: float, length: int, draws: int = _DRAWS) -> Indices:
    """The records that toss heads, by the number of tails before each.

    ::

        tails = floor(log(u) / log(1 - q)),  u uniform in (0, 1],  q = rate (1 - 2^-20)

    From ``most`` = 1/q tails on, so many are taken and the rest is drawn anew, as coins have no memory: u is then no
    less than about 1/e where it counts. So rounding of u, of logarithms and of the quotient changes the probability of
    a number of tails, at least q/e, by 4 of 2^-53, a part 1.3e-15 / q. What the other coins say of a record's own is a
    quotient of three of these: wrong by less than 2^-20, which q is smaller for, at rates of 1e-8 and more.
    """
    q = rate * (1 - 2.0**-20)
    scale, most = 1 / math.log1p(-q), math.ceil(1 / q)
    kept, last = list[Indices](), -1
    while last < length - 1:
        tails = np.log(1 - generator.random(draws)) * scale
        none = tails >= most
        places = last + np.cumsum(np.where(none, most, np.minimum(tails, most).astype(np.int64) + 1))
        last = int(places[-1])
        kept.append(places[~none & (places < length)])
    return np.concatenate([np.zeros(0, dtype=np.int64), *kept])


def scatter(count: int, size: int, usual: int, generator: Any) -> Iterator[Indices]:
    """Which of ``count`` records go together, in random order, at most ``size`` a chunk: chunks with none are left out.

    On a CPU the last bit of what a kernel computes may depend on the place of a row in its chunk. If records took
    their places in the order of the data set, one put in front would move the places of all others. So they are drawn:
    each record has a place of its own among those of ``usual`` chunks, all as likely, and those that find none there
    fill further chunks, one after the other. Within a chunk ``engine.Graphed`` is told the places.

    Guarantee:
        While there is a free place in the usual chunks, the places of the records that are there have the same law
        with and without one record more, whichever it is: it takes one of those that are free. Beyond, it takes that
        of at most one other record, which moves to the last chunk.

    Example:
        >>> [sorted(chunk.tolist()) for chunk in scatter(3, 4, 1, Chain(bytes(32)).generator("places"))]
        [[0, 1, 2]]
        >>> [chunk.size for chunk in scatter(9, 4, 1, Chain(bytes(32)).generator("places"))]
        [4, 4, 1]
    """
    order, room = generator.permutation(count), size * usual
    first, chunk_of = order[:room], generator.permutation(room)[:count] // size
    for number in range(usual):
        together = first[chunk_of == number]
        if together.size:
            yield together
    for start in range(room, count, size):
        yield order[start : start + size]


def blocks(count: int, least: int, most: int) -> Iterator[tuple[int, int]]:
    """Start and size of the blocks in which ``count`` records are computed: ``least``, then doubling, to ``most``.

    Guarantee:
        The block of a record, and its size, follow from the record's place alone: where the last block is filled up,
        one record more behind the others changes none of their roundings by another choice of kernel. Where a record
        may be put in front and roundings count, let ``least`` be ``most``: then all blocks have one size.

    Example:
        >>> list(blocks(20, 8, 512))
        [(0, 8), (8, 8), (16, 16)]
    """
    start = 0
    while start < max(count, 1):
        size = min(max(start, least), most)
        yield start, size
        start += size


def check_source(source: object) -> None:
    """Accept what has a length and can be indexed; refuse loaders, samplers and streams, with the reason.

    Guarantee:
        What passes can be sampled record by record. The price of a run assumes Poisson batches: an epoch that is
        shuffled, weighted or read in order costs more than that, by an amount no accountant here gives.

    Edge cases:
        Only the type is looked at, never a record.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        _check_torch(source, torch.utils.data)
    if hasattr(source, "__next__"):
        _refuse(source, "a stream can be read once and in its own order only, so no record can toss its own coin")
    if isinstance(source, Mapping):
        _refuse(source, "its length and index are those of its names, not of its records")
    if hasattr(source, "iloc") or hasattr(source, "to_pydict"):  # pandas, pyarrow
        _refuse(source, "its index is that of its columns or labels, and each of these is made of all records")
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        _refuse(source, "it has no length or cannot be indexed, so no record can toss its own coin")


def _check_torch(source: object, data: Any) -> None:
    loader = isinstance(source, data.DataLoader)
    sampler = source.sampler if loader else source  # type: ignore[attr-defined]
    if isinstance(source, data.IterableDataset) or (loader and isinstance(source.dataset, data.IterableDataset)):  # type: ignore[attr-defined]
        _refuse(source, "an iterable data set can be read in its own order only, so no record can toss its own coin")
    if isinstance(sampler, data.WeightedRandomSampler):
        _refuse(source, "weighted sampling takes some records more often than the rate that is priced")
    if isinstance(sampler, data.RandomSampler | data.SubsetRandomSampler):
        _refuse(source, "shuffled batches of a fixed size are not Poisson batches and cost more than the plan says")
    if loader or isinstance(sampler, data.Sampler):
        _refuse(source, "its batches are its own, not Poisson batches of this plan")


def _refuse(source: object, reason: str) -> NoReturn:
    raise InvalidInput(
        f"the data come as {type(source).__name__}: {reason}. "
        "Pass the data set itself (anything with a length and an index); the batches are drawn for you."
    )
