"""Parts of a data set that compose in parallel: each record goes to one part by a coin of its own.

>>> split = Split.draw({"train": 0.9, "held-out": 0.1})
>>> parts = split.indices(length=1000)
>>> sorted(np.concatenate(list(parts.values()))) == list(range(1000))
True
>>> Split(split.shares, split.key) == split and Split(split.shares, split.key).id == split.id
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from dpilot import _validate
from dpilot._arrays import Floats, Indices
from dpilot.data.values import attempt, key, number
from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key


@dataclass(frozen=True, slots=True)
class Split:
    """Named parts with their expected shares, and the secret key of the coins.

    ::

        part(i) = the first part whose cumulative share exceeds coin(key, i)

    ``id`` goes into the rows of a ledger next to the part's name: parts of one split compose in parallel, parts of two
    splits add up. Whoever uses a split again keeps its key, secret, and has the records where they were, or has ids.

    Guarantee:
        The coin of a record is a function of the key and of its place, or of its own id, alone: a record added at the
        end moves no other one, so an entry of one part costs the records of the other parts nothing. A permutation or a
        split of exact sizes would not do: there one record moves others.
        Ids are compared by value (1, 1.0 and "1" are one), so that no record's id changes how the others' are read.
        The id is a one-way function of key and shares: it tells two splits apart and gives no coin away.

    Edge cases:
        The sizes of the parts are random and secret; ``share(part) * size`` is the declared number to divide by.
        Records with equal ids go to the same part, and so do whole numbers from 2^53 on that one float stands for. No
        id raises: one without a text shares a coin with all such.
        A split goes by places or by ids, never by both: the same record would lie in two parts of one name. So would
        the records after one that is taken out, or of a table put in another order, if its places were split again.
    """

    shares: Mapping[str, float]
    key: bytes = field(repr=False)
    by: str = "place"

    def __post_init__(self) -> None:
        _validate.one_of(("place", "id"), by=self.by)
        shares = {str(name): _validate.open_unit(share=share) for name, share in self.shares.items()}
        if len(shares) < 2 or abs(sum(shares.values()) - 1) > 1e-9:
            raise InvalidInput(f"shares are {shares!r}: expected two or more parts whose shares sum to 1.")
        object.__setattr__(self, "shares", shares)
        Chain(self.key)  # raises if it is no key

    @classmethod
    def draw(cls, shares: Mapping[str, float], by: str = "place") -> Split:
        """A new split, its key from the operating system; ``by`` the "place" of a record, or by its "id"."""
        return cls(shares, fresh_key("split"), by)

    @property
    def id(self) -> str:
        """The public name of this split, for the ledger."""
        by = {"place": "place", "id": "value of id"}[self.by]  # "id" was the id's text: other coins of the same key
        return Chain(self.key).token(f"split by {by} {list(self.shares.items())!r}")

    def share(self, part: str) -> float:
        """The expected share of ``part``."""
        return self.shares[_validate.one_of(self.shares, part=part)]

    def indices(self, length: int) -> dict[str, Indices]:
        """The places of the records of each part, by a secret coin for each place."""
        self._check("place", "indices_of(ids)")
        length = _validate.count(least=0, length=length)
        return self._parts(Chain(self.key).generator("split").random(length))

    def coins(self) -> Callable[[int], NDArray[np.str_]]:
        """A function that tosses for the next so many places, and says in which part each is: those of ``indices``."""
        self._check("place", "indices_of(ids)")
        generator, names = Chain(self.key).generator("split"), np.array(list(self.shares))
        return lambda count: names[self._numbers(generator.random(count))]

    def indices_of(self, ids: Iterable[object]) -> dict[str, Indices]:
        """The places of the records of each part, by a keyed hash of each record's own id."""
        self._check("id", "indices(length)")
        words = [blake2b(_text(each), key=self.key, digest_size=8, person=b"dpilot record").digest() for each in ids]
        coins = np.frombuffer(b"".join(words), dtype="<u8") >> np.uint64(11)
        return self._parts(coins.astype(np.float64) * 2.0**-53)

    def _parts(self, coins: Floats) -> dict[str, Indices]:
        places = self._numbers(coins)
        return {name: np.flatnonzero(places == place) for place, name in enumerate(self.shares)}

    def _numbers(self, coins: Floats) -> Indices:
        ends = np.cumsum(list(self.shares.values()))[:-1]  # the last part takes what is left, rounding included
        return np.searchsorted(ends, coins, side="right")

    def _check(self, by: str, other: str) -> None:
        if self.by != by:
            raise InvalidInput(f"the split goes by {self.by}: expected {other}, or a split drawn with by={by!r}.")


def _text(value: object) -> bytes:
    """The id's value as bytes; one constant for what cannot be written, as an error would tell of that record."""
    return attempt(lambda: str.encode(_written(value), "utf-8", "surrogatepass"), otherwise=b"\xff")


def _written(value: object) -> str:
    """The text by which an id is compared, whatever type its container gave it."""
    found, near = key(value), number(value)
    return found or (str(value) if near is None else repr(near))
