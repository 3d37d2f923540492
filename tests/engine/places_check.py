"""A checker of places: what the tracker claims of every result, against what moves when records change.

A function runs on a batch of n records three times: as it is, with one record replaced, and with the records in another
order. What is ``shared`` must be the same in all three. What lies on an ``axis`` may move only in the rows of the
replaced record, and goes along with its record when the order changes: otherwise a record meets something that depends
on its number in the chunk. Random draws are the same for every entry in all runs (``EqualDraws``), so that they explain
nothing, except those of a generator that the function seeds itself. In a fourth run draws that became no record's own
are others: what lies on an axis must not move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpilot.engine.batch import tensors
from dpilot.engine.trace.place import Place
from dpilot.engine.trace.tracker import Constants, Tracker
from dpilot.engine.trace.watch import Exits
from dpilot.engine.writes import WriteGuard

Batch = Sequence[Tensor]
Run = Callable[[list[Tensor]], Any]
ROUNDING = 1e-5
SEED = 10_007  # none that a program sets
GARBAGE = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"})


INNER = frozenset({"aten.mkldnn_rnn_layer.default", "aten._ctc_loss.default", "aten._ctc_loss.Tensor"})
"""Operations whose further results are working memory, not all of it written."""


class Result(NamedTuple):
    """One result of one operation: what is claimed of it, and its values."""

    operation: str
    place: Place
    value: Tensor
    left: bool
    """Whether values have left torch before: what is claimed from there on is void."""


class EqualDraws(TorchDispatchMode):
    """Draws the same number for every entry; a generator of the function's own is left alone."""

    def __init__(self, others: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.state, self.count, self.others = torch.get_rng_state(), 0, others
        self.made = dict[int, Tensor]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::") if hasattr(func, "_schema") else ""
        given = any(isinstance(v, torch.Generator) for v in (*args, *kwargs.values()))
        if given or torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        own = not torch.equal(self.state, torch.get_rng_state())
        out = func(*args, **kwargs)
        if own:
            return out
        self.count += 1  # how many numbers a draw takes may depend on values
        self.state = torch.default_generator.manual_seed(SEED + self.count).get_state()
        equal = equal_draws(name, args, kwargs, out)
        if isinstance(equal, Tensor) and equal.is_floating_point():
            self.made[self.count] = equal
            if self.count in self.others:
                equal.mul_(0.5)
        return equal


def equal_draws(name: str, args: Any, kwargs: Any, out: Any) -> Any:
    """What an operation would return if all its draws were equal."""
    if name == "native_dropout":
        return args[0] * 2, torch.ones_like(out[1])
    if name == "bernoulli" and len(args) < 2:
        return out.copy_(args[0] > 0.5)
    if name in ("bernoulli", "bernoulli_") and len(args) > 1 and isinstance(args[1], Tensor):
        return out.copy_((args[1] > 0.5).expand_as(out))
    if name == "normal" and isinstance(args[0], (Tensor, float)) and len(args) > 1 and isinstance(out, Tensor):
        return out.copy_(torch.as_tensor(args[0]) + 0.5 * torch.as_tensor(args[1]))
    if name == "multinomial":
        return out.copy_(args[0].argmax(-1, keepdim=True).expand_as(out))
    if name in ("poisson", "_standard_gamma"):
        return out.copy_(args[0].round())
    if name == "binomial":
        return out.copy_((args[0] * args[1]).round())
    if name == "randint_like" and isinstance(args[1], Tensor):
        return out.copy_(args[1] - 1)
    if name.startswith(("rand", "uniform", "normal", "random", "exponential", "cauchy", "log_norm", "geom", "bern")):
        return out if name == "randperm" else out.fill_(1 if not out.is_floating_point() else 0.625)
    return out


class Stopped(Exception):
    """A function ends early, for a reason that depends on the records."""


class Logged(Tracker):
    """A tracker that keeps every result."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.results: list[Result] = []
        self.together = frozenset[int]()
        self.stopped = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        name = str(func)
        if name.split(".")[1] not in GARBAGE:
            written = [t for t in tensors([args, kwargs or {}]) if t.dim()] if "_." in name or kwargs else []
            made = tensors(out)
            for t in [*(made[:1] if name in INNER else made), *written]:
                self.keep(name, t)
        return out

    def keep(self, name: str, t: Tensor) -> None:
        if t.layout is torch.strided:
            value = t.detach().resolve_conj().resolve_neg().clone()
            # programs try operations that fail by their forms, and stop where one fails by values
            left = any(f.kind == "unknown" and "which the model may catch" not in f.what for f in self.findings)
            self.results.append(Result(name, self.place(t), value, left))


@dataclass
class Report:
    """What was checked, and the claims that do not hold."""

    checked: Counter[str] = field(default_factory=Counter)
    false: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)


def observe(
    run: Run, batch: Batch, n: int, constants: Sequence[Tensor], records: Sequence[int],
    others: frozenset[int] = frozenset(),
) -> Logged:  # fmt: skip
    """Run once under a tracker; what it writes is restored. ``others`` are numbers of draws that come out otherwise."""
    torch.manual_seed(SEED)
    torch.rand(1)  # not the state that a function would find by seeding
    known, guard = Constants(), WriteGuard()
    known.add([*constants, *batch])
    held = [t.clone(memory_format=torch.preserve_format) for t in batch]
    known.add(held)
    tracker = Logged(n, [held[i] for i in records], known, guard)
    draws = EqualDraws(others)
    try:
        with draws, tracker, Exits(tracker, guard):
            made = run(held)
        for t in tensors(made):
            tracker.keep("in the end", t)
    except Stopped:
        tracker.stopped = True
    finally:
        guard.restore()
    tracker.together = frozenset(k for k, t in draws.made.items() if tracker.place(t).holds_draws)
    return tracker


def check(
    run: Run, batch: Batch, n: int, *, j: int = 0, constants: Sequence[Tensor] = (),
    records: Sequence[int] | None = None, others: Sequence[Callable[[Tensor, int], Tensor]] | None = None,
) -> Report:  # fmt: skip
    """Compare every claim of a function on a batch; ``records`` are the positions of the tensors that hold records."""
    chosen = range(len(batch)) if records is None else records
    report = Report()
    first = observe(run, batch, n, constants, chosen)
    for r in first.results:
        if r.place.kind in ("unknown", "mixed"):
            report.unknown[f"{r.operation}: {r.place.why}"] += 1
    for other in others or (replace,):
        changed = [other(t, j) if i in chosen else t for i, t in enumerate(batch)]
        compare(report, f"record {j} is another", first, observe(run, changed, n, constants, chosen), n, j)
    moved = [t.roll(1, 0) if i in chosen else t for i, t in enumerate(batch)]
    compare(report, "another order", first, observe(run, moved, n, constants, chosen), n, None)
    if first.together:
        compare_draws(report, first, observe(run, batch, n, constants, chosen, first.together))
    return report


def compare_draws(report: Report, one: Logged, two: Logged) -> None:
    """Compare two logs between which draws differ that are no record's own."""
    for a, b in zip(one.results, two.results, strict=False):
        if a.left or b.left or a.operation != b.operation or a.value.shape != b.value.shape:
            return
        if a.place.kind == "axis":
            report.checked["apart from draws"] += 1
            if not same(a.value, b.value, 0.0):
                report.false.append(f"{a.operation} of shape {tuple(a.value.shape)} depends on draws of no record")
                return


def compare(report: Report, what: str, one: Logged, two: Logged, n: int, j: int | None) -> None:
    """Compare two logs; with j, all rows but those of record j; else row for row with the order rolled by one."""
    unnoticed = not one.stopped and not two.stopped
    for a, b in zip(one.results, two.results, strict=False):
        if a.left or b.left:
            return
        if a.operation != b.operation or a.value.shape != b.value.shape:
            if unnoticed:
                report.false.append(f"{what}: {a.operation} became {b.operation} {tuple(b.value.shape)} unnoticed")
            return
        if a.place.holds_records and a.place.kind != "axis":
            continue
        report.checked[a.place.kind] += 1
        if not holds(a, b, n, j):
            report.false.append(f"{what}: {a.operation} of shape {tuple(a.value.shape)} is no {a.place}")
            return
    if unnoticed and len(one.results) != len(two.results):
        report.false.append(f"{what}: another number of operations, unnoticed")


def holds(a: Result, b: Result, n: int, j: int | None) -> bool:
    """Whether a claim holds for two values."""
    left, right = a.value, b.value
    if a.place.kind == "axis":
        if a.place.axis >= left.dim() or left.shape[a.place.axis] % (n * a.place.block):
            return False
        left, right = (v.unflatten(a.place.axis, (-1, n, a.place.block)) for v in (left, right))
        axis = a.place.axis + 1
        if j is None:
            right = right.roll(-1, axis)
        else:
            kept = torch.tensor([i for i in range(n) if i != j])
            left, right = left.index_select(axis, kept), right.index_select(axis, kept)
        return same(left, right, ROUNDING)
    return same(left, right, 0.0)


def same(left: Tensor, right: Tensor, rounding: float) -> bool:
    """Equal, two NaN included; numbers up to rounding relative to the largest."""
    if torch.equal(left, right):
        return True
    moved = ~((left == right) | ((left != left) & (right != right)))
    if not moved.any():
        return True
    if not rounding or not (left.is_floating_point() or left.is_complex()):
        return False
    finite = torch.isfinite(left) & torch.isfinite(right)
    if (moved & ~finite).any():
        return False
    zero = torch.zeros((), dtype=left.dtype)
    size = torch.where(finite, left, zero).abs().max()
    return bool((torch.where(finite, left - right, zero).abs().max() <= rounding * size).item())


def replace(t: Tensor, j: int) -> Tensor:
    """The same tensor with other values for record j, valid as indices where they are whole numbers."""
    t = t.clone()
    if t.dtype == torch.bool:
        t[j] = ~t[j]
    elif t.is_floating_point() or t.is_complex():
        t[j] = torch.randn(t[j].shape, generator=torch.Generator().manual_seed(11), dtype=t.dtype) * 3
    else:
        t[j] = t[j].flip(0) + 1 if t[j].dim() else t[j] + 1
        t[j] = torch.where(t[j] > t.max() - 1, t.min(), t[j])
    return t


def extreme(t: Tensor, j: int) -> Tensor:
    """Record j holds huge numbers, infinities and NaN."""
    t = replace(t, j)
    if t.is_floating_point():
        values = torch.tensor([1e30, -1e30, float("inf"), 0.0, float("nan"), -1e-30], dtype=t.dtype)
        t[j] = values[torch.arange(t[j].numel()) % len(values)].reshape(t[j].shape)
    return t


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from one seed, and leave torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
