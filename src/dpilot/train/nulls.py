"""Records that cannot be computed are null: nothing is raised because of one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpilot.engine import PerSample
from dpilot.engine.base import empty, trainable
from dpilot.train.collating import joined as chunks_of

PerSampleOf = Callable[[Any], PerSample]


def _nothing() -> list[Any]:
    return []


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records collated together, and how each is had alone: a chunk of one, or None for the null record."""

    whole: Any
    alone: Callable[[], list[Any]] = _nothing


OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""The machine's trouble, not a record's: these stop a run, and leave it spent."""


def guarded(
    per_sample: PerSampleOf, model: torch.nn.Module, again: PerSampleOf | None = None
) -> Callable[[Chunk], PerSample]:
    """The same function, of a chunk that is halved, and computed by ``again``, as long as it raises.

    Guarantee:
        No exception depends on a record: one that raises on its own (a label outside the classes, another shape) has
        an infinite norm, which every rule gives weight 0, and adds exact zeros. The others are computed as before, in
        as many rows as before: a record that raises moves nothing but itself.

    Edge cases:
        On a GPU a number that a kernel takes for a place which does not exist ends the process, exceptions or not.
        ``labels`` sees to labels outside the classes; ids outside a vocabulary are left.
        A mistake in the model or the loss would make every record null. That is why a run first rehearses on
        made-up records, where such a mistake is raised.
    """
    run_again = again or per_sample

    def gradients(chunk: Chunk) -> PerSample:
        try:
            return per_sample(chunk.whole)
        except OUT_OF_MEMORY:
            raise
        except Exception:
            return by_halves(chunk.alone())

    def by_halves(records: Sequence[Any]) -> PerSample:
        middle = len(records) // 2
        halves = (records[:middle], records[middle:]) if middle else ()
        return joined([attempt(half) for half in halves]) if halves else _null(model)

    def attempt(records: Sequence[Any]) -> PerSample:
        present = [record for record in records if record is not None]
        nulls = [_null(model)] * (len(records) - len(present))
        try:
            return joined([*(run_again(whole) for whole, _ in chunks_of(present, most=len(present))), *nulls])
        except OUT_OF_MEMORY:
            raise
        except Exception:
            return joined([by_halves(present), *nulls])

    return gradients


def _null(model: torch.nn.Module) -> PerSample:
    nothing = empty(trainable(model), "none", "the record could not be computed")
    squares = {name: square.new_full((1,), torch.inf) for name, square in nothing.squares.items()}
    first = next(iter(squares.values()))
    return PerSample(first, nothing.engine, nothing.reason, squares, nothing.sum_with)


def joined(parts: Sequence[PerSample]) -> PerSample:
    """One handle for records that were computed in several parts."""
    if len(parts) == 1:
        return parts[0]
    names, counts = parts[0].names, [part.norms.shape[0] for part in parts]

    def sums(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        columns = {name: torch.split(w, counts) for name, w in weights.items()}
        each = [part.sum_with({name: columns[name][i] for name in weights}) for i, part in enumerate(parts)]
        return {name: torch.stack([part[name] for part in each]).sum(0) for name in names}

    return PerSample(
        norms=torch.cat([part.norms for part in parts]),
        engine=parts[0].engine,
        reason="one record at a time" if max(counts) == 1 else parts[0].reason,
        squares={name: torch.cat([part.squares[name] for part in parts]) for name in names},
        sum_with=sums,
    )
