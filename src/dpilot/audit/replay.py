"""Replay: run on a data set, run again on a neighbour with every released value frozen, and see what moved.

If the releases are all that the outside sees, then with their outputs (and the other records' coins) fixed, one record
can move nothing but the inputs of releases, and those by no more than each declared bound. Anything else that moves is
a leak: control flow, a shape, a receipt, a file, a log line, an exception. It is deterministic and takes two runs.

    >>> import numpy as np
    >>> from dpilot.mechanism import release
    >>> from dpilot.privacy.events import Gaussian
    >>> from dpilot.privacy.receipt import Receipt
    >>> def unclipped(values):
    ...     return release(values.sum(), bound=1.0, noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))
    >>> replay(unclipped, np.ones(3), np.array([1.0, 1.0, 1.0, 7.0])).differences
    ('release 0 moves by 7, more than its bound 1',)

Reference:
    the idea: Cebere et al., "Re:cord-play", PETS 2026.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpilot.audit.check import Check
from dpilot.audit.neighbours import Pair
from dpilot.audit.observe import RETURNED, Diverged, Observation, observe, scratch
from dpilot.tape import TapeEntry

__all__ = ["Replay", "audit_replays", "replay"]


@dataclass(frozen=True, slots=True)
class Replay:
    """What moved: nothing, if ``differences`` is empty. ``largest`` is the largest movement in units of its bound.

    ``ending``: how the first run ended; of one that did not return, nothing that it would have returned was compared.
    """

    differences: tuple[str, ...]
    releases: int
    largest: float
    ending: str = RETURNED


def replay(
    run: Callable[[Any], Any], data: Any, neighbour: Any, *, tolerance: float = 1e-9, opaque: Sequence[str] = ()
) -> Replay:
    """Run ``run(data)`` and record it, run ``run(neighbour)`` with the released values frozen, and compare everything.

    Compared are number, order, shapes, types, bounds and events of the releases; fresh keys asked for; the value
    returned; exceptions and exit codes; log lines, warnings and printed text; files written under the working folder,
    which is an empty one for each run. Files whose name matches ``opaque`` need only be there in both (a ledger holds
    the time of day: return its rows instead).

    Guarantee:
        No false comfort from equal randomness: released outputs and keys are frozen, the global seeds of random, numpy
        and torch are the same in both runs, and a difference that is not finite counts as infinite.

    Edge cases:
        ``tolerance`` is relative to the bound; a few roundings of the input's own size and type are allowed on top, but
        no more than a thousandth of the bound: a sum so long that its roundings count needs a finer type.
        The two data sets should differ in the last record, so that no other record's coins move.
        What a new thread or another process releases is not recorded, nor are files written elsewhere.
        Frozen releases draw no noise, so the position of a resumable noise source moves in the first run only.
    """
    recorder = _Recorder()
    with scratch() as folder:
        first = observe(run, data, recorder, folder=folder, opaque=opaque)
        player = _Player(recorder)
        second = observe(run, neighbour, player, folder=folder, opaque=opaque)
    moves = [(_movement(a, b), b.bound) for a, b in zip(recorder.entries, player.entries, strict=False)]
    differences = (*_release_differences(recorder, player, tolerance), *_other_differences(first, second))
    largest = max((move / bound for move, bound in moves), default=0.0)
    return Replay(differences, len(recorder.entries), largest, first.ending)


def audit_replays(run: Callable[[Any], Any], pairs: Sequence[Pair]) -> list[Check]:
    """Replay ``run`` on each of ``pairs``, such as ``neighbours(data)``, and say of each what moved."""
    found, releases, endings = [], 0, list[str]()
    for pair in pairs:
        result = replay(run, pair.data, pair.neighbour, opaque=("*",))
        releases += result.releases
        endings += [result.ending] * (result.ending != RETURNED)
        moved = f"moves a release by {result.largest:.3g} bounds at most, of {result.releases} releases"
        found.append(Check(pair.name, not result.differences, "; ".join(result.differences) or moved))
    if not releases:
        found.append(Check("releases", False, "nothing was released: the replay shows nothing"))
    if endings:
        found.append(Check("ending", False, f"the run {endings[0]}: what it would have returned was not compared"))
    return found


class _Recorder:
    """Lets everything pass, and remembers."""

    def __init__(self) -> None:
        self.entries: list[TapeEntry] = []
        self.outputs: list[Any] = []
        self.keys: list[tuple[str, bytes]] = []

    def release(self, entry: TapeEntry, outputs: Callable[[], Any]) -> Any:
        made = outputs()
        self.entries.append(entry)
        self.outputs.append(deepcopy(made))
        return made

    def key(self, purpose: str, fresh: Callable[[], bytes]) -> bytes:
        self.keys.append((purpose, fresh()))
        return self.keys[-1][1]


class _Player:
    """Gives back what was recorded, in order, and stops a run that goes another way."""

    def __init__(self, recorded: _Recorder) -> None:
        self.recorded = recorded
        self.entries: list[TapeEntry] = []
        self.purposes: list[str] = []

    def release(self, entry: TapeEntry, outputs: Callable[[], Any]) -> Any:
        del outputs
        place = len(self.entries)
        self.entries.append(entry)
        if place >= len(self.recorded.entries) or _public(entry) != _public(self.recorded.entries[place]):
            raise Diverged
        return self.recorded.outputs[place]

    def key(self, purpose: str, fresh: Callable[[], bytes]) -> bytes:
        del fresh
        self.purposes.append(purpose)
        if [purpose] != [each for each, _ in self.recorded.keys[len(self.purposes) - 1 :][:1]]:
            raise Diverged
        return self.recorded.keys[len(self.purposes) - 1][1]


def _public(entry: TapeEntry) -> tuple[object, ...]:
    return entry.kind, entry.forms, entry.bound, entry.event, entry.stamp


def _release_differences(recorder: _Recorder, player: _Player, tolerance: float) -> Iterator[str]:
    purposes = [purpose for purpose, _ in recorder.keys]
    if purposes != player.purposes:
        yield f"keys asked for differ: {purposes} and {player.purposes}"
    for place, (first, second) in enumerate(zip_longest(recorder.entries, player.entries)):
        if first is None or second is None:
            yield f"release {place} is made on one data set only: {first or second}"
        elif _public(first) != _public(second):
            yield f"release {place} differs in what is public: {_public(first)} and {_public(second)}"
        elif _movement(first, second) > second.bound * (1 + tolerance) + _rounding(first):
            yield f"release {place} moves by {_movement(first, second):.6g}, more than its bound {second.bound:.6g}"


def _other_differences(first: Observation, second: Observation) -> Iterator[str]:
    for name in (each.name for each in fields(Observation)):
        before, after = getattr(first, name), getattr(second, name)
        if before != after:
            yield f"{name.replace('_', ' ')} differs: {_short(before)} and {_short(after)}"


def _movement(first: TapeEntry, second: TapeEntry) -> float:
    if first.forms != second.forms:
        return math.inf
    with np.errstate(all="ignore"):
        difference = _joint(second) - _joint(first)
        size = _length(difference, first.kind)
    return size if math.isfinite(size) else math.inf


def _length(difference: NDArray[Any], kind: str) -> float:
    """How far a release moved, squares taken relative to the largest entry so that none vanishes or overflows."""
    largest = float(np.abs(difference).max(initial=0.0))
    if kind == "choice" or not 0 < largest < math.inf:
        return largest
    return largest * float(np.linalg.norm(difference / largest))


def _rounding(entry: TapeEntry) -> float:
    # A few roundings of the input's own size are no movement; capped at a thousandth of the bound, so that a long sum
    # in float32 cannot hide a record in its rounding (test_a_long_sum_in_float32_hides_no_movement).
    coarsest = max(float(np.finfo(values.dtype).eps) for values in entry.inputs)
    with np.errstate(all="ignore"):
        size = float(np.linalg.norm(_joint(entry)))
    return min(8 * coarsest * size, 1e-3 * entry.bound) if math.isfinite(size) else 0.0


def _joint(entry: TapeEntry) -> Any:
    return np.concatenate([values.astype(np.float64).ravel() for values in entry.inputs])


def _short(value: object, most: int = 300) -> str:
    text = str(value)
    return text if len(text) <= most else text[:most] + "..."
