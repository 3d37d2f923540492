"""Secret keys, and the random streams made of them: one-way, one stream a position, each purpose apart.

>>> state = Chain(bytes(32))
>>> state
Chain(position=0)
>>> coins = state.generator("sampling").random(3)
>>> bool((Chain(bytes(32)).generator("sampling").random(5)[:3] == coins).all())   # a record added last moves no coin
True
>>> bool((state.generator("noise").random(3) == coins).any())                     # another purpose, other coins
False
>>> state.next()
Chain(position=1)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NoReturn

import numpy as np

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.tape import current

KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Chain:
    """A position in a one-way chain of secret keys: a random stream for this position, and the way to the next.

    ::

        stream(position) = SFC64(BLAKE2b(key, purpose))        key(position + 1) = BLAKE2b(key, "next")

    Guarantee:
        A stored chain replays this position and the later ones exactly, and says nothing of the earlier ones: going
        back means inverting the hash. It is a secret all the same: it undoes all later streams.

    Edge cases:
        The representation shows the position only.
        It cannot be copied or pickled: to store it, write ``key`` and ``position`` to a secret file.
    """

    key: bytes = field(repr=False)
    position: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or len(self.key) != KEY_BYTES:
            raise InvalidInput(f"key is not {KEY_BYTES} bytes. Leave it out, and one comes from the operating system.")
        object.__setattr__(self, "position", _validate.count(least=0, position=self.position))

    def generator(self, purpose: str) -> np.random.Generator:
        """The random stream of this position for one ``purpose``; asked again, it starts over."""
        return stream_of(self.seed(purpose))

    def seed(self, purpose: str) -> bytes:
        """What that stream grows from: it tells nothing of the key, nor of another purpose's."""
        return blake2b(purpose.encode(), key=self.key, digest_size=KEY_BYTES, person=b"dpilot stream").digest()

    def token(self, purpose: str) -> str:
        """A public name for what this key is used for: it tells uses apart and gives nothing of the key away."""
        return blake2b(purpose.encode(), key=self.key, digest_size=8, person=b"dpilot token").hexdigest()

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a chain of keys is copied or pickled: expected one holder, as a copy repeats its streams. "
            "Store its key and position in a secret file, or draw a new key in each process."
        )

    def next(self) -> Chain:
        """The next position. The key of this one cannot be found from it."""
        return Chain(blake2b(key=self.key, digest_size=KEY_BYTES, person=b"dpilot next").digest(), self.position + 1)


def stream_of(seed: bytes) -> np.random.Generator:
    """The random stream that grows from a chain's seed, in whichever process."""
    return np.random.Generator(np.random.SFC64(int.from_bytes(seed, "little")))


def fresh_key(purpose: str) -> bytes:
    """A new key from the operating system's entropy; recorded by the tape, if one is running."""
    tape = current()
    return _entropy() if tape is None else tape.key(purpose, _entropy)


def system_generator() -> np.random.Generator:
    """A stream of its own from the operating system's entropy: no state, so nothing to fork, copy or repeat."""
    return Chain(_entropy()).generator("system")


def _entropy() -> bytes:
    return os.urandom(KEY_BYTES)


def public_generator(*seed: int) -> np.random.Generator:
    """Random numbers that are no secret: of a design, or of made-up records. Never for noise, batches or splits."""
    return np.random.default_rng(seed)
