"""Watching a forward pass operation by operation: where the records lie in every tensor it makes.

The tracker is a torch dispatch mode: below every function, composite and script it sees the aten operations that really
run. Each leaves a tag on the memory of its results (memory.py), by its rule (rules.py). Nothing is guessed from a size.
"""

from __future__ import annotations

import itertools
import linecache
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpilot.engine import unchecked
from dpilot.engine.base import NoRule, tensors_in
from dpilot.engine.generators import Generators
from dpilot.engine.record.memory import Answers, Constants, Meeting, Memory, drawn_among, remember, same_layout
from dpilot.engine.record.place import (
    DRAWN,
    EVERYWHERE,
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
    on_axis,
)
from dpilot.engine.record.rules import (
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
from dpilot.engine.writes import WriteGuard, runs_code, takes_apart

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
    writes: tuple[tuple[int, str], ...]
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
UNDECLARED_WRITES: Final = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}
"""Arguments that an operation writes although its schema does not say so."""
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
            self.memory.put(t, on_axis(0), born=False)
        if any(self.place(t)[:3] != on_axis(0)[:3] for t in held):
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
                unchecked.check(func, args)
                if operation.is_view:
                    run = self._run_resize if operation.writes else self._run_view
                    return run(func, args, kwargs or {})
                if operation.writes or operation.special:
                    return self._run(operation, func, args, kwargs or {})
                return self._run_plain(operation, func, args, kwargs or {})
            except Exception:
                if any(self.holds_records(t) for t in tensors_in((args, kwargs or {}))):
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
            for k, t in enumerate(tensors_in(out)):
                self.memory.put(t, made[k] if isinstance(made, list) else made)
        return out

    def _run(self, operation: Operation, func: Any, args: Any, kwargs: Any, key: Any = None) -> Any:
        """Run an operation, and note where the records lie in its results; ``key`` is what to remember that for."""
        run = self._prepare(operation, func, args, kwargs)
        made = self._by_rule(run) if run.is_ruled and run.is_in_place else None  # judged by what was there before
        run.out = self._execute(run, func, args, kwargs)
        run.outs = list(tensors_in(run.out))
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
        written = written_by(operation, args, kwargs) if operation.writes else []
        for t in written:
            if not self.memory.tag(t).born:
                self._guard.before_write(t)
        given = {k: v for k, v in kwargs.items() if k not in operation.results} if operation.results else kwargs
        read = list(tensors_in(args[1:] if operation.name in OVERWRITES else args))
        read += tensors_in(given) if given else ()
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
        """What depends on no record is shared; drawn numbers are nobody's until they meet others (memory.py)."""
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


def written_by(operation: Operation, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among the arguments that an operation writes."""
    if operation.name in UNDECLARED_WRITES and not (args[5] if len(args) > 5 else kwargs.get("training")):
        return []
    found = (args[i] if i < len(args) else kwargs.get(name) for i, name in operation.writes)
    return [t for value in found for t in tensors_in(value)]


def describe(func: Any) -> Operation:
    """What torch's own schema and tags say of an operation."""
    if not isinstance(func, torch._ops.OpOverload):
        return Operation(str(func), None, False, (), special=True, foreign=True)
    schema = func._schema
    library, name = schema.name.split("::")
    if library != "aten":
        return Operation(schema.name, None, False, declared_writes(schema), special=True, foreign=runs_code(func))
    if func.is_view or name in VIEWS or (torch.Tag.inplace_view in func.tags and name != "set_"):
        return Operation(name, None, True, declared_writes(schema) if name in RESIZES else ())
    rule = RULES.get(name) or RULES.get(name.rstrip("_")) or (pointwise if torch.Tag.pointwise in func.tags else None)
    more = tuple((i, schema.arguments[i].name) for i in UNDECLARED_WRITES.get(name, ()))
    results = frozenset(a.name for a in schema.arguments if a.is_out)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    special = draws or name in DRAWS | EMPTY | SIZED_BY_VALUES or name == "index"
    return Operation(name, rule, False, declared_writes(schema) + more, results, draws, special)


def declared_writes(schema: Any) -> tuple[tuple[int, str], ...]:
    """Arguments that a schema says are written."""
    return tuple((i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write)


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
