"""Results lent in memory that a replay will write again: taken back by moving what somebody still holds."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor


@final
class LentResults:
    """Tensors of a graph, handed out without a copy.

    Guarantee:
        After ``take_back()`` gave True, whatever was handed out keeps its values when the graph's memory is written:
        tensors that somebody holds were moved to memory of their own. It gives False if somebody holds a view, which
        cannot be moved: then the memory must not be written.

    Example:
        >>> own = {"w": torch.ones(2)}
        >>> lent = Lent(own)
        >>> held = lent.out()["w"]
        >>> lent.take_back()
        True
        >>> own["w"].zero_()
        tensor([0., 0.])
        >>> held
        tensor([1., 1.])
    """

    __slots__ = ("_alone", "_out", "_own")

    def __init__(self, own: Mapping[str, Tensor]) -> None:
        self._own, self._out = own, list[weakref.ref[Tensor]]()
        self._alone = self._holders()

    def out(self) -> dict[str, Tensor]:
        """The tensors as others may hold them."""
        made = {name: t.detach() for name, t in self._own.items()}
        self._out = [weakref.ref(t) for t in made.values()]
        return made

    def take_back(self) -> bool:
        """Move what is still held; whether nobody reads the memory any more."""
        self._move()
        self._out = []
        return all(now <= alone for now, alone in zip(self._holders(), self._alone, strict=True))

    def _move(self) -> None:
        """Give what is held memory of its own, in one stretch for each type."""
        held = [given for given in (reference() for reference in self._out) if given is not None]
        for kind in dict.fromkeys(t.dtype for t in held):
            mine = [t for t in held if t.dtype == kind]
            sizes = [t.numel() for t in mine]
            whole = torch.empty(sum(sizes), dtype=kind, device=mine[0].device)
            parts = [part.view(t.shape) for part, t in zip(torch.split(whole, sizes), mine, strict=True)]
            torch._foreach_copy_(parts, mine)
            for given, part in zip(mine, parts, strict=True):
                given.data = part

    def _holders(self) -> list[int]:
        """How many tensors, views included, share the memory of each."""
        return [torch._C._storage_Use_Count(t.untyped_storage()._cdata) for t in self._own.values()]
