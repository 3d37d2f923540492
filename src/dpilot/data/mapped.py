"""Records in arrays on disk, read by their numbers: for true Poisson sampling of data that do not fit in memory.

>>> import tempfile, pathlib
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> np.save(folder / "x.npy", np.arange(6.0, dtype=np.float32).reshape(3, 2))
>>> np.save(folder / "y.npy", np.array([0, 1, 0]))
>>> data = MappedDataset(folder / "x.npy", folder / "y.npy")
>>> len(data), [part.tolist() for part in data[1]], [part.tolist() for part in data.read(np.array([2, 0]))]
(3, [[2.0, 3.0], 1], [[[4.0, 5.0], [0.0, 1.0]], [0, 0]])
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Indices
from dpilot.data.disk import DiskArray
from dpilot.errors import InvalidInput

__all__ = ["MappedDataset"]


@final
class MappedDataset:
    """A data set of (x, y, ...) records like torch's TensorDataset, whose arrays lie in files.

    ``arrays`` are paths of ``.npy`` files, or ``np.memmap`` arrays; arrays in memory are taken as they are. Each has
    one row a record.

    Guarantee:
        Only the rows that are asked for are read, by their place in the file, and none stays in memory: neither theirs
        nor that of rows beside them. So memory is flat in the number of records, and every record can toss a coin of
        its own at every step.

    Edge cases:
        rows of other types     are what the model gets: cast in the model what is stored as uint8
        files that change       are read as they are then: expected not to be written to
    """

    def __init__(self, *arrays: Any) -> None:
        self._arrays = tuple(map(_open, arrays))
        lengths = {len(array) for array in self._arrays}
        if len(lengths) != 1:
            raise InvalidInput(
                "arrays differ in their number of rows, or are none: expected one or more, of one length."
            )

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, index: int) -> tuple[NDArray[Any], ...]:
        """One record."""
        return tuple(np.asarray(array[index]) for array in self._arrays)

    def read(self, places: Indices) -> tuple[NDArray[Any], ...]:
        """The records at ``places``, in that order, as arrays of rows."""
        return tuple(np.asarray(array[places]) for array in self._arrays)

    @property
    def form(self) -> tuple[NDArray[Any], ...]:
        """One record of zeros: of public types and shapes."""
        return tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in self._arrays)


def _open(array: Any) -> Any:
    if isinstance(array, str | Path):
        try:
            array = np.load(array, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as problem:
            reason = getattr(problem, "strerror", None) or "no whole array of numbers"
            raise InvalidInput(
                f"the array is {os.fspath(array)!r}: expected a readable .npy file ({reason})."
            ) from None
    if isinstance(array, DiskArray):
        return array
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "fiub":
        raise InvalidInput(f"an array is a {type(array).__name__}: expected numbers, with a row for each record.")
    if not isinstance(array, np.memmap) or array.base is None or not array.flags.c_contiguous or not array.size:
        return np.asarray(array)
    start = array.ctypes.data - _origin(array).ctypes.data  # of a slice of a mapped array
    return DiskArray.open(str(array.filename), array.dtype, array.shape, _origin(array).offset + start)


def _origin(array: np.memmap[Any, Any]) -> Any:
    """The whole mapped array that this is a slice of."""
    while isinstance(array.base, np.memmap):
        array = array.base
    return array
