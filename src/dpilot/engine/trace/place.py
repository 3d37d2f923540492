"""Where the records lie in a tensor, and in memory.

A *tag* belongs to memory: "the byte at address a holds numbers of record (a - base) // step % n". A *place* belongs to
a tensor and follows from its strides and the tag of its memory. So views (slices, transposes, reshapes, expansions,
``.data``, ``detach``) need no rule of their own, and a view that cuts or interleaves records is seen as such.
A *call* is an aten operation as its rule sees it (rules.py): arguments by name, places of its tensors, its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from dpilot.engine.batch import tensors

Kind = Literal["shared", "random", "axis", "unknown", "mixed"]


class Place(NamedTuple):
    """Where the records lie in one tensor.

    ``shared``    the same whatever the records hold: weights, buffers, positions. ``alike`` are axes (axis, block)
                  along which it is made the same way for each record: repeated, expanded, filled, looked up. Draws
                  that are no record's own are shared too, and may not meet records
    ``random``    drawn entry by entry (dropout masks, noise), and nobody's yet: ``draw`` says in which draw
    ``axis``      entry j along ``axis`` belongs to record (j // block) % n
    ``unknown``   nothing is known: rows picked, permuted or repeated by data, or an operation without a rule
    ``mixed``     an entry depends on several records
    """

    kind: Kind = "shared"
    axis: int = 0
    block: int = 1
    why: str = ""
    alike: tuple[tuple[int, int], ...] = ()
    draw: int = 0

    @property
    def holds_records(self) -> bool:
        """Whether the tensor depends on records."""
        return self.kind not in ("shared", "random")

    @property
    def is_drawn_together(self) -> bool:
        """Whether the tensor depends on draws that are no record's own: which records share them is no record's."""
        return self.kind == "shared" and self.why == DRAWN.why

    @property
    def holds_draws(self) -> bool:
        """Whether the tensor depends on draws, and on no record."""
        return self.kind == "random" or self.is_drawn_together


class Tag(NamedTuple):
    """What is known of a stretch of memory. ``born`` says that it was allocated during this pass.

    ``alike`` are (step, base) in which memory without records is made the same way for each record.
    """

    kind: Kind
    step: int = 0
    base: int = 0
    why: str = ""
    born: bool = True
    alike: tuple[tuple[int, int], ...] = ()
    draw: int = 0


SHARED = Place()
EVERYWHERE = ((0, 0),)
"""Alike along every axis: one number all over."""
UNIFORM = Place(alike=EVERYWHERE)
TRAINED = Place("shared", why="computed from trained weights")
DRAWN = Place("shared", why="computed from random draws")
TOGETHER = "random numbers are drawn for all records together"
CUT = Place("unknown", why="a view cuts, shifts or interleaves the records")
WORSE = {"shared": 0, "random": 0, "axis": 1, "unknown": 2, "mixed": 3}
"""Which of two places says less."""

Layout = tuple[tuple[int, ...], tuple[int, ...], int, int]
"""Shape, strides, offset (in entries) and bytes an entry."""


def on_axis(axis: int, block: int = 1) -> Place:
    """The records lie on an axis, ``block`` rows each."""
    return Place("axis", axis, block)


FIRST_AXIS = on_axis(0)


def locate(layout: Layout, tag: Tag, n: int) -> Place:
    """The place of a tensor of this layout in memory with this tag, for n > 1 records.

    With S = step, the entry at index i has the byte address row S + rem + sum_a i_a s_a. An axis either leaves the
    record as it is (stride a multiple of n S), stays within one record's S bytes, or is the one axis that counts
    records: stride S, or a divisor of S, in blocks of S / stride rows. Anything else cuts or interleaves, or, as a
    diagonal does, takes from each record what its number in the chunk says.

    Example:
        >>> rows_of_12_bytes = Tag("axis", step=12)
        >>> locate(((4, 3), (3, 1), 0, 4), rows_of_12_bytes, 4)
        Place(kind='axis', axis=0, block=1, why='', alike=(), draw=0)
        >>> locate(((12,), (1,), 0, 4), rows_of_12_bytes, 4).block
        3
        >>> locate(((3, 4), (4, 1), 0, 4), rows_of_12_bytes, 4).kind
        'unknown'
    """
    if tag.kind != "axis":
        return Place(tag.kind, why=tag.why)
    shape, strides, offset, itemsize = layout
    step = tag.step
    row, rem = divmod(offset * itemsize - tag.base, step)
    axis, block, width, inner = -1, 1, step, 0
    for a, (size, entries) in enumerate(zip(shape, strides, strict=True)):
        stride = entries * itemsize
        if size == 0:
            return SHARED
        if size == 1 or stride % (step * n) == 0:
            continue
        if (size - 1) * stride < step and stride < step:
            inner += (size - 1) * stride
        elif axis >= 0:
            return CUT
        elif stride == step and size % n == 0:
            axis = a
        elif stride < step and step % stride == 0 and size % (n * step // stride) == 0:
            axis, block, width = a, step // stride, stride
        else:
            return CUT
    # rem + inner < width: no entry leaves the bytes of its row; row % n == 0: the first entry is the first record's
    # (tests/engine/test_places.py replaces one record and compares what moves)
    if rem + inner >= width or (axis >= 0 and row % n):
        return CUT
    if axis < 0:
        return Place("unknown", why="the rows of one record alone are selected from the chunk")
    return on_axis(axis, block)


def tag_of(layout: Layout, place: Place, n: int, *, born: bool) -> Tag | None:
    """The tag of memory in which a tensor of this layout has this place; None where its memory cannot follow it."""
    if place.kind != "axis":
        stretches = (stretch_of(layout, axis, block, n) for axis, block in place.alike if place.alike != EVERYWHERE)
        alike = EVERYWHERE if place.alike == EVERYWHERE else tuple(each for each in stretches if each is not None)
        return Tag(place.kind, why=place.why, born=born, alike=alike)
    stretch = stretch_of(layout, place.axis, place.block, n)
    return None if stretch is None else Tag("axis", *stretch, why=place.why, born=born)


def stretch_of(layout: Layout, axis: int, block: int, n: int) -> tuple[int, int] | None:
    """Step and base of memory in which the records of a tensor lie on an axis; None where memory does not follow."""
    shape, strides, offset, itemsize = layout
    step = strides[axis] * itemsize * block if axis < len(shape) else 0
    if step <= 0:
        return None
    base = offset * itemsize // step * step
    follows = 0 in shape or locate(layout, Tag("axis", step, base), n)[:3] == on_axis(axis, block)[:3]
    return (step, base) if follows else None


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
        self.outs = tensors(out)

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
        return tensors(self._arguments)

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


def dims_of(dim: Any, ndim: int) -> list[int]:
    """Axes as non-negative numbers; None and an empty list mean all."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(ndim))
    return [d % max(ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)]


def layout_of(t: Tensor) -> Layout:
    """Shape, strides, offset and bytes an entry."""
    return tuple(t.shape), t.stride(), int(t.storage_offset()), t.element_size()


def fills_memory(t: Tensor) -> bool:
    """Whether a tensor has an entry for every byte of its memory, none of them twice."""
    entries = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size != 1:
            if stride != entries:
                return False
            entries *= size
    return entries * t.element_size() == t.untyped_storage().nbytes()


def repeats(t: Tensor, axis: int, block: int, n: int) -> bool:
    """Whether a tensor is the same for each of n records, ``block`` rows each, along an axis."""
    if t.shape[axis] % (n * block):
        return False
    rows = t.detach().unflatten(axis, (-1, n, block))  # type: ignore[no-untyped-call]
    return bool((rows == rows.narrow(axis + 1, 0, 1)).all())


def is_uniform(t: Tensor) -> bool:
    """Whether all entries of a tensor are the same."""
    flat = t.detach().reshape(-1)
    return bool((flat == flat[0]).all())


def counts_up(t: Tensor, step: int) -> bool:
    """Whether a tensor holds 0, step, 2 step, ..."""
    flat = t.detach().reshape(-1)
    return bool((flat == torch.arange(flat.numel(), device=t.device) * step).all())


def alike_around(t: Tensor, step: int, n: int) -> bool:
    """Whether memory, but for the entries of a tensor in it, is the same in each of n stretches of ``step`` bytes."""
    flat = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
    written, itemsize = torch.zeros_like(flat, dtype=torch.bool), t.element_size()
    strides = (*(s * itemsize for s in t.stride()), 1)
    written.as_strided((*t.shape, itemsize), strides, t.storage_offset() * itemsize).fill_(True)
    rows, hidden = (each.view(-1, n, step) for each in (flat, written))
    return bool(((rows == rows[:, :1]) | hidden).all())


def same_layout(drawn: Sequence[Tensor], outs: Sequence[Tensor]) -> bool:
    """Whether entry by entry means address by address: draws and results have one shape, strides and offset."""
    return len({(t.shape, t.stride(), t.storage_offset()) for t in (*drawn, *outs)}) == 1
