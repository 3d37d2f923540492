"""Tapes for tests: what a run sends to the door, exact values included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpilot._arrays import Floats
from dpilot.tape import TapeEntry, tape


class Recorder:
    """Keeps every release as it went to the door, and lets the noisy values and fresh keys pass."""

    def __init__(self) -> None:
        self.entries: list[TapeEntry] = []

    def release(self, entry: TapeEntry, outputs: Any) -> Any:
        self.entries.append(entry)
        return outputs()

    def key(self, purpose: str, fresh: Any) -> bytes:
        made: bytes = fresh()
        return made


def exact_sum(run: Callable[..., Any], *args: Any, **options: Any) -> Floats:
    """The vector that the only release of a run adds noise to: gradients and extras."""
    recorder = Recorder()
    with tape(recorder):
        run(*args, **options)
    (entry,) = recorder.entries
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in entry.inputs])


class NoiseFree(Recorder):
    """Keeps every release, and returns the exact values instead of noisy ones."""

    def release(self, entry: TapeEntry, outputs: Any) -> Any:
        self.entries.append(entry)
        return int(np.argmax(entry.inputs[0])) if entry.kind == "choice" else [value.copy() for value in entry.inputs]
