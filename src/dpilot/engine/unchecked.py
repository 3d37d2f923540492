"""Kernels of torch that take numbers for places in memory without a look at them, on a CPU.

A label of ``ctc_loss`` that is no class is read, and its gradient written, where another record's row lies. A
coordinate of ``grid_sample`` that is not a number ends the process in the backward pass. Both are one record's doing:
here they are an IndexError, as other kernels raise, and its record is the null record.

On a GPU a look would make the processor wait (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

Taken = Callable[[tuple[Any, ...]], Tensor]
"""Whether each number among the arguments of an operation is one that its kernel takes."""


def labels_of_ctc(args: tuple[Any, ...]) -> Tensor:
    """(logarithms of the classes, labels, ...)."""
    logarithms: Tensor = args[0]
    labels: Tensor = args[1]
    return (labels >= 0) & (labels < logarithms.shape[-1])


def coordinates(args: tuple[Any, ...]) -> Tensor:
    """(image, coordinates, ...)."""
    grid: Tensor = args[1]
    return grid.isfinite()


UNCHECKED: Final[dict[Any, Taken]] = {
    torch.ops.aten._ctc_loss.default: labels_of_ctc,
    torch.ops.aten._ctc_loss.Tensor: labels_of_ctc,
    torch.ops.aten.grid_sampler_2d.default: coordinates,
}


def check(operation: Any, args: tuple[Any, ...]) -> None:
    """Raise IndexError before a kernel takes a number that is no place.

    Example:
        >>> check(torch.ops.aten.grid_sampler_2d.default, (torch.ones(1, 1, 2, 2), torch.full((1, 1, 1, 2), torch.nan)))
        Traceback (most recent call last):
            ...
        IndexError: aten.grid_sampler_2d.default: a number that is no place
    """
    takes = UNCHECKED.get(operation)
    if takes is not None and args[0].device.type == "cpu" and not bool(takes(args).all()):
        raise IndexError(f"{operation}: a number that is no place")
