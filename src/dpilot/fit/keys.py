"""All secret randomness of one fit, from one key: so that an interrupted fit can be repeated exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpilot.data.splits import Split
from dpilot.keys import KEY_BYTES, Chain, fresh_key
from dpilot.noise import NOT_HARDENED, KeyedNoise, Witness, seeded_noise
from dpilot.tune.recipe import TrialKeys

__all__ = ["FitKeys"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FitKeys:
    """The coins of the split, the batches, initial weights and noise of a fit, each from a stream of its own.

    Guarantee:
        The same key, the same order of calls and the same sums give the same randomness, bit for bit; no noise covers
        two different sums, however often the fit is repeated. With a witness the second of them is refused.
    """

    chain: Chain
    noise: KeyedNoise

    @classmethod
    def of(cls, key: bytes, *, stamp: str = NOT_HARDENED, witness: Witness | None = None) -> FitKeys:
        """The randomness of ``key``."""
        chain = Chain(key)
        noise = KeyedNoise(Chain(_key(chain, "noise")), stamp=stamp, witness=witness, by_values=True)
        return cls(chain, noise)

    @classmethod
    def draw(cls, test_seed: int | None = None) -> FitKeys:
        """A fresh key from the operating system, or that of a test, whose stamp says so."""
        if test_seed is None:
            return cls.of(fresh_key("fit"))
        seeded = seeded_noise(test_seed)
        return cls.of(seeded.state.key, stamp=seeded.stamp)

    @property
    def name(self) -> str:
        """A public name of this fit, which gives nothing of the key away."""
        return self.chain.token("fit")

    def split(self, shares: Mapping[str, float]) -> Split:
        """The secret coins that put each record into one part."""
        return Split(shares, _key(self.chain, "split"))

    @property
    def unit_rows(self) -> bytes:
        """The key by which the rows of a unit that count, and the one that is drawn, are chosen."""
        return _key(self.chain, "units")

    def trial(self) -> TrialKeys:
        """Initial weights, batches and noise of one run of a network."""
        return TrialKeys(Chain(_key(self.chain, "weights")), Chain(_key(self.chain, "batches")), self.noise.spawn())


def _key(chain: Chain, purpose: str) -> bytes:
    return chain.generator(purpose).bytes(KEY_BYTES)
