"""What a run shows while it runs: released and declared values, and the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dpilot.records import StepRecord


@dataclass(frozen=True, slots=True)
class Update:
    """One step is done. Epsilon was spent in full before the first step; what is left is left for other runs."""

    record: StepRecord
    steps: int
    epsilon: float
    delta: float
    epsilon_left: float
    seconds_left: float

    @property
    def done(self) -> bool:
        return self.record.step + 1 == self.steps


Progress = Callable[[Update], None]
Callback = Callable[[StepRecord], None]


@dataclass(frozen=True, slots=True)
class Observers:
    """Who is told of each step: a callback gets the step's record, a progress display also the price and the time.

    Guarantee:
        Both see what the record of the run will say, the ledger's numbers and the clock, and nothing else.
    """

    callback: Callback | None = None
    progress: Progress | None = None

    def of(self, steps: int, first: int, epsilon: float, delta: float, left: float) -> Callback:
        """A function to call with each step's record, for a run that begins at step ``first``."""
        started = time.monotonic()

        def tell(record: StepRecord) -> None:
            if self.callback is not None:
                self.callback(record)
            if self.progress is not None:
                pace = (time.monotonic() - started) / (record.step + 1 - first)
                self.progress(Update(record, steps, epsilon, delta, left, pace * (steps - record.step - 1)))

        return tell
