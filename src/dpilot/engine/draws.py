"""Where every generator of random numbers stands, so that the same numbers can be drawn again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The states of the generators of torch (all devices), Python and numpy."""

    host: Tensor
    devices: tuple[Tensor, ...]
    python: Any
    array: Any

    @staticmethod
    def now() -> Draws:
        used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        devices = tuple(g.get_state() for g in torch.cuda.default_generators) if used else ()
        return Draws(torch.get_rng_state(), devices, random.getstate(), np.random.get_state(legacy=True))

    def go_on(self) -> None:
        """Draw from here on."""
        torch.set_rng_state(self.host)
        for generator, state in zip(torch.cuda.default_generators, self.devices, strict=False):
            generator.set_state(state)
        random.setstate(self.python)
        np.random.set_state(self.array)

    def same(self, other: Draws) -> bool:
        """Whether nothing was drawn in between."""
        tensors = zip((self.host, *self.devices), (other.host, *other.devices), strict=False)
        arrays = self.array[1].tobytes() == other.array[1].tobytes() and self.array[2:] == other.array[2:]
        return all(torch.equal(a, b) for a, b in tensors) and arrays and self.python == other.python


@contextmanager
def keep_draws() -> Iterator[None]:
    """Leave every generator where it stands."""
    before = Draws.now()
    try:
        yield
    finally:
        before.go_on()
