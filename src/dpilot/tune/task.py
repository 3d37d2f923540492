"""What a tuner runs: trials on the training records, and a noisy table of each on the held-out ones.

A task holds records and lets nothing out but what went through the door. Everything a tuner decides, it decides from
declared numbers and from these releases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.mechanism import Draws, Noise
from dpilot.noise import SHARED, KeyedNoise, SystemNoise, seeded_noise
from dpilot.privacy.events import Event, Gaussian, PoissonSampled, Repeated
from dpilot.privacy.receipt import Receipt, divide, step_noise_multiplier
from dpilot.privacy.unit import PrivacyUnit
from dpilot.records import StepRecord
from dpilot.tune.candidate import Candidate

__all__ = [
    "HELD_OUT",
    "TRAIN",
    "KeepSteps",
    "MakeNoise",
    "Outlay",
    "Task",
    "Trial",
    "count_cells",
    "exact_counts",
    "fixed_noise",
    "require_distinct",
]

TRAIN: Final = "train"
HELD_OUT: Final = "held-out"

MakeNoise = Callable[[], Noise]
KeepSteps = Callable[[tuple[StepRecord, ...]], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to be made: what it tries, the noise multiplier of each step, and what its steps are drawn from.

    ``keep`` is called with the records of its steps, of tasks that have any.
    """

    candidate: Candidate
    noise_multiplier: float
    receipt: Draws
    keep: KeepSteps | None = field(default=None, repr=False)


class Task(Protocol):
    """A learning problem with its records, split in two parts.

    ``size`` and ``held_out_size`` are declared expected sizes, in units; ``unit`` is whom it protects; ``split`` names
    the split in the ledger; ``sample_rate`` is that of every step. ``stamp`` is what records say of the noise.
    """

    @property
    def unit(self) -> PrivacyUnit: ...

    @property
    def size(self) -> float: ...

    @property
    def held_out_size(self) -> float: ...

    @property
    def sample_rate(self) -> float: ...

    @property
    def split(self) -> str | None: ...

    @property
    def stamp(self) -> str: ...

    def cells(self, objective: str) -> int:
        """How many rows the table of ``objective`` has: classes, groups, or one."""
        ...

    def untrained(self) -> Any:
        """The model before any step: no record decides it."""
        ...

    def train(self, trials: Sequence[Trial]) -> tuple[Any, ...]:
        """One model a trial, each with noise and batches of its own, drawn from its own receipt, tried once."""
        ...

    def table(self, model: Any, objective: str, *, noise_multiplier: float, receipt: Draws) -> Floats | None:
        """The noisy (cell x (wrong, right)) counts of ``model`` on held-out records; None for a model that is not
        finite, which its released weights show."""
        ...

    def exact_table(self, model: Any, objective: str) -> Floats:
        """The same counts without noise. Sensitive: for the oracle, which is not private."""
        ...


@dataclass(frozen=True, slots=True)
class Outlay:
    """How one run is paid, fixed before any record is read.

    ::

        full batch    Gaussian(s) for the whole run: T steps of s sqrt(T), whatever T the candidate asks for
        sampled       T steps of PoissonSampled(q, Gaussian(s)): T is fixed, candidates differ in step size only

    Guarantee:
        ``event`` is what any candidate's run costs, so (full batch) both numbers of a candidate, or (sampled) its step
        size, may depend on what was released earlier.

    Example:
        >>> Outlay(10.0).event
        Gaussian(noise_multiplier=10.0)
        >>> Outlay(1.0, sample_rate=0.1, steps=5).event
        Repeated(event=PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0)), times=5)
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int | None = None

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier)
        if _validate.rate(sample_rate=self.sample_rate) < 1 and self.steps is None:
            raise InvalidInput("steps is None with a sample rate below 1: expected the number of steps, fixed.")

    @property
    def event(self) -> Event:
        if self.sample_rate == 1 or self.steps is None:
            return Gaussian(self.noise_multiplier)
        return Repeated(PoissonSampled(self.sample_rate, Gaussian(self.noise_multiplier)), self.steps)

    def scale(self, factor: float) -> Outlay:
        """The same run with ``factor`` times the noise."""
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

    def trial(self, candidate: Candidate, receipt: Receipt, keep: KeepSteps | None = None) -> Trial:
        """The trial of ``candidate``, drawn from ``receipt``."""
        if self.sample_rate == 1:
            # T Gaussians of s sqrt(T) compose to one of s, as T / (s sqrt(T))^2 = 1 / s^2: steps may follow from
            # releases (test_receipts_of_each_part_fit_the_budget_by_a_second_accountant).
            part = divide(receipt, self.noise_multiplier, candidate.steps)
            return Trial(candidate, step_noise_multiplier(self.noise_multiplier, candidate.steps), part, keep)
        if candidate.steps != self.steps:
            _validate.refuse("steps", candidate.steps, f"{self.steps}, as was paid", "Only the step size may vary.")
        return Trial(candidate, self.noise_multiplier, receipt, keep)


def count_cells(objective: str, classes: int, groups: int, remedy: str) -> int:
    """How many rows the table of ``objective`` has: one, the groups, or the classes.

    Raises:
        InvalidInput: "worst_group" without groups, with the ``remedy``.
    """
    if objective == "worst_group" and groups < 1:
        raise InvalidInput(f"worst_group is asked for without groups: expected {remedy}.")
    return {"accuracy": 1, "worst_group": groups}.get(objective, classes)


def exact_counts(codes: Floats, cells: int) -> Floats:
    """The (cell x (wrong, right)) counts of (cell, right) rows, those of no cell left out. Sensitive."""
    known = codes[(codes[:, 0] >= 0) & (codes[:, 0] < cells)].astype(int)
    counts = np.zeros((cells, 2))
    np.add.at(counts, tuple(known.T), 1.0)
    return counts


def fixed_noise(seed: int) -> MakeNoise:
    """Noise sources for tests: a stamped one for each trial and score, all different, the same every time.

    Edge cases:
        It works in the process that made it alone: a fork of it would repeat what its parent draws.

    >>> make = fixed_noise(3)
    >>> make().stamp == make().stamp == fixed_noise(3)().stamp
    True
    """
    return seeded_noise(seed).spawn


def require_distinct(make: MakeNoise) -> MakeNoise:
    """The same factory, which refuses to hand out two sources that were built from one state.

    Guarantee:
        No two trials or scores of a task add the same noise, whatever the factory does: one source may come again, as
        it moves on with every use, but a second one at a state that was handed out is refused.
    """
    return make if make is SystemNoise or isinstance(make, _Distinct) else _Distinct(make)


class _Distinct:
    """A factory and the sources that it has handed out so far."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: MakeNoise) -> None:
        self._make = make
        self._made: dict[str, KeyedNoise] = {}

    def __call__(self) -> Noise:
        noise = self._make()
        if isinstance(noise, KeyedNoise):
            earlier = self._made.setdefault(noise.state.token("source"), noise)
            if earlier is not noise:
                raise InvalidInput(SHARED)
        return noise
