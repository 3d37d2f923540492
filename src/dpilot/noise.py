"""Noise sources: where the randomness of a release comes from, as a value.

A source turns exact values into noisy ones; ``mechanism`` is the only caller. Three come with the library, and a
hardened one (integer grid, discrete Gaussian) is a fourth class with the same three members.

    SystemNoise()        a fresh key from the operating system for every release: the default
    KeyedNoise(state)    a one-way chain of keys: exact resume of a run, from a secret file
    seeded_noise(7)      the same noise every time, for tests: stamped, and not private
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES, Chain, fresh_key, system_generator

__all__ = ["NOT_HARDENED", "KeyedNoise", "Noise", "SystemNoise", "is_tensor", "seeded_noise"]

NOT_HARDENED: Final = "float noise, not hardened"
_BLOCK: Final = 1 << 17  # numbers drawn from one stream

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

    def choice(self, log_weights: NDArray[np.float64]) -> int: ...


class SystemNoise:
    """Float noise from a key that the operating system gives anew for every release.

    Guarantee:
        Independent between releases, threads, forked and spawned processes: nothing is kept, so nothing is shared.
    """

    __slots__ = ()
    stamp: Final[str] = NOT_HARDENED

    def gaussian(self, values: Sequence[Leaf], *, bound: float, noise_multiplier: float) -> list[Leaf]:
        return add_gaussian(values, noise_multiplier * bound, system_generator())

    def choice(self, log_weights: NDArray[np.float64]) -> int:
        return gumbel_choice(log_weights, system_generator())


class KeyedNoise:
    """Float noise that can be stopped and resumed exactly: a fresh stream for each release from a chain of keys.

    ``state`` is the secret to store between two releases; ``KeyedNoise(state)`` goes on from there, bit for bit, and
    an old noise cannot be found from it.

    Guarantee:
        Two releases never share a stream, because the chain moves on under a lock before the noise is used.

    Edge cases:
        In a forked child it refuses to work, and it cannot be copied or pickled: two processes would add the same
        noise, and the difference of two releases would have none.
    """

    __slots__ = ("_lock", "_process", "_stamp", "_state")

    def __init__(self, state: Chain | None = None, *, stamp: str = NOT_HARDENED) -> None:
        self._state = Chain(fresh_key("noise")) if state is None else state
        self._stamp = stamp
        self._process = os.getpid()
        self._lock = Lock()

    @property
    def stamp(self) -> str:
        return self._stamp

    @property
    def state(self) -> Chain:
        """Where the next release stands. Secret: it undoes all noise to come."""
        return self._state

    def gaussian(self, values: Sequence[Leaf], *, bound: float, noise_multiplier: float) -> list[Leaf]:
        return add_gaussian(values, noise_multiplier * bound, self._advance())

    def choice(self, log_weights: NDArray[np.float64]) -> int:
        return gumbel_choice(log_weights, self._advance())

    def _advance(self) -> np.random.Generator:
        if os.getpid() != self._process:
            raise InvalidInput(
                "a noise source is used in a process forked from its own: expected one source a process. "
                "Make a new KeyedNoise() after the fork; shared noise cancels."
            )
        with self._lock:
            generator = self._state.generator("noise")
            self._state = self._state.next()
        return generator

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a noise source is copied or pickled: expected one holder, as a copy repeats its noise. "
            "Store its .state in a secret file and build KeyedNoise(state) once."
        )


def seeded_noise(seed: int) -> KeyedNoise:
    """The same noise every time, for tests. Whoever knows the seed can take the noise off: the stamp says so.

    >>> seeded_noise(7).stamp
    'test noise (seed 7): not private'
    """
    seed = _validate.count(least=0, seed=seed)
    key = blake2b(str(seed).encode(), digest_size=KEY_BYTES, person=b"dpilot test seed").digest()
    return KeyedNoise(Chain(key), stamp=f"test noise (seed {seed}): not private")


def add_gaussian(values: Sequence[Leaf], scale: float, generator: np.random.Generator) -> list[Leaf]:
    """Each value plus N(0, scale^2) in every coordinate, in the value's own precision, in new memory."""
    return [_add_torch(v, scale, generator) if is_tensor(v) else _add_numpy(v, scale, generator) for v in values]


def gumbel_choice(log_weights: NDArray[np.float64], generator: np.random.Generator) -> int:
    """An index drawn with probability proportional to exp(log_weights), by the largest of Gumbel-shifted weights."""
    return int(np.argmax(log_weights + generator.gumbel(size=log_weights.shape)))


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a torch tensor; a process that never loaded torch has none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _add_numpy(value: Any, scale: float, generator: np.random.Generator) -> Any:
    drawn = _normal(value.shape, value.dtype, generator)
    return np.asarray(value + drawn * value.dtype.type(scale))


def _add_torch(value: Any, scale: float, generator: np.random.Generator) -> Any:
    import torch

    if value.device.type == "cpu":  # torch's own CPU generator keeps 32 bits of its seed: few enough to try them all
        dtype = np.float64 if value.dtype == torch.float64 else np.float32
        drawn = torch.from_numpy(_normal(tuple(value.shape), np.dtype(dtype), generator))
    else:
        seeded = torch.Generator(device=value.device)
        seeded.manual_seed(int(generator.integers(2**63)))
        drawn = torch.randn(value.shape, dtype=value.dtype, device=value.device, generator=seeded)
    return drawn.mul_(scale).add_(value.detach())


def _normal(shape: tuple[int, ...], dtype: np.dtype[Any], generator: np.random.Generator) -> NDArray[Any]:
    """Standard normal numbers; many are drawn in blocks, side by side, each block from a stream of its own.

    The blocks do not depend on how many threads there are, so the same generator always gives the same numbers.
    """
    drawn = np.empty(shape, dtype)
    flat = drawn.reshape(-1)
    starts = range(0, flat.size, _BLOCK)
    if len(starts) <= 1:
        generator.standard_normal(dtype=dtype, out=flat)
        return drawn
    keys = generator.integers(2**32, size=(len(starts), KEY_BYTES // 4), dtype=np.uint32)

    def fill(start: int, key: NDArray[np.uint32]) -> None:
        stream = np.random.Generator(np.random.SFC64(key))
        stream.standard_normal(dtype=dtype, out=flat[start : start + _BLOCK])

    with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
        list(pool.map(fill, starts, keys))
    return drawn
