"""Generators of random numbers: where they stand, whether a model set them, and a seed for each sample of its own."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

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


class States(NamedTuple):
    """The states of torch's own generators; those of devices cannot be asked for while a graph is captured."""

    host: bytes
    devices: bytes | None

    @staticmethod
    def now() -> States:
        host = torch.default_generator.get_state().numpy().tobytes()
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return States(host, b"")
        if torch.cuda.is_current_stream_capturing():
            return States(host, None)
        return States(host, b"".join(g.get_state().numpy().tobytes() for g in torch.cuda.default_generators))

    def agree(self, other: States) -> bool:
        """Whether nothing that is known of two states differs."""
        return self.host == other.host and (None in (self.devices, other.devices) or self.devices == other.devices)


@final
class Generators:
    """The states of torch's own generators in one pass.

    A model that seeds them, or draws from a generator of its own, gives each position in the chunk numbers that may be
    the same for ever: they belong to positions, not to records. The states are compared before every draw, so that
    seeding with the seed that is in use, or restoring an earlier state, is seen too.

    Edge cases:
        the same draw again     an operation on tensors of the same forms that starts from a state from which it drew
                                before repeats its numbers: nothing new where a checkpoint computes its layers again
        a captured graph        the states of a device that captures are not compared; the pass before was judged
    """

    __slots__ = ("_drawn", "_goes_on", "_now")

    def __init__(self) -> None:
        self._now, self._goes_on = States.now(), True
        self._drawn: dict[Any, set[States]] = {}

    def were_set(self, func: Any, args: Any, kwargs: Any, *, again: bool) -> bool:
        """Whether a draw that is about to run does not go on from the draw before it.

        ``again`` says that part of the pass is computed again, where earlier draws may be repeated.
        """
        if any(isinstance(v, torch.Generator) for v in (*args, *kwargs.values())):
            return True
        now = States.now()
        form = (func, *(t.shape if isinstance(t, Tensor) else str(t) for t in args))
        earlier = self._drawn.setdefault(form, set())
        self._goes_on = now.agree(self._now)
        if self._goes_on:
            earlier.add(now)
        return not self._goes_on and not (again and now in earlier)

    def go_on(self) -> bool:
        """Whether the generators stand where the last draw left them: nobody set them for the next pass."""
        return States.now().agree(self._now)

    def follow(self) -> None:
        """The draw ran."""
        if self._goes_on:
            self._now = States.now()
