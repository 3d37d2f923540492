"""Tables in partitions that are read wherever they lie: what a pass adds up is added once for each partition.

A scheduler may run a task again that was lost or was slow, and deliver both results. A partition that is added twice
moves a sum by twice its bound. So a task gives its partition's number beside its sum, and of each number one is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpilot._arrays import Floats
from dpilot.data.cells import plain
from dpilot.data.parquet import check_numeric, numeric_values
from dpilot.data.reading import numbers
from dpilot.errors import InvalidInput
from dpilot.linear.rows import MappedRows, UnitChunk, finite_rows

__all__ = ["PartitionRows", "Run", "Task"]

Task = Callable[[int], tuple[int, Floats]]
Run = Callable[[Task, Sequence[int]], Iterable[tuple[int, Floats]]]
"""Carries out a task for each partition's number, anywhere and in any order, and gives the results: such as ``map``."""


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Rows of [features | target] of partitions: paths of parquet files, frames, or functions that give one.

    Frames may be lazy (``collect``, as polars has it, or ``compute``, as Dask has it). ``run`` carries out the passes
    that add up; what a quantile asks is read here, a partition at a time.

    Guarantee:
        A sum has one term for each partition, whatever ``run`` gives twice, in the order of the partitions. A record
        with a value that is not finite never comes out.

    Edge cases:
        a partition without a result    raises, before anything of this pass is released
        a row in two partitions         is two records
    """

    partitions: tuple[Any, ...]
    names: tuple[str, ...]
    run: Run = map

    @property
    def columns(self) -> int:
        return len(self.names)

    def chunks(self) -> Iterator[Floats]:
        yield np.zeros((0, len(self.names)))
        for partition in self.partitions:
            yield _read(partition, self.names)

    def unit_chunks(self) -> Iterator[UnitChunk]:
        return map(UnitChunk, self.chunks())

    def map(self, function: Callable[[Floats], Floats], columns: int) -> MappedRows:
        return MappedRows(self, function, columns)

    def sum_chunks(self, function: Callable[[UnitChunk], Floats]) -> Floats:
        """The sum of ``function`` over the partitions, each once."""
        task = partial(_add_up, self.partitions, self.names, function)
        found: dict[int, Floats] = {}
        for number, result in self.run(task, range(len(self.partitions))):
            found.setdefault(int(number), np.asarray(result))
        missing = sorted(set(range(len(self.partitions))) - set(found))
        if missing:
            raise InvalidInput(
                f"run gave no result of partitions {missing[:5]}: expected one, or more, of each. Nothing was released."
            )
        return np.asarray(sum(found[number] for number in range(len(self.partitions))))

    def length(self) -> int:
        """The number of rows, null ones too."""
        return sum(len(_read(partition, self.names, null_too=True)) for partition in self.partitions)


def _add_up(
    partitions: Sequence[Any], names: Sequence[str], function: Callable[[UnitChunk], Floats], number: int
) -> tuple[int, Floats]:
    """A partition's number and its sum: what a worker is asked for."""
    return number, function(UnitChunk(_read(partitions[number], names)))


def _read(partition: Any, names: Sequence[str], *, null_too: bool = False) -> Floats:
    if isinstance(partition, str | Path):
        from pyarrow import parquet

        check_numeric(Path(partition), names)
        with parquet.ParquetFile(partition, pre_buffer=False) as file:
            values = np.concatenate(
                [
                    np.zeros((0, len(names))),
                    *(numeric_values(batch, names) for batch in file.iter_batches(columns=[*names])),
                ]
            )
    else:
        frame = partition() if callable(partition) else partition
        for finish in ("collect", "compute"):
            frame = getattr(frame, finish)() if hasattr(frame, finish) else frame
        values = np.column_stack([numbers(plain(frame[name]), ()) for name in names])
    return values if null_too else np.ascontiguousarray(values[finite_rows(values)])
