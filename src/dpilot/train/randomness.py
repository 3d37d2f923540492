"""The randomness of a step that is not noise (dropout, augmentation): from its own key, and then put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dpilot.keys import Chain


@contextmanager
def step_randomness(chain: Chain) -> Iterator[None]:
    """Seed torch, numpy and random from this position of the chain, and put back what was there when it ends.

    Guarantee:
        A resumed step draws what the first one drew. Nothing needs to be stored for it: the position of a global
        generator would tell how many records a batch had.
    """
    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=cuda_devices()):
            seed_generators(chain, "model")
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def seed_generators(chain: Chain, purpose: str) -> None:
    """Seed torch, numpy and random from this position of the chain, for one ``purpose``."""
    seeds = chain.generator(purpose).integers(2**32, size=3)
    torch.default_generator.manual_seed(int(seeds[0]))  # torch.manual_seed takes longer than a small step
    if cuda_devices():
        torch.cuda.manual_seed_all(int(seeds[0]))
    np.random.seed(int(seeds[1]))
    random.seed(int(seeds[2]))


def cuda_devices() -> list[int]:
    """The CUDA devices whose generators a step may move; none in a process that never used one."""
    started = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return list(range(torch.cuda.device_count())) if started else []
