"""One aten operation as its rule sees it: arguments by name, the places of its tensors, its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch import Tensor

from dpilot.engine.record.place import SHARED, Place, on_axis


class Mixes(Exception):
    """The operation combines records."""


class NotKnown(Exception):
    """Where the records lie in the result is not known."""


class PlaceMemory(Protocol):
    """What a rule may ask about tensors."""

    n: int

    def place(self, t: Tensor) -> Place:
        """Where the records lie in a tensor."""
        ...

    def repeats(self, t: Tensor, axis: int, block: int) -> bool:
        """Whether a tensor without records holds the same for every record along an axis, ``block`` rows each."""
        ...

    def counts_up(self, t: Tensor, block: int) -> bool:
        """Whether a tensor without records holds the rows' own numbers, 0 to n block - 1, along its one long axis."""
        ...


class Call:
    """An operation that ran: ``call["self"]`` is an argument, ``call.place("self")`` where its records lie."""

    __slots__ = ("_arguments", "memory", "name", "outs")

    def __init__(
        self, memory: PlaceMemory, schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        self.memory, self.name = memory, schema.name.removeprefix("aten::")
        declared = schema.arguments
        self._arguments = {a.name: a.default_value for a in declared if a.has_default_value()}
        self._arguments.update(zip((a.name for a in declared), args, strict=False))  # defaults may be left out
        self._arguments.update(kwargs)
        self.outs = list(tensors_in(out))

    def __getitem__(self, name: str) -> Any:
        return self._arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or the default where the operation has none of that name."""
        return self._arguments.get(name, default)

    @property
    def n(self) -> int:
        return self.memory.n

    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments, in the schema's order."""
        return list(tensors_in(list(self._arguments.values())))

    def named_tensors(self) -> dict[str, Tensor]:
        """The arguments that are tensors."""
        return {name: v for name, v in self._arguments.items() if isinstance(v, Tensor)}

    def first(self) -> Tensor:
        return next(v for v in self._arguments.values() if isinstance(v, Tensor))

    def first_of(self, *names: str) -> Tensor:
        """The first of these arguments that is a tensor."""
        return next(v for v in map(self._arguments.get, names) if isinstance(v, Tensor))

    def place(self, name: str) -> Place:
        value = self._arguments.get(name)
        return self.memory.place(value) if isinstance(value, Tensor) else SHARED

    def require_shared(self, *names: str) -> None:
        """Refuse to say anything if one of these arguments depends on records."""
        for name in names:
            if self.place(name).kind == "axis":
                raise NotKnown(f"{name} differs from record to record")

    def require_repeats(self, t: Tensor, axis: int, block: int) -> None:
        """A tensor without records that lies along the records must be the same for all of them.

        Otherwise what a record meets depends on its number in the chunk, and so on who comes before it.
        """
        if 0 <= axis < t.dim() and not self.memory.repeats(t, axis, block):
            raise NotKnown("a tensor has another row for each position in the chunk")

    def line_up(self, items: Iterable[tuple[Tensor, Place]], ndim: int) -> Place:
        """Broadcasting: tensors aligned from their last axes, to a result of ``ndim`` axes."""
        aligned = list(items)
        found: tuple[int, int] | None = None
        for t, p in aligned:
            if p.kind == "axis":
                mine = (p.axis + ndim - t.dim(), p.block)
                if found is not None and found != mine:
                    raise Mixes("combines tensors whose records lie on different axes")
                found = mine
        if found is None:
            return SHARED
        for t, p in aligned:
            if p.kind == "shared":
                self.require_repeats(t, found[0] - ndim + t.dim(), found[1])
        return on_axis(*found)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Tensors of nested tuples, lists and dicts, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from tensors_in(value)
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from tensors_in(value)


def dims_of(dim: Any, ndim: int) -> list[int]:
    """Axes as non-negative numbers; None and an empty list mean all."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(ndim))
    return [d % max(ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)]
