"""What is known of memory during one pass: which of it holds records, and where; and whose random draws are.

Numbers that are drawn each by itself, from one law, may be given to the records in any way, to each its own. But they
are given once: a draw that is each record's own in two layouts (a matrix of draws and its transpose, overlapping
windows of it) gives a record something that depends on its number in the chunk. And to no two of them: which records
share the draws of a chunk depends on all records, so no pairing of draws explains what others become by one more.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from dpilot.engine.record.place import (
    DRAWN,
    EVERYWHERE,
    SHARED,
    TOGETHER,
    TRAINED,
    WORSE,
    Layout,
    NotKnown,
    Place,
    Tag,
    locate,
    on_axis,
    stretch_of,
    tag_of,
)

_MOST: Final = 1 << 16  # layouts that are remembered before all are forgotten
_places: dict[Any, Place] = {}
_tags: dict[Any, Tag] = {}
_SHARED = Tag("shared", born=False)
_TRAINED = Tag("shared", why=TRAINED.why, born=False)
_NO_MEMORY = Tag("unknown", why="a tensor without memory of its own (sparse, or inside torch.func)")
_NO_MEMORY_ERRORS = (NotImplementedError, RuntimeError, ValueError)  # ValueError: a lazy parameter


class Known(NamedTuple):
    """A tag, and the memory it is about: the reference keeps its address from being given out again."""

    tag: Tag
    memory: StorageWeakRef

    @property
    def alive(self) -> bool:
        return not self.memory.expired()  # type: ignore[no-untyped-call]


class Constants:
    """Memory that existed before a pass: that which holds no records, and what earlier passes left behind.

    A tensor of records that turns up in a later pass is known for what it is, and a tensor that nothing is known of
    (made by numpy, another thread, C++) is not taken for a constant.
    """

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._left: dict[int, Known] = {}
        self.strangers = set[int]()  # memory that was met of which nothing is known

    def add_alive(self) -> None:
        """Declare everything that is alive at this moment, strangers that were met included: no record was read yet."""
        for address in self.strangers:
            self._left.pop(address, None)  # known as a stranger only, from the pass that met it
        self.strangers.clear()
        self.add(t for t in gc.get_objects() if issubclass(type(t), Tensor))

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Declare tensors that hold no records; parameters that require a gradient are trained."""
        for t in tensors:
            tag = _TRAINED if isinstance(t, torch.nn.Parameter) and t.requires_grad else _SHARED
            if t.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(t):
                try:
                    storage = t.untyped_storage()
                except _NO_MEMORY_ERRORS:
                    continue
                known = self._known.get(storage._cdata)
                if known is None or (tag is _TRAINED and known.tag is not tag):
                    self._known[storage._cdata] = Known(tag, StorageWeakRef(storage))  # type: ignore[no-untyped-call]

    def tag(self, address: int) -> Tag | None:
        """The tag of memory that holds no records; None where that is not known."""
        known = self._known.get(address)
        if known is not None and known.tag.why:
            return known.tag
        left = self._left.get(address)
        if left is None or not left.alive:
            return None if known is None else known.tag
        if left.tag.kind == "random":  # now the same numbers again, for whoever is at the same position
            return Tag("shared", why=DRAWN.why, born=False)
        same = left.tag.alike if left.tag.alike == EVERYWHERE else ()  # for another number of records, perhaps
        return left.tag._replace(born=False, alike=same) if left.tag.kind == "shared" else None

    def doubt(self, address: int) -> str:
        """Why a tensor is not known to hold no records."""
        if address in self._left:
            return "a tensor of an earlier chunk is used again"
        self.strangers.add(address)
        return "a tensor was made outside of torch's operations (numpy, another thread, C++)"

    def take_over(self, known: dict[int, Known]) -> None:
        """Remember what a pass leaves alive, and forget what died."""
        left = {address: each for address, each in self._left.items() if each.alive}
        left.update((address, each) for address, each in known.items() if each.alive)
        self._left = left
        for address in [a for a, each in self._known.items() if not each.alive]:
            del self._known[address]


class Answers:
    """Answers about shared values: found by looking, or, where nobody may wait for a device, those of a pass before.

    A captured graph is replayed with weights that are not known yet: what was computed from trained weights is not
    looked at for it.
    """

    def __init__(self) -> None:
        self._find_graph: list[tuple[Any, bool]] = []
        self._next: int | None = None

    def repeat(self) -> None:
        """From now on give the answers found so far, in their order."""
        self._next = 0

    def ask(self, question: Any, look: Callable[[], bool]) -> bool:
        if self._next is not None:
            known, self._next = self._find_graph[self._next : self._next + 1], self._next + 1
            return known == [(question, True)]
        answer = look()
        self._find_graph.append((question, answer))
        return answer


class Memory:
    """The tags of all memory that a pass over n > 1 records meets; ``answers`` are given for a captured pass."""

    def __init__(self, n: int, constants: Constants, answers: Answers | None = None) -> None:
        self.n, self._constants, self._replayed = n, constants, answers is not None
        self._answers, self._looked_up = answers or Answers(), dict[int, dict[Any, bool]]()
        self._known: dict[int, Known] = {}
        self._draws: dict[int, dict[int, int]] = {}  # memory that holds a draw, and bytes an entry
        self._next_draw = itertools.count(1)
        self.looked = 0

    def tag(self, t: Tensor) -> Tag:
        """The tag of a tensor's memory."""
        try:
            address = t.untyped_storage()._cdata
        except _NO_MEMORY_ERRORS:
            return _NO_MEMORY
        found = self._known.get(address)
        if found is not None:
            return found.tag
        tag = self._constants.tag(address)
        if tag is None:
            tag = Tag("unknown", why=self._constants.doubt(address)) if t.numel() else Tag("shared")
        self._known[address] = Known(tag, StorageWeakRef(t.untyped_storage()))  # type: ignore[no-untyped-call]
        return tag

    def place(self, t: Tensor) -> Place:
        """Where the records lie in a tensor."""
        tag = self.tag(t)
        if tag.kind != "axis":
            return SHARED if tag.kind == "shared" and not tag.why else Place(tag.kind, why=tag.why, draw=tag.draw)
        return self._located(t, tag.step, tag.base)

    def _located(self, t: Tensor, step: int, base: int) -> Place:
        key = (step, base, self.n, t.shape, t.stride(), t.storage_offset(), t.element_size())
        found = _places.get(key)
        if found is None:
            found = remember(_places, key, locate(layout_of(t), Tag("axis", step, base), self.n))
        return found

    def alike_axes(self, t: Tensor) -> list[tuple[int, int]]:
        """Axes (axis, block) along which a tensor without records is made the same way for each record."""
        tag, n = self.tag(t), self.n
        everywhere = tag.alike == EVERYWHERE
        found = [
            (axis, size // n)
            for axis, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True))
            if size and size % n == 0 and (everywhere or not stride)
        ]
        if tag.alike and not everywhere:
            places = (self._located(t, step, base) for step, base in tag.alike)
            found += [(p.axis, p.block) for p in places if p.kind == "axis"]
        return found

    def alike(self, t: Tensor, axis: int, block: int) -> bool:
        """Whether a tensor without records is made the same way for each record along an axis, ``block`` rows each."""
        if not t.stride(axis) or t.shape[axis] == 1:
            return True
        tag = self.tag(t)
        if tag.alike == EVERYWHERE:
            return True
        return any(self._located(t, step, base)[:3] == ("axis", axis, block) for step, base in tag.alike)

    def put(self, t: Tensor, place: Place, *, born: bool = True) -> None:
        """Note the place of a tensor as the tag of its memory."""
        try:
            storage = t.untyped_storage()
        except _NO_MEMORY_ERRORS:
            return
        if place.kind == "random":
            drawn = Tag("random", born=born, draw=place.draw)
            self._draws.setdefault(place.draw, {})[storage._cdata] = t.element_size()
            self._known[storage._cdata] = Known(drawn, StorageWeakRef(storage))  # type: ignore[no-untyped-call]
            return
        key = (place, born, self.n, t.shape, t.stride(), t.storage_offset(), t.element_size())
        tag = _tags.get(key)
        if tag is None:
            lost = Tag("unknown", why="the memory of a result does not follow its axes", born=born)
            tag = remember(_tags, key, tag_of(layout_of(t), place, self.n, born=born) or lost)
        self._known[storage._cdata] = Known(tag, StorageWeakRef(storage))  # type: ignore[no-untyped-call]

    def new_draw(self) -> Place:
        """The place of numbers that were drawn just now, each by itself and from one law."""
        return Place("random", draw=next(self._next_draw))

    def join_draws(self, tensors: Sequence[Tensor]) -> Place:
        """The place of what is made entry by entry of draws of one layout: it belongs to whom they belong."""
        first, *others = dict.fromkeys(self.tag(t).draw for t in tensors)
        for draw in others:
            self._retag(draw, lambda _, tag: tag._replace(draw=first))
        return Place("random", draw=first)

    def claim(self, t: Tensor, axis: int, block: int) -> tuple[int, int] | None:
        """Step and base, in entries, with which a draw is the records' own along an axis of a tensor; None: it cannot.

        It cannot where memory does not follow, as in a view in which an entry occurs twice.
        """
        stretch = stretch_of(layout_of(t), axis, block, self.n) if t.shape[axis] % (self.n * block) == 0 else None
        itemsize = self._bytes_drawn(t)
        if stretch is None or stretch[0] % itemsize:
            return None
        return stretch[0] // itemsize, stretch[1] // itemsize

    def claimed(self, t: Tensor, claim: tuple[int, int]) -> Place:
        """The place that a tensor would have if its draw were the records' own in this way."""
        step, base = (each * self._bytes_drawn(t) for each in claim)
        return self._located(t, step, base)

    def assign(self, draw: int, claim: tuple[int, int] | None) -> None:
        """Give a draw to the records, each its own entries, or (None) to all of them together, for the whole pass.

        Numbers drawn by themselves may belong to anybody, but to one only: in two layouts of one memory, or of what was
        made from it, what a record meets would depend on its number in the chunk.
        """

        def tag_for(itemsize: int, tag: Tag) -> Tag:
            if claim is None:
                return Tag("shared", why=DRAWN.why, born=tag.born)
            return Tag("axis", claim[0] * itemsize, claim[1] * itemsize, why=DRAWN.why, born=tag.born)

        self._retag(draw, tag_for)

    def share(self, t: Tensor) -> None:
        """Let a tensor's draw, if it is nobody's yet, belong to all records together."""
        tag = self.tag(t)
        if tag.kind == "random":
            self.assign(tag.draw, None)

    def _bytes_drawn(self, t: Tensor) -> int:
        return self._draws[self.tag(t).draw][t.untyped_storage()._cdata]

    def _retag(self, draw: int, change: Callable[[int, Tag], Tag]) -> None:
        for address, itemsize in self._draws.pop(draw, {}).items():
            known = self._known[address]
            if known.tag.kind == "random" and known.tag.draw == draw:  # else overwritten since
                tag = change(itemsize, known.tag)
                self._known[address] = Known(tag, known.memory)
                if tag.kind == "random":
                    self._draws.setdefault(tag.draw, {})[address] = itemsize

    def _settle_before_write(self, t: Tensor) -> None:
        """Part of a draw is about to be another: it is the records' own along an axis of that part, or nobody's own."""
        tag = self.tag(t)
        if tag.kind == "random":
            claims = (self.claim(t, a, max(1, size // self.n)) for a, size in enumerate(t.shape))
            self.assign(tag.draw, next((claim for claim in claims if claim), None))

    def write(self, t: Tensor, place: Place, source: Tensor | None, *, overwrites: bool) -> None:
        """An operation wrote ``place`` into ``t``: what is known of the whole memory after.

        ``source`` is what was copied, or ``t`` itself as it is now; None is one number everywhere.
        Memory without records takes the place over; what was there before, and is still there around it, must be the
        same for every record. Among records only records in their own places may be written, or what is the same for
        all of them.
        """
        whole = overwrites and fills_memory(t)
        if not whole and not (place.draw == self.tag(t).draw and fills_memory(t)):
            self._settle_before_write(t)
        old, here = self.tag(t), self.place(t)
        if place.draw in self._draws and here.kind == "axis":  # draws of the same layout become the records' own
            step, base = stretch_of(layout_of(t), here.axis, here.block, self.n) or (0, 0)
            self.assign(place.draw, (step // t.element_size(), base // t.element_size()) if step else None)
            place = place if step else DRAWN
        self._looked_up.pop(t.untyped_storage()._cdata, None)  # .data has a version of its own
        if old.kind in ("shared", "random"):
            if place.kind == "axis" and not whole:
                if old.why == DRAWN.why:
                    place = Place("unknown", why=TOGETHER)
                elif not self._was_alike(t, place):
                    place = Place("unknown", why="records are written into a tensor with a row for each position")
            if not place.holds_records and not fills_memory(t):
                if place.draw:
                    self.assign(place.draw, None)
                drawn = place.draw or DRAWN.why in (place.why, old.why)
                place = DRAWN if drawn else Place("shared", why=place.why or old.why)
            self.put(t, place, born=old.born)
            return
        if old.kind == "axis":
            if place.is_drawn_together:
                place = Place("unknown", why=TOGETHER)
            if not place.holds_records and here.kind == "axis" and not self._by_position(t, place, here, source):
                return
            if place.kind == "axis" and (whole or here[:3] == place[:3]):
                self.put(t, place, born=old.born) if whole else None
                return
            if WORSE[place.kind] < WORSE["unknown"]:
                place = Place("unknown", why="records are written to other places of one memory")
        if whole or WORSE[place.kind] > WORSE[old.kind]:
            self.put(t, place, born=old.born)

    def _by_position(self, t: Tensor, place: Place, here: Place, source: Tensor | None) -> bool:
        """Whether a tensor written among records has another row for each position in the chunk."""
        axis = -1 if source is None else here.axis - t.dim() + source.dim()
        if source is None or place.kind == "random" or axis < 0 or source.shape[axis] == 1 or not source.stride(axis):
            return False
        return bool(self._replayed and place.why) or not self.repeats(source, axis, here.block)

    def _was_alike(self, t: Tensor, place: Place) -> bool:
        """Whether memory around what was written holds the same for every record."""
        if self._replayed and self.tag(t).why:
            return False
        tag = tag_of(layout_of(t), place, self.n, born=True)
        storage = t.untyped_storage()
        if tag is None:
            return True
        if tag.base or storage.nbytes() % (tag.step * self.n):
            return False
        self.looked += 1
        question = ("was alike", t.shape, t.stride(), t.storage_offset(), t.dtype)
        return self._answers.ask(question, lambda: alike_around(t, tag.step, self.n))

    def repeats(self, t: Tensor, axis: int, block: int) -> bool:
        """Whether a tensor that depends on no record holds the same for every record along an axis."""
        if self.alike(t, axis, block):
            return True
        if self._replayed and self.tag(t).why:
            return False
        return self._answer(t, ("repeats", axis, block), lambda: repeats(t, axis, block, self.n))

    def is_uniform(self, t: Tensor) -> bool:
        """Whether all entries of a tensor that depends on no record are the same."""
        if t.numel() <= 1 or not any(stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1):
            return True
        tag = self.tag(t)
        if tag.alike == EVERYWHERE:
            return True
        return not (self._replayed and tag.why) and self._answer(t, "uniform", lambda: is_uniform(t))

    def counts_up(self, t: Tensor, step: int) -> bool:
        """Whether a tensor that depends on no record holds 0, step, 2 step, ..."""
        if self._replayed and self.tag(t).why:
            return False
        return self._answer(t, ("counts up", step), lambda: counts_up(t, step))

    def _answer(self, t: Tensor, question: Any, look: Callable[[], bool]) -> bool:
        """Look at shared values, which are public, once for each state of a tensor."""
        self.looked += 1
        version = 0 if t.is_inference() else t._version
        layout = (t.shape, t.stride(), t.storage_offset(), t.dtype, question)
        known = self._looked_up.setdefault(t.untyped_storage()._cdata, {})
        if (version, layout) not in known:
            known[version, layout] = self._answers.ask(layout, look)
        return known[version, layout]

    def close(self) -> None:
        """The pass is over: what it leaves alive is not taken for a constant by the next."""
        self._constants.take_over(self._known)


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


def remember(memo: dict[Any, Any], key: Any, value: Any) -> Any:
    """Keep an answer in a memo of bounded size."""
    if len(memo) >= _MOST:
        memo.clear()
    memo[key] = value
    return value


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


OTHERWISE = "random draws are used in another layout than before"


class Meeting:
    """Memory as a rule sees it in an operation in which draws meet records, or something that all records share.

    To the rule a draw is shared. Where the rule asks whether it is the same for every record, it lies along the records
    and is to be each record's own. ``settle`` gives the draws away, if they can be given like this.
    """

    def __init__(self, memory: Memory, drawn: Sequence[Tensor]) -> None:
        self.n, self._memory, self._drawn = memory.n, memory, drawn
        self._assumed, self._own = dict[int, Place](), list[tuple[Tensor, int, int]]()

    def assume(self, t: Tensor, axis: int) -> None:
        """Take a draw as the records' own along an axis."""
        block = t.shape[axis] // self.n
        self._assumed[id(t)] = on_axis(axis, block)
        self._own.append((t, axis, block))

    def place(self, t: Tensor) -> Place:
        place = self._assumed.get(id(t)) or self._memory.place(t)
        return SHARED if place.kind == "random" else place

    def repeats(self, t: Tensor, axis: int, block: int) -> bool:
        if self._memory.tag(t).kind != "random":  # a guess does not rest on values, which change in training
            return (self._memory.alike if self._assumed else self._memory.repeats)(t, axis, block)
        if t.shape[axis] > 1 and t.stride(axis):
            self._own.append((t, axis, block))
        return True

    def counts_up(self, t: Tensor, step: int) -> bool:
        return self._memory.tag(t).kind != "random" and self._memory.counts_up(t, step)

    def settle(self) -> None:
        """Give every draw to the records, each its own.

        Raises NotKnown, with nothing given, where a draw would be given in two ways, or to all records together.
        """
        memory, claims = self._memory, dict[int, tuple[int, int]]()
        for t, axis, block in self._own:
            claim = claims.get(memory.tag(t).draw) or memory.claim(t, axis, block)
            if claim is None or memory.claimed(t, claim)[:3] != on_axis(axis, block)[:3]:
                raise NotKnown(OTHERWISE)
            claims[memory.tag(t).draw] = claim
        own = {id(t) for t, _, _ in self._own}
        for t in self._drawn:
            if id(t) not in own:
                raise NotKnown(OTHERWISE if memory.tag(t).draw in claims else TOGETHER)
        for draw, claim in claims.items():
            memory.assign(draw, claim)


def drawn_among(tensors: Sequence[Tensor], places: Sequence[Place]) -> list[Tensor]:
    """The tensors that hold draws which are nobody's yet."""
    return [t for t, p in zip(tensors, places, strict=True) if p.kind == "random"]


def same_layout(drawn: Sequence[Tensor], outs: Sequence[Tensor]) -> bool:
    """Whether entry by entry means address by address: draws and results have one shape, strides and offset."""
    return len({(t.shape, t.stride(), t.storage_offset()) for t in (*drawn, *outs)}) == 1
