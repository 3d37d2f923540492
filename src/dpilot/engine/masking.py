"""Trying -100 on a GPU, where as an index it would end the process: whatever might index is looked at first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

_NAMES = """
    eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ equal isclose where masked_fill clamp clamp_min
    clamp_max maximum minimum add sub mul __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ sum mean any all min max
    abs neg view reshape flatten unflatten contiguous clone detach to float long int type bool double half cpu cuda
    transpose permute movedim squeeze unsqueeze expand repeat chunk split unbind narrow roll flip cat stack pad size
    dim numel stride is_floating_point is_contiguous data_ptr __get__ __len__ item tolist zeros_like ones_like
    empty_like full_like new_zeros new_ones type_as
"""
HARMLESS = frozenset(_NAMES.split())
"""Operations that never take a number for a place."""
LOSSES = {"cross_entropy": 4, "nll_loss": 4}
"""Losses that ignore a label, and where they are told which."""


class Unsafe(RuntimeError):
    """A negative number is about to be used as an index."""


class LookingFirst(TorchFunctionMode):
    """Raise Unsafe before a negative whole number reaches an operation that may take it for a place.

    Example:
        >>> import torch
        >>> with LookingFirst():
        ...     print(int((torch.tensor([-100, 1]) != -100).sum()))
        ...     torch.eye(3)[torch.tensor([-100, 1])]
        Traceback (most recent call last):
            ...
        dpilot.engine.masking.Unsafe: __getitem__ with a negative number
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in LOSSES:
            told = kwargs.get("ignore_index", args[LOSSES[name]] if len(args) > LOSSES[name] else -100)
            self._look(name, (*args, *kwargs.values()), ignored=told)
        elif name not in HARMLESS:
            looked_at = args[1:] if name == "__getitem__" else (*args, *kwargs.values())
            self._look(name, looked_at)
        return func(*args, **kwargs)

    def _look(self, name: str, values: Iterable[Any], ignored: int = 0) -> None:
        for t in whole_numbers(values):
            if bool(((t < 0) & (t != ignored)).any()):
                raise Unsafe(f"{name} with a negative number")


def whole_numbers(values: Iterable[Any]) -> Iterable[Tensor]:
    """The tensors of whole numbers among arguments."""
    for value in values:
        if isinstance(value, Tensor):
            if not (value.is_floating_point() or value.is_complex()):
                yield value
        elif isinstance(value, Mapping):
            yield from whole_numbers(value.values())
        elif isinstance(value, (tuple, list)):
            yield from whole_numbers(value)
