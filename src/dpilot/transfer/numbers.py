"""From what holds numbers to a tensor of them, so that no record raises or changes how another is read.

Tensors and arrays of numbers have a type, which is a fact of the table. Lists and arrays of objects have none: torch
would look for one among all records. They are read cell by cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpilot._arrays import Floats
from dpilot.data.cells import kind, objects, plain, unmask
from dpilot.data.frames import columns_of, is_frame
from dpilot.data.reading import numbers
from dpilot.data.values import attempt
from dpilot.errors import InvalidInput

__all__ = ["as_numbers"]


@np.errstate(all="ignore")  # whatever a caller has set: no number of a record may raise or warn
def as_numbers(values: Any, *, rows: bool) -> Tensor:
    """A tensor of the numbers in ``values``, a row for each record (``rows``) or one number for each.

    Edge cases:
        What is no number is not finite; so is every number of a row that is not as long as the first one.
        Whole numbers of 64 bits become float64, as an array of them does for the sake of one fraction.

    Example:
        >>> as_numbers([[1, 2.5], [3, None], [4]], rows=True).tolist()
        [[1.0, 2.5], [3.0, nan], [nan, nan]]
    """
    if isinstance(values, Tensor) and values.is_complex():  # of one record's making: a number where it is real
        values = torch.where(values.imag == 0, values.real, torch.nan)
    if isinstance(values, Tensor):
        return values.double() if rows and values.dtype == torch.int64 and values.device.type != "mps" else values
    if is_frame(values):
        return torch.from_numpy(np.column_stack([numbers(plain(column), ()) for _, column in columns_of(values)]))
    if hasattr(values, "to_numpy"):
        if kind(values) == "nested":
            raise InvalidInput("a column holds lists or records: expected one number for each record.")
        return torch.from_numpy(numbers(plain(values), ()))
    array = unmask(values)
    if isinstance(array, np.ndarray) and (array.dtype != object or array.ndim > 1):
        return torch.as_tensor(_plain(array))
    if not isinstance(array, Sequence | np.ndarray) or isinstance(array, str | bytes):
        raise InvalidInput(f"features are given as a {type(values).__name__}: expected tensors, arrays or lists.")
    listed = list(array)
    return torch.from_numpy(_table(listed) if rows and listed else _read(listed))


def _plain(array: Any) -> Any:
    """An array of one type, in a type that torch computes with and no single value decides."""
    letter, size = array.dtype.kind, array.dtype.itemsize
    if (letter in "iu" and size > 1) or (letter == "f" and size > 8):
        return array.astype(np.float64)
    if letter in "fiub":
        return array if array.flags.writeable else array.copy()
    return _read(plain(array.ravel()).tolist()).reshape(array.shape)


def _table(listed: list[Any]) -> Floats:
    first = attempt(_row, listed[0], otherwise=None)
    if first is None:
        raise InvalidInput("the first entry of the list of features is no row: expected a list of rows, or an array.")
    table = np.full((len(listed), first.size), np.nan)
    for place, each in enumerate(listed):
        row = attempt(_row, each, otherwise=None)
        if row is not None and row.size == first.size:
            table[place] = row
    return table


def _row(row: Any) -> Floats | None:
    if isinstance(row, Tensor):
        row = row.detach().cpu().numpy()
    row = unmask(row)
    if isinstance(row, np.ndarray) and row.ndim == 1:
        return np.asarray(_plain(row), dtype=np.float64)
    return _read(list(row)) if isinstance(row, list | tuple) else None


def _read(cells: list[Any]) -> Floats:
    return numbers(objects(attempt(_single, cell, otherwise=None) for cell in cells), ())


def _single(cell: Any) -> Any:
    if cell is np.ma.masked:
        return None
    return cell.item() if isinstance(cell, Tensor | np.ndarray) else cell
