"""The randomness of a step that is not noise (dropout, augmentation): from its own key, and then put back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from dpilot.engine.generators import keep_draws, sow
from dpilot.engine.state import generators_of
from dpilot.keys import Chain


@contextmanager
def step_randomness(chain: Chain) -> Iterator[None]:
    """Seed torch, numpy and random from this position of the chain, and put back what was there when it ends.

    Guarantee:
        A resumed step draws what the first one drew. Nothing needs to be stored for it: the position of a global
        generator would tell how many records a batch had.
    """
    with fork_generators():
        seed_generators(chain, "model")
        yield


Seed = Callable[..., None]
"""Seeds all generators for the record that a whole number, or several, name."""


@contextmanager
def record_randomness(*roots: Any) -> Iterator[Seed]:
    """Give each record random numbers of its own while it is read: the function seeds the generators for it.

    These are torch's, numpy's and Python's, and those that ``roots`` (a data set, a collate function) hold.

    Guarantee:
        What a data set draws for a record, or seeds, decides nothing of another record: the seeds follow from where
        torch's generator stands, which reading does not move, and from the record's own numbers. Afterwards all
        generators are where they were (tests/attacks/test_readers_draw.py).

    Edge cases:
        a generator that reading a record makes    not seeded until the next records are read
    """
    held = generators_of(*roots)

    def seed(*numbers: int) -> None:
        name = b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
        sow(int.from_bytes(blake2b(name, key=base, digest_size=7).digest(), "little"), held)

    with keep_draws(held):
        base = torch.randint(256, (16,), dtype=torch.uint8).numpy().tobytes()
        yield seed


@contextmanager
def fork_generators() -> Iterator[None]:
    """Put the generators of torch, numpy and random back when it ends."""
    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=cuda_devices()):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def seed_generators(chain: Chain, purpose: str) -> None:
    """Seed torch, numpy and random from this position of the chain, for one ``purpose``."""
    _seed(*chain.generator(purpose).integers(2**32, size=3).tolist())


def _seed(first: int, second: int, third: int) -> None:
    torch.default_generator.manual_seed(first)  # torch.manual_seed takes longer than a small step
    if cuda_devices():
        torch.cuda.manual_seed_all(first)
    np.random.seed(second)
    random.seed(third)


def cuda_devices() -> list[int]:
    """The CUDA devices whose generators a step may move; none in a process that never used one."""
    started = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return list(range(torch.cuda.device_count())) if started else []
