"""Watching a forward pass operation by operation: where the records lie in every tensor it makes.

The tracker is a torch dispatch mode: below every function, composite and script it sees the aten operations that really
run. Each leaves a tag on the memory of its results, by its rule (rules.py). Nothing is guessed from a size.

Numbers that are drawn each by itself, from one law, may be given to the records in any way, to each its own. But they
are given once: a draw that is each record's own in two layouts (a matrix of draws and its transpose, overlapping
windows of it) gives a record something that depends on its number in the chunk. And to no two of them: which records
share the draws of a chunk depends on all records, so no pairing of draws explains what others become by one more.
"""

from __future__ import annotations

import gc
import itertools
import linecache
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from dpilot.engine.base import NoRule
from dpilot.engine.batch import tensors
from dpilot.engine.generators import Generators
from dpilot.engine.trace.place import (
    DRAWN,
    EVERYWHERE,
    FIRST_AXIS,
    SHARED,
    TOGETHER,
    TRAINED,
    UNIFORM,
    WORSE,
    Call,
    Mixes,
    NotKnown,
    Place,
    PlaceMemory,
    Tag,
    alike_around,
    counts_up,
    fills_memory,
    is_uniform,
    layout_of,
    locate,
    on_axis,
    repeats,
    same_layout,
    stretch_of,
    tag_of,
)
from dpilot.engine.trace.rules import (
    DRAWS,
    EMPTY,
    INNER,
    OVERWRITES,
    RULES,
    SIZED_BY_VALUES,
    Rule,
    copied,
    no_values,
    pointwise,
)
from dpilot.engine.writes import (
    UNCHECKED,
    WriteGuard,
    Writes,
    check_numbers,
    runs_code,
    takes_apart,
    writes_of,
    written_arguments,
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


def remember(memo: dict[Any, Any], key: Any, value: Any) -> Any:
    """Keep an answer in a memo of bounded size."""
    if len(memo) >= _MOST:
        memo.clear()
    memo[key] = value
    return value


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


Severity = Literal["unknown", "mixed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that keeps records from being told apart, and the line of the model that does it."""

    kind: Severity
    what: str
    line: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.line})" if self.line else self.what


class Operation(NamedTuple):
    """What is known of an aten operation before it runs."""

    name: str
    rule: Rule | None
    is_view: bool
    writes: Writes | None = None
    results: frozenset[str] = frozenset()
    """Arguments that are written and not read, as in ``out=``."""
    draws: bool = False
    """Whether random numbers are consumed."""
    special: bool = False
    """Whether what is known of its inputs does not decide what is known of its results."""
    foreign: bool = False
    """Whether it is not torch's own, or runs functions of the model: it may read records that it is not given."""


VIEWS: Final = frozenset({
    "_unsafe_view", "_reshape_alias", "lift_fresh", "lift", "detach", "alias", "unsafe_split",
    "unsafe_split_with_sizes", "unsafe_chunk",
})  # fmt: skip
"""Operations whose results lie in the memory of their input although torch does not call them views."""
RESIZES: Final = frozenset({"resize_", "resize_as_", "_resize_output_"})
"""Operations that give a tensor another form, and its memory another size."""
FORM_ONLY: Final = frozenset({"rand_like", "randn_like"})
"""Draws that do not look at the values of a tensor."""
FILLS_MEMORY: Final = frozenset({"fill_", "zero_"})
FILLS: Final = (
    EMPTY
    | FILLS_MEMORY
    | frozenset(["zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"])
)
"""Operations that write one number all over."""
READ_DRAWS: Final = "Python reads random numbers that are drawn for all records together"
_MOST_WAYS: Final = 16  # in which inputs of an operation without records may be alike, before nobody asks
_operations: dict[Any, Operation] = {}
_rules: dict[Any, Any] = {}


@dataclass(slots=True)
class Execution:
    """One run of an operation: its arguments, what it reads and where the records lie there, what it writes and gives.

    ``kwargs`` are without those that are results only (``out=``); ``worst`` is the place that says least of what is
    read; ``reseeded``: it draws from a generator that the model set; ``out`` is what it writes, until it ran.
    """

    operation: Operation
    schema: Any
    args: Any
    kwargs: Any
    read: list[Tensor]
    places: list[Place]
    worst: Place
    written: list[Tensor]
    reseeded: bool
    out: Any
    outs: list[Tensor] = field(default_factory=list)

    @property
    def is_ruled(self) -> bool:
        """Whether records are read whose place the operation's rule takes."""
        return self.worst.kind == "axis" and self.operation.rule is not no_values

    @property
    def holds_records(self) -> bool:
        """Whether results depend on records."""
        return self.worst.holds_records and self.operation.rule is not no_values

    @property
    def is_in_place(self) -> bool:
        """Whether a tensor is read before it is overwritten."""
        return self.operation.name.endswith("_") and self.operation.name not in OVERWRITES

    def call(self, memory: PlaceMemory) -> Call:
        """The operation as its rule sees it."""
        return Call(memory, self.schema, self.args, self.kwargs, self.out)


class Assumed:
    """Memory as it would be if some tensors without records had records on an axis: nothing is looked at."""

    def __init__(self, memory: Memory, places: dict[int, Place]) -> None:
        self.n, self._memory, self._places = memory.n, memory, places

    def place(self, t: Tensor) -> Place:
        return self._places.get(id(t), SHARED)

    def repeats(self, t: Tensor, axis: int, block: int) -> bool:
        return self._memory.alike(t, axis, block)

    def counts_up(self, t: Tensor, step: int) -> bool:
        del t, step
        return False


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One pass over a chunk of n > 1 records.

    ``records`` are the tensors of the chunk whose first axis counts the records; ``constants`` is what is known of
    memory that exists already; ``guard`` saves such memory before it is written; ``answers`` are for a captured pass;
    ``state`` is the memory that code of the model may write where it is not seen.

    Guarantee:
        A tensor whose place is ``axis`` holds, in the rows of record i, a function of record i, of what is shared and
        of random draws alone. What this cannot be said of is in ``findings``, or unknown, or mixed.
    """

    supports_higher_order_operators = True

    def __init__(
        self, n: int, records: Iterable[Tensor], constants: Constants, guard: WriteGuard,
        answers: Answers | None = None, *, state: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call]
        self.n, self.findings = n, list[Finding]()
        self.memory = Memory(n, constants, answers)
        self.place = self.memory.place
        self.generators = Generators()
        self.recomputes = False  # a checkpoint runs parts of the forward pass again, which are watched as well
        self._guard, self._state, self._strict = guard, state, False
        held = list(records)
        for t in held:
            self.memory.put(t, FIRST_AXIS, born=False)
        if any(self.place(t)[:3] != FIRST_AXIS[:3] for t in held):
            self.note("unknown", "tensors of the chunk share memory in which their records lie differently")

    def holds_records(self, t: Tensor) -> bool:
        """Whether a tensor that the model holds depends on records."""
        with torch._C.DisableTorchFunction():
            return self.memory.tag(t).kind not in ("shared", "random")

    @contextmanager
    def again(self) -> Iterator[None]:
        """Watch what a checkpoint computes again in the backward pass: it may be another than was judged.

        Raises NoRule if records are not apart in it. Gradients are on there, and off in what the engine computes.
        """
        self._strict, before = True, len(self.findings)
        try:
            with self:
                yield
        finally:
            self._strict = False
        for finding in self.findings[before:]:
            raise NoRule(f"computed again in the backward pass: {finding}")

    def note(self, kind: Severity, what: str) -> None:
        """Note something that keeps records from being told apart."""
        self.findings.append(Finding(kind, what, line_of_model()))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under the tracker, so the guard against that would only cost time."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._strict and torch._C._is_torch_function_all_disabled():
            return func(*args, **(kwargs or {}))  # what the engine makes of a gradient
        if types and any(map(takes_apart, types)):
            return NotImplemented  # the subclass runs operations on its parts, which are seen
        if not self._strict and (hooks := torch._C._autograd._top_saved_tensors_default_hooks(True)):
            self._note_saving(hooks[0])
        operation = _operations.get(func)
        if operation is None:
            operation = _operations[func] = describe(func)
        with torch._C.DisableTorchFunction():  # what is asked of tensors here is no function of the model's
            try:
                if func in UNCHECKED:
                    check_numbers(func, args)
                if operation.is_view:
                    run = self._run_resize if operation.writes else self._run_view
                    return run(func, args, kwargs or {})
                if operation.writes or operation.special:
                    return self._run(operation, func, args, kwargs or {})
                return self._run_plain(operation, func, args, kwargs or {})
            except Exception:
                if any(self.holds_records(t) for t in tensors((args, kwargs or {}))):
                    self.note("unknown", f"{operation.name} raises, which the model may catch")
                raise

    def _note_saving(self, pack: Any) -> None:
        """Hooks save tensors: those of checkpoints compute again what is watched, others may exchange anything."""
        self.recomputes = True
        if not getattr(pack, "__module__", "").startswith("torch."):
            self.note("unknown", "hooks on saved tensors exchange what the backward pass of records reads")

    def _run_view(self, func: Any, args: Any, kwargs: Any) -> Any:
        if args and isinstance(args[0], Tensor) and func is not torch.ops.aten.lift_fresh.default:
            self.memory.tag(args[0])  # memory from elsewhere is met here first, before it may be written
        return func(*args, **kwargs)

    def _run_resize(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Another form of the same memory; what is added to it holds zeros: memory that was freed may hold records."""
        t: Tensor = args[0]
        self.memory.share(t)  # with zeros at the end it is no draw any more
        tag, before = self.memory.tag(t), t.untyped_storage().nbytes()
        if not tag.born:
            self._guard.before_write(t)
        out = func(*args, **kwargs)
        added = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())[before:].zero_()
        if len(added) and tag.kind == "shared":  # not alike any more
            self.memory.put(t, Place("shared", why=tag.why), born=tag.born)
        return out

    def _run_plain(self, operation: Operation, func: Any, args: Any, kwargs: Any) -> Any:
        """The quick way for most: nothing is written or drawn, and the same was seen before."""
        key: list[Any] = [func, self.n]
        kind = self._append_key(key, args)
        if kwargs:
            key.extend(kwargs)
            kind = max(kind, self._append_key(key, kwargs.values()))
        if kind > WORSE["axis"]:
            return self._run(operation, func, args, kwargs)
        known: Any = tuple(key)
        try:
            made = _rules.get(known)
        except TypeError:  # an argument that cannot be hashed
            made = known = None
        if made is None:
            return self._run(operation, func, args, kwargs, known)
        out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            self.memory.put(out, made[0] if isinstance(made, list) else made)
        elif out is not None and not isinstance(out, tuple | list):
            return self._run(operation, func, args, kwargs)
        else:
            for k, t in enumerate(tensors(out)):
                self.memory.put(t, made[k] if isinstance(made, list) else made)
        return out

    def _run(self, operation: Operation, func: Any, args: Any, kwargs: Any, key: Any = None) -> Any:
        """Run an operation, and note where the records lie in its results; ``key`` is what to remember that for."""
        run = self._prepare(operation, func, args, kwargs)
        made = self._by_rule(run) if run.is_ruled and run.is_in_place else None  # judged by what was there before
        run.out = self._execute(run, func, args, kwargs)
        run.outs = tensors(run.out)
        if operation.name in EMPTY:
            for t in run.outs:
                t.zero_()  # memory that was freed may hold other records
        if run.is_ruled and run.reseeded:
            made = Place("unknown", why=f"{operation.name} draws from a generator that the model set{at_line()}")
        elif run.is_ruled:
            made = self._by_rule(run, key) if made is None else made
        elif run.holds_records:
            made = run.worst
        else:
            made = self._without_records(run)
            if key is not None and run.outs:  # no draw is among them: no value was looked at
                remember(_rules, key, made)
        self._note_escapes(run)
        if self._strict and torch.is_grad_enabled():
            self._note_again(made)
        self._put(run, made)
        return run.out

    def _prepare(self, operation: Operation, func: Any, args: Any, kwargs: Any) -> Execution:
        """What an operation reads and writes; older memory is saved before it is written."""
        written = tensors(list(written_arguments(operation.writes, args, kwargs))) if operation.writes else []
        for t in written:
            if not self.memory.tag(t).born:
                self._guard.before_write(t)
        given = {k: v for k, v in kwargs.items() if k not in operation.results} if operation.results else kwargs
        read = tensors(args[1:] if operation.name in OVERWRITES else args)
        read += tensors(given) if given else ()
        if operation.foreign:
            self._guard.before_code(self._state)
        reseeded = operation.draws and self.generators.were_set(func, args, kwargs, again=self._strict)
        places = [self.place(t) for t in read]
        worst = max(places, key=lambda place: WORSE[place.kind], default=SHARED)
        schema = func._schema if operation.rule else None
        return Execution(operation, schema, args, given, read, places, worst, written, reseeded, out=written)

    def _execute(self, run: Execution, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            out = func(*args, **kwargs)
        except Exception:
            lost = Place("unknown", why=f"{run.operation.name} failed{at_line()}")
            for t in run.written:  # half of it, or memory that was never written: a result is resized first
                self.memory.put(t, lost, born=self.memory.tag(t).born)
            raise
        if run.operation.draws and not run.reseeded:
            self.generators.follow()
        return out

    def _put(self, run: Execution, made: Any) -> None:
        """Note the places of results, and of what was written."""
        for t in run.written:
            self._write(run, t, place_of(t, run.outs, made))
        for j, t in enumerate(run.outs):
            if not any(t is w for w in run.written):
                self.memory.put(t, made[j] if isinstance(made, list) else made)

    def _note_again(self, made: Any) -> None:
        """Note where records are not apart in what is computed again."""
        for place in made if isinstance(made, list) else [made]:
            if place.kind in ("unknown", "mixed") and place is not INNER:
                self.findings.append(Finding(place.kind, place.why))

    def _without_records(self, run: Execution) -> Any:
        """What depends on no record is shared; drawn numbers are nobody's until they meet others (Meeting)."""
        operation, read, places = run.operation, run.read, run.places
        if operation.rule is no_values or operation.name in FORM_ONLY:
            read, places = [], []
        drawn = drawn_among(read, places)
        together = run.reseeded or any(p.is_drawn_together for p in places)
        if not together and (drawn or operation.draws or operation.name in DRAWS):
            made = self._of_draws_alone(run, read, places, drawn)
            if made is not None:
                return made
        for t in drawn:
            self.memory.share(t)
        if together or drawn:
            return DRAWN
        place = DRAWN if operation.draws else TRAINED if any(p.why for p in places) else SHARED
        if operation.name in FILLS:
            return UNIFORM if place is SHARED else place
        made = self._made_alike(run, read, place)
        if operation.draws and isinstance(made, list):  # from one law for each record: each has its own
            return of_draws([on_axis(*p.alike[0]) if p.alike and p.alike != EVERYWHERE else place for p in made])
        return made

    def _of_draws_alone(self, run: Execution, read: list[Tensor], places: list[Place], drawn: list[Tensor]) -> Any:
        """The place of numbers that are drawn each by itself, or made of such; None if they are not each by itself."""
        operation, met = run.operation, [t for t, p in zip(read, places, strict=True) if p.kind != "random"]
        if not drawn:
            by_entry = operation.name in DRAWS or operation.rule is pointwise
            return self.memory.new_draw() if by_entry and all(map(self.memory.is_uniform, met)) else None
        by_entry = operation.rule in (pointwise, copied) and same_layout(drawn, run.outs)
        if by_entry and all(map(self.memory.is_uniform, met)):
            return self.memory.join_draws(drawn)
        return self._first_meeting(run, drawn)

    def _first_meeting(self, run: Execution, drawn: list[Tensor]) -> Any:
        """The places of results of draws and shared tensors if the draws are the records' own; None if they cannot be.

        They are along the first axis of one of them: (n, features) is drawn for records, (features, n) for a weight.
        """
        for t in drawn:
            axis = next((a for a, size in enumerate(t.shape) if size > 1), None)
            if run.operation.rule is None or axis is None or t.shape[axis] % self.n:
                continue
            meeting = Meeting(self.memory, drawn)
            meeting.assume(t, axis)
            try:
                made = run.operation.rule(run.call(meeting))
                meeting.settle()
            except Exception:  # it mixes, is not known, or is an overload whose arguments the rule does not know
                continue
            return of_draws(made)
        return None

    def _made_alike(self, run: Execution, read: list[Tensor], place: Place) -> Any:
        """The place of results without records, with the axes along which they are made alike for each record.

        If inputs were records on the axes on which they are alike, the rule says on which axes results would be: there
        they are alike too.
        """
        rule, axes = run.operation.rule, [self.memory.alike_axes(t) for t in read]
        if run.operation.name == "repeat":
            times, x = run.args[1], run.args[0]
            lifted = (1,) * (len(times) - x.dim()) + tuple(x.shape)
            axes_made = [(a, size) for a, (size, k) in enumerate(zip(lifted, times, strict=True)) if k % self.n == 0]
            return place._replace(alike=tuple(axes_made))
        if rule in (None, no_values) or not any(axes) or math.prod(len(each) + 1 for each in axes) > _MOST_WAYS:
            return place
        if rule is pointwise and all(t.numel() == 1 or self.memory.tag(t).alike == EVERYWHERE for t in read):
            return place._replace(alike=EVERYWHERE)
        found: list[list[tuple[int, int]]] = [[] for _ in run.outs]
        for chosen in itertools.product(*([None, *each] for each in axes)):
            assumed = {id(t): on_axis(*axis) for t, axis in zip(read, chosen, strict=True) if axis is not None}
            if not assumed:
                continue
            try:
                made = rule(run.call(Assumed(self.memory, assumed)))
            except Exception:  # it mixes, is not known, or is an overload whose arguments the rule does not know
                continue
            for j, mine in enumerate(found):
                p = made[j] if isinstance(made, list) else made
                if p.kind == "axis":
                    mine.append((p.axis, p.block))
        return [place._replace(alike=tuple(dict.fromkeys(mine))) for mine in found]

    def _by_rule(self, run: Execution, key: Any = None) -> Any:
        """What the operation's rule says, remembered for the same operation on the same places and layouts.

        Answers that rest on looking at shared values are not remembered: values change.
        """
        name, rule, looked = run.operation.name, run.operation.rule, self.memory.looked
        if rule is None:
            return Place("unknown", why=f"{name} has no rule{at_line()}")
        if any(place.is_drawn_together for place in run.places):
            return Place("unknown", why=f"{name}: {TOGETHER}{at_line()}")
        draws_alone = [bool(tag.why) for tag in map(self.memory.tag, run.read) if tag.kind == "axis"]
        drawn = drawn_among(run.read, run.places)
        met = Meeting(self.memory, drawn) if drawn else None
        try:
            made = rule(run.call(met or self.memory))
            if met is not None:
                met.settle()
            made = of_draws(made) if all(draws_alone) else made
        except Mixes as problem:
            kind: Severity = "unknown" if any(draws_alone) else "mixed"  # the draws might be given otherwise
            return Place(kind, why=f"{name} {problem}{at_line()}")
        except NotKnown as problem:
            return Place("unknown", why=f"{name}: {problem}{at_line()}")
        except Exception as problem:  # an overload whose arguments the rule does not know
            return Place("unknown", why=f"{name}: its rule fails, {type(problem).__name__}{at_line()}")
        if key is not None and looked == self.memory.looked and name not in SIZED_BY_VALUES:
            remember(_rules, key, made)
        return made

    def _append_key(self, key: list[Any], values: Iterable[Any]) -> int:
        """Add what decides a rule to the key: plain arguments, and tag and layout of every tensor; the worst tag."""
        worst = 0
        for v in values:
            if isinstance(v, Tensor):
                tag = self.memory.tag(v)
                key += (tag.kind, tag.step, tag.base, tag.why, tag.alike)
                key += (v.shape, v.stride(), v.storage_offset(), v.dtype)
                # whose a draw is may be decided by this call, which is more than a rule that could be remembered
                worst = max(worst, WORSE["unknown" if tag.kind == "random" else tag.kind])
            elif isinstance(v, list | tuple):
                key.append(len(v))
                worst = max(worst, self._append_key(key, v))
            else:
                key += (type(v), v)
        return worst

    def _note_escapes(self, run: Execution) -> None:
        """Values of records, or draws for all of them, that decide a size, or that Python reads."""
        name = run.operation.name
        if run.operation.foreign:
            self.note("unknown", f"{name} runs code that is not watched")
            return
        if run.operation.rule is no_values or not any(p.holds_records or p.holds_draws for p in run.places):
            return
        masked = name == "index" and any(
            (p.holds_records or p.holds_draws) and t.dtype in (torch.bool, torch.uint8)
            for t, p in zip(run.read[1:], run.places[1:], strict=True)
        )
        compressed = any(t.layout is not torch.strided for t in run.outs)  # with as many entries as are not zero
        if masked or compressed or name in SIZED_BY_VALUES:
            what = f"{name}: the number of rows depends on the records"
        elif not run.outs and run.out is not None:
            what = "Python reads a number that depends on the records"
        else:
            return
        self.note("unknown", what if any(p.holds_records for p in run.places) else READ_DRAWS)

    def _write(self, run: Execution, t: Tensor, place: Place) -> None:
        """Note that an operation wrote into a tensor."""
        name, tag = run.operation.name, self.memory.tag(t)
        in_place = tag.kind == "axis" and self.place(t)[:3] == place[:3]  # records of the chunk, changed where they lie
        if not tag.born and place.holds_records and not in_place:
            kind: Severity = "unknown" if place.kind == "axis" and place.why else "mixed"
            self.note(kind, f"{name} writes records into memory that outlives the pass")
        source = run.read[0] if name == "copy_" else None if name in FILLS_MEMORY else t
        self.memory.write(t, place, source, overwrites=name in OVERWRITES)


def of_draws(made: Any) -> Any:
    """Places on axes that hold each record's own draws, and nothing else of the records."""
    if isinstance(made, list):
        return [of_draws(place) for place in made]
    return made._replace(why=DRAWN.why) if made.kind == "axis" else made


def place_of(t: Tensor, outs: list[Tensor], made: Any) -> Place:
    """The place of a written tensor among the places of the results."""
    if not isinstance(made, list):
        return made  # type: ignore[no-any-return]
    return next((place for o, place in zip(outs, made, strict=True) if o is t), INNER)


def describe(func: Any) -> Operation:
    """What torch's own schema and tags say of an operation."""
    if not isinstance(func, torch._ops.OpOverload):
        return Operation(str(func), None, False, special=True, foreign=True)
    schema = func._schema
    library, name = schema.name.split("::")
    found = writes_of(func)
    writes = found if found.names else None
    if library != "aten":
        return Operation(schema.name, None, False, writes, special=True, foreign=runs_code(func))
    if func.is_view or name in VIEWS or (torch.Tag.inplace_view in func.tags and name != "set_"):
        return Operation(name, None, True, writes if name in RESIZES else None)
    rule = RULES.get(name) or RULES.get(name.rstrip("_")) or (pointwise if torch.Tag.pointwise in func.tags else None)
    results = frozenset(a.name for a in schema.arguments if a.is_out)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    special = draws or name in DRAWS | EMPTY | SIZED_BY_VALUES or name == "index"
    return Operation(name, rule, False, writes, results, draws, special)


def at_line() -> str:
    """The line of the model that runs, in brackets."""
    line = line_of_model()
    return f" ({line})" if line else ""


_OURS: Final = str(Path(__file__).resolve().parents[2])
_TORCH: Final = str(Path(torch.__file__).resolve().parent)


def line_of_model() -> str:
    """The innermost line outside of torch and dpilot, with its file, number and text; empty if there is none.

    Where only torch's own modules run, the innermost one is named.
    """
    frame: FrameType | None = sys._getframe(1)
    inside = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TORCH) and not inside and frame.f_code.co_name == "forward" and "self" in frame.f_locals:
            inside = f"{type(frame.f_locals['self']).__name__}, "
        if not file.startswith((_TORCH, _OURS)):
            text = linecache.getline(file, frame.f_lineno).strip()
            return f"{inside}{Path(file).name}:{frame.f_lineno}: {text}" if text else inside.removesuffix(", ")
        if file.startswith(_OURS) and frame.f_code.co_name == "losses":  # the call of model and loss: ours from here
            break
        frame = frame.f_back
    return inside.removesuffix(", ")
