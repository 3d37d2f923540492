"""Generators of random numbers: where they stand, and a seed for each sample, so that it draws numbers of its own."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

Held = torch.Generator | random.Random | np.random.Generator | np.random.RandomState
"""A generator that a model or a loss holds."""


class Source(NamedTuple):
    """A generator: its state, in a form that can be compared, and how it is set and seeded."""

    state: Callable[[], Any]
    restore: Callable[[Any], Any]
    seed: Callable[[int], Any]


def of_torch(generator: torch.Generator) -> Source:
    """A generator of torch."""
    return Source(
        lambda: generator.get_state().numpy().tobytes(),
        lambda state: generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
        generator.manual_seed,
    )


HOST = of_torch(torch.default_generator)
PYTHON = Source(random.getstate, random.setstate, random.seed)
NUMPY = Source(
    lambda: pickle.dumps(np.random.get_state(legacy=True)),
    lambda state: np.random.set_state(pickle.loads(state)),
    lambda seed: np.random.seed(seed % 2**32),
)


def processor() -> tuple[Source, ...]:
    """The generators that draw on the processor."""
    return HOST, PYTHON, NUMPY


def devices() -> tuple[Source, ...]:
    """The generators of CUDA devices; none in a process that never used one."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return tuple(map(of_torch, torch.cuda.default_generators)) if used else ()


def outside_torch(held: Iterable[Held]) -> tuple[Source, ...]:
    """The generators whose draws no operation of torch shows: Python's, numpy's, and those that somebody holds."""
    return PYTHON, NUMPY, *map(source_of, held)


def source_of(held: Held) -> Source:
    """A generator that somebody holds."""
    if isinstance(held, torch.Generator):
        return of_torch(held)
    if isinstance(held, random.Random):
        return Source(held.getstate, held.setstate, held.seed)
    bits: Any = held.bit_generator if isinstance(held, np.random.Generator) else held._bit_generator
    return Source(
        lambda: pickle.dumps(bits.state),
        lambda state: setattr(bits, "state", pickle.loads(state)),
        lambda seed: setattr(bits, "state", type(bits)(seed).state),
    )


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorStates:
    """Where generators stand, so that the same numbers can be drawn again."""

    states: tuple[tuple[Source, Any], ...]

    @staticmethod
    def of(sources: Iterable[Source]) -> GeneratorStates:
        return GeneratorStates(tuple((source, source.state()) for source in sources))

    @staticmethod
    def now(held: Iterable[Held] = ()) -> GeneratorStates:
        """Of every generator: torch's (all devices), Python's, numpy's, and those that somebody holds."""
        return GeneratorStates.of((HOST, *devices(), *outside_torch(held)))

    def go_on(self) -> None:
        """Draw from here on."""
        for source, state in self.states:
            source.restore(state)

    def moved(self) -> bool:
        """Whether anything was drawn, or a generator set, since."""
        return any(source.state() != state for source, state in self.states)


@contextmanager
def keep_draws(held: Iterable[Held] = ()) -> Iterator[None]:
    """Leave every generator where it stands."""
    before = GeneratorStates.now(held)
    try:
        yield
    finally:
        before.go_on()


def seeds(n: int) -> list[int]:
    """A seed for each of n samples, from torch's generator: whatever one of them draws or sets, the others' stay."""
    drawn: list[int] = torch.randint(2**62, (n,), device="cpu").tolist()
    return drawn


def sow(seed: int, held: Iterable[Held] = ()) -> None:
    """Seed every generator, each with a number of its own: equal seeds would repeat one's numbers in another."""
    for place, source in enumerate((HOST, *devices(), *outside_torch(held))):
        source.seed(seed + place)
