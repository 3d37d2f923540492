"""Noise sources: where the randomness of a release comes from, as a value.

A source turns exact values into noisy ones; ``mechanism`` is the only caller.

    SystemNoise()        a fresh key from the operating system for every release: the default
    HardenedNoise()      an exact law on a grid, from the operating system's own generator
    KeyedNoise(state)    a one-way chain of keys: exact resume of a run, from a secret file; hardened or not
    seeded_noise(7)      the same noise every time, for tests: stamped, and not private
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpilot import _validate
from dpilot._arrays import Floats, is_tensor
from dpilot.errors import InvalidInput
from dpilot.hardened import add_on_grid, exact_choice, keyed_streams, system_streams
from dpilot.keys import KEY_BYTES, Chain, fresh_key, stream_of, system_generator

SHARED: Final = (
    "two noise sources were built from the same state or seed: expected a state for each, as the difference of two "
    "releases would have no noise. Leave the noise to the library, or take sources from one KeyedNoise by .spawn()."
)
NOT_HARDENED: Final = "float noise, not hardened"
HARDENED: Final = "hardened noise: an exact law on a grid"
_BLOCK: Final = 1 << 17  # numbers drawn from one stream
_LARGE_BLOCK: Final = 1 << 22  # the same on an accelerator

Leaf = TypeVar("Leaf", bound=Any)


class Noise(Protocol):
    """What a release needs of a noise source.

    ``stamp`` is what records and reports say of it; ``gaussian`` returns each value plus N(0, (noise_multiplier *
    bound)^2 I), in new memory (a hardened source rounds first, which is why it sees value and bound); ``choice``
    returns index j with probability proportional to exp(log_weights[j]).
    """

    @property
    def stamp(self) -> str: ...

    def gaussian(self, values: Sequence[Any], *, bound: float, noise_multiplier: float) -> list[Any]: ...

    def choice(self, log_weights: Floats) -> int: ...


class Witness(Protocol):
    """Remembers what every release of a resumable run covered, so that no noise ever covers two different sums.

    ``note`` is called with a public name of the key and a keyed hash of the exact values, before any noise is made; it
    raises where the key covered other values before.
    """

    def note(self, name: bytes, covered: bytes) -> None: ...


class SystemNoise:
    """Float noise from a key that the operating system gives anew for every release.

    Guarantee:
        Independent between releases, threads, forked and spawned processes: nothing is kept, so nothing is shared.
    """

    __slots__ = ()
    stamp: Final[str] = NOT_HARDENED

    def gaussian(self, values: Sequence[Leaf], *, bound: float, noise_multiplier: float) -> list[Leaf]:
        return add_gaussian(values, noise_multiplier * bound, system_generator())

    def choice(self, log_weights: Floats) -> int:
        return gumbel_choice(log_weights, system_generator())


class HardenedNoise:
    """Exact noise on a grid, from the operating system's own generator; see ``hardened``.

    Guarantee:
        What is released is a function of the Gaussian mechanism, at the same price, on the sum rounded to the grid: no
        low-order bit of sum or noise is in it. A sum of records that were each rounded to ``grid_size`` first is exact
        whatever their order; any other sum carries the rounding of its own additions.

    Edge cases:
        values on an accelerator    refused: sums there have no fixed order
    """

    __slots__ = ()
    stamp: Final[str] = HARDENED
    hardened: Final = True

    def gaussian(self, values: Sequence[Leaf], *, bound: float, noise_multiplier: float) -> list[Leaf]:
        return add_on_grid(values, bound=bound, noise_multiplier=noise_multiplier, streams=system_streams)

    def choice(self, log_weights: Floats) -> int:
        return exact_choice(log_weights)


class KeyedNoise:
    """Noise that can be stopped and resumed exactly: a fresh stream for each release from a chain of keys.

    ``state`` is the secret to store between two releases; ``KeyedNoise(state)`` goes on from there, bit for bit, and
    an old noise cannot be found from it.

    Guarantee:
        Two releases never share a stream, because the chain moves on under a lock before the noise is used. A state is
        used by one source: ``spawn`` gives another source a key of its own, ``surrender`` gives the state itself away
        and ends this source. With a ``witness``, which spawned sources share, a replay that comes to other values than
        the run it repeats is refused before the same noise covers them. With ``by_values``, which they share too, the
        noise is a function of key and exact values: even where the witness's log was lost or copied, other values get
        other noise. ``hardened``: Gaussian noise is that of ``HardenedNoise``, its bits from SHAKE-256.

    Edge cases:
        In a forked child it refuses to work, and it cannot be copied or pickled: two processes would add the same
        noise, and the difference of two releases would have none.
    """

    __slots__ = ("_by_values", "_lock", "_process", "_stamp", "_state", "_surrendered", "_witness", "hardened")

    def __init__(
        self,
        state: Chain | None = None,
        *,
        stamp: str | None = None,
        witness: Witness | None = None,
        by_values: bool = False,
        hardened: bool = False,
    ) -> None:
        self._state = Chain(fresh_key("noise")) if state is None else state
        self._stamp = (HARDENED if hardened else NOT_HARDENED) if stamp is None else stamp
        self.hardened = hardened
        self._witness = witness
        self._by_values = by_values
        self._process = os.getpid()
        self._surrendered = False
        self._lock = Lock()

    @property
    def stamp(self) -> str:
        return self._stamp

    @property
    def state(self) -> Chain:
        """Where the next release stands. Secret: it undoes all noise to come."""
        return self._state

    def gaussian(self, values: Sequence[Leaf], *, bound: float, noise_multiplier: float) -> list[Leaf]:
        scale = noise_multiplier * bound
        generator = self._advance("noise", values, scale)
        if not self.hardened:
            return add_gaussian(values, scale, generator)
        streams = keyed_streams(generator.bytes(KEY_BYTES))
        return add_on_grid(values, bound=bound, noise_multiplier=noise_multiplier, streams=streams)

    def choice(self, log_weights: Floats) -> int:
        generator = self._advance("noise", [log_weights])
        return exact_choice(log_weights, generator.bytes) if self.hardened else gumbel_choice(log_weights, generator)

    @property
    def looks(self) -> bool:
        """Whether it looks at the exact values that it covers: for a witness, or to follow from them."""
        return self._witness is not None or self._by_values

    def spawn(self) -> KeyedNoise:
        """A source of its own, from a key that this one gives out once; the same seed gives the same ones in turn."""
        key = self._advance("spawn").bytes(KEY_BYTES)
        return KeyedNoise(
            Chain(key),
            stamp=self._stamp,
            witness=self._witness,
            by_values=self._by_values,
            hardened=self.hardened,
        )

    def surrender(self) -> Chain:
        """The state, for another process to go on from; this source adds no noise any more."""
        with self._lock:
            self._check_usable()
            self._surrendered = True
        return self._state

    def surrender_release(self, covered: Sequence[Any], scale: float) -> bytes:
        """The seed of the next release, which covers these exact values, for the processes that share its vector."""
        return self._take_seed("noise", covered, scale)

    def _advance(self, purpose: str, covered: Sequence[Any] = (), scale: float = 0.0) -> np.random.Generator:
        return stream_of(self._take_seed(purpose, covered, scale))

    def _take_seed(self, purpose: str, covered: Sequence[Any], scale: float) -> bytes:
        with self._lock:
            self._check_usable()
            if covered and self.looks:
                hashed = _value_hash(self._state, covered, scale)
                if self._witness is not None:
                    self._witness.note(bytes.fromhex(self._state.token("witness")), hashed)
                purpose = f"{purpose} over {hashed.hex()}" if self._by_values else purpose
            seed = self._state.seed(purpose)
            self._state = self._state.next()
        return seed

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise InvalidInput(
                "a noise source is used in a process forked from its own: expected one source a process. "
                "Make a new KeyedNoise() after the fork; shared noise cancels."
            )
        if self._surrendered:
            raise InvalidInput(
                "a noise source is used after its state was given to another process: expected one source a state. "
                "Make a new KeyedNoise(), or take one by .spawn() before."
            )

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a noise source is copied or pickled: expected one holder, as a copy repeats its noise. "
            "Store its .state in a secret file and build KeyedNoise(state) once."
        )


def _value_hash(chain: Chain, values: Sequence[Any], scale: float) -> bytes:
    """A hash of the exact values, keyed by this position: once the chain moved on nobody can test a guess with it."""
    made = blake2b(struct.pack("<d", scale), key=chain.generator("witness").bytes(KEY_BYTES), digest_size=32)
    for value in values:
        made.update(np.ascontiguousarray(value.detach().cpu().numpy() if is_tensor(value) else value).data)
    return made.digest()


def seeded_noise(seed: int, *, hardened: bool = False) -> KeyedNoise:
    """The same noise every time, for tests. Whoever knows the seed can take the noise off: the stamp says so.

    >>> seeded_noise(7).stamp
    'test noise (seed 7): not private'
    """
    seed = _validate.count(least=0, seed=seed)
    key = blake2b(str(seed).encode(), digest_size=KEY_BYTES, person=b"dpilot test seed").digest()
    return KeyedNoise(Chain(key), stamp=f"test noise (seed {seed}): not private", hardened=hardened)


class Stretch(NamedTuple):
    """Entries ``first`` to ``last`` of a leaf of ``size`` numbers."""

    size: int
    first: int
    last: int


class SharedNoise:
    """The noise of one release whose vector lies in stretches in several processes; each adds that of its own.

    The noise of the whole vector follows from one seed, which ``seed_of(scale)`` gives: that of a KeyedNoise where it
    is drawn, the same told to the others. A process computes the stretches that it holds.

    Guarantee:
        On a CPU the noise of a coordinate is the one that ``KeyedNoise`` would have added to the whole vector, to the
        last bit. So no two coordinates share theirs, on however many processes they lie, and none is noised twice.

    Edge cases:
        values on an accelerator    drawn there, in blocks of the leaf: the same on however many processes, and not
                                    that of a whole vector in one
    """

    __slots__ = ("_layout", "_seed_of", "seed", "stamp")

    def __init__(self, layout: Sequence[Stretch], seed_of: Callable[[float], bytes], stamp: str) -> None:
        self._layout, self._seed_of, self.stamp = layout, seed_of, stamp
        self.seed: bytes | None = None  # once noise was drawn

    def gaussian(self, values: Sequence[Leaf], *, bound: float, noise_multiplier: float) -> list[Leaf]:
        scale = noise_multiplier * bound
        self.seed = self._seed_of(scale)
        generator = stream_of(self.seed)
        pairs = zip(values, self._layout, strict=True)
        return [_add_stretch(value, stretch, scale, generator) for value, stretch in pairs]

    def choice(self, log_weights: Floats) -> int:
        raise InvalidInput(
            f"a choice of {len(log_weights)} is asked of noise that several processes share: expected one."
        )


def _add_stretch(value: Any, stretch: Stretch, scale: float, generator: np.random.Generator) -> Any:
    import torch

    if value.device.type != "cpu":
        return _add_accelerated_stretch(value, stretch, scale, generator)
    dtype = np.dtype(np.float64 if value.dtype == torch.float64 else np.float32)
    drawn = torch.from_numpy(_normal_stretch(stretch, dtype, generator))
    return drawn.mul_(scale).add_(value.detach())


def _add_accelerated_stretch(
    value: Any, stretch: Stretch, scale: float, generator: np.random.Generator, size: int = _LARGE_BLOCK
) -> Any:
    """The noise of a leaf is drawn in blocks of ``size``; of them those alone that the stretch meets."""
    import torch

    seeds = generator.integers(2**63, size=-(-stretch.size // size)).tolist()
    own, noisy = torch.Generator(device=value.device), torch.empty_like(value)
    for number in range(stretch.first // size, -(-stretch.last // size)):
        start = number * size
        stop = min(start + size, stretch.size)
        block = noisy.new_empty(stop - start).normal_(0.0, scale, generator=own.manual_seed(seeds[number]))
        first, last = max(start, stretch.first), min(stop, stretch.last)
        noisy[first - stretch.first : last - stretch.first] = block[first - start : last - start]
    return noisy.add_(value.detach())


def is_hardened(*sources: Noise) -> bool:
    """Whether all of these add exact noise on a grid: then sums are made on one, too.

    >>> is_hardened(HardenedNoise(), seeded_noise(7, hardened=True)), is_hardened(HardenedNoise(), SystemNoise())
    (True, False)
    """
    return all(getattr(each, "hardened", False) for each in sources)


def check_distinct(sources: Iterable[Noise]) -> None:
    """Refuse two sources that stand at the same key: they would add the same noise. One source twice is no harm.

    >>> check_distinct([KeyedNoise(), KeyedNoise(), SystemNoise()])
    >>> check_distinct([seeded_noise(7), seeded_noise(7)])
    Traceback (most recent call last):
    dpilot.errors.InvalidInput: two noise sources were built from the same state...
    """
    keyed = {id(each): each for each in sources if isinstance(each, KeyedNoise)}.values()
    if len({each.state.key for each in keyed}) < len(keyed):
        raise InvalidInput(SHARED)


def add_gaussian(values: Sequence[Leaf], scale: float, generator: np.random.Generator) -> list[Leaf]:
    """Each value plus N(0, scale^2) in every coordinate, in the value's own precision, in new memory."""
    noisy: list[Any] = [None] * len(values)
    elsewhere: dict[int, Any] = {}
    for place, value in enumerate(values):
        if isinstance(value, np.ndarray):
            noisy[place] = _add_numpy(value, scale, generator)
        elif value.device.type == "cpu":
            noisy[place] = _add_torch(value, scale, generator)
        else:
            elsewhere[place] = value
    if elsewhere:
        added = _add_accelerated(list(elsewhere.values()), scale, generator)
        for place, value in zip(elsewhere, added, strict=True):
            noisy[place] = value
    return noisy


def gumbel_choice(log_weights: Floats, generator: np.random.Generator) -> int:
    """An index drawn with probability proportional to exp(log_weights), by the largest of Gumbel-shifted weights."""
    return int(np.argmax(log_weights + generator.gumbel(size=log_weights.shape)))


def _add_numpy(value: Any, scale: float, generator: np.random.Generator) -> Any:
    drawn = _normal(value.shape, value.dtype, generator)
    return np.asarray(value + drawn * value.dtype.type(scale))


def _add_torch(value: Any, scale: float, generator: np.random.Generator) -> Any:
    """Noise on the CPU by numpy: torch's own CPU generator keeps 32 bits of its seed, few enough to try them all."""
    import torch

    dtype = np.float64 if value.dtype == torch.float64 else np.float32
    drawn = torch.from_numpy(_normal(tuple(value.shape), np.dtype(dtype), generator))
    return drawn.mul_(scale).add_(value.detach())


def _add_accelerated(values: Sequence[Any], scale: float, generator: np.random.Generator) -> list[Any]:
    """Noise drawn where the values are, in one stretch for all of one device and type: few calls for many leaves."""
    import torch

    noisy: list[Any] = [None] * len(values)
    for kind in dict.fromkeys((v.device, v.dtype) for v in values):
        places = [j for j, v in enumerate(values) if (v.device, v.dtype) == kind]
        mine = [values[j].detach() for j in places]
        seeded = torch.Generator(device=kind[0])
        seeded.manual_seed(int(generator.integers(2**63)))
        sizes = [v.numel() for v in mine]
        drawn = torch.empty(sum(sizes), dtype=kind[1], device=kind[0]).normal_(0.0, scale, generator=seeded)
        parts = [part.view(v.shape) for part, v in zip(torch.split(drawn, sizes), mine, strict=True)]
        if len(mine) == 1:  # kernels for many leave a GPU idle on one
            parts[0].add_(mine[0])
        else:
            torch._foreach_add_(parts, mine)
        for j, value in zip(places, parts, strict=True):
            noisy[j] = value
    return noisy


def _normal(shape: tuple[int, ...], dtype: np.dtype[Any], generator: np.random.Generator) -> NDArray[Any]:
    """Standard normal numbers; many are drawn in blocks, side by side, each block from a stream of its own.

    The blocks do not depend on how many threads there are, so the same generator always gives the same numbers.
    """
    size = math.prod(shape)
    return _normal_stretch(Stretch(size, 0, size), dtype, generator).reshape(shape)


def _normal_stretch(stretch: Stretch, dtype: np.dtype[Any], generator: np.random.Generator) -> NDArray[Any]:
    """A stretch of the standard normal numbers of a leaf: of its blocks those alone are drawn that it meets."""
    size, first, last = stretch
    starts = np.arange(0, size, _BLOCK)
    if len(starts) <= 1:
        return generator.standard_normal(size, dtype=dtype)[first:last]
    keys = generator.integers(2**32, size=(len(starts), KEY_BYTES // 4), dtype=np.uint32)
    met = np.flatnonzero((starts < last) & (starts + _BLOCK > first))
    drawn = np.empty(last - first, dtype)

    def fill(start: int, key: NDArray[np.uint32]) -> None:
        stream, stop = np.random.Generator(np.random.SFC64(key)), min(start + _BLOCK, size)
        if first <= start and stop <= last:
            stream.standard_normal(dtype=dtype, out=drawn[start - first : stop - first])
        else:
            here = slice(max(start, first), min(stop, last))
            block = stream.standard_normal(stop - start, dtype=dtype)
            drawn[here.start - first : here.stop - first] = block[here.start - start : here.stop - start]

    with ThreadPoolExecutor(max(1, min(len(met), os.cpu_count() or 1))) as pool:
        list(pool.map(fill, starts[met].tolist(), keys[met]))
    return drawn
