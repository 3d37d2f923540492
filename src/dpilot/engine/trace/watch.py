"""One watched pass over a chunk: are its records apart, and if not, where do they meet?

Operations are the tracker's. Values that leave torch without one are seen here, at the level of functions (``Exits``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from dpilot.engine import batch as batches
from dpilot.engine.base import NoRule
from dpilot.engine.generators import GeneratorStates, outside_torch
from dpilot.engine.state import StateSnapshot, run_eagerly
from dpilot.engine.trace.place import SHARED
from dpilot.engine.trace.tracker import READ_DRAWS, Answers, Constants, Finding, Tracker
from dpilot.engine.writes import EXITS, WriteGuard

_constants: WeakKeyDictionary[nn.Module, Constants] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of the records in one pass.

    ``apart``     each loss is a function of its own record
    ``unknown``   it is not known which rows belong to which record: they are to be computed one by one
    ``mixed``     records are combined
    """

    kind: Literal["apart", "unknown", "mixed"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over n > 1 records, watched operation by operation; what it writes is restored after it."""

    tracker: Tracker
    exits: Exits
    guard: WriteGuard
    before: GeneratorStates
    """Where generators stood whose draws no operation shows."""

    @staticmethod
    @contextmanager
    def over(chunk: batches.Chunk, answers: Answers | None = None) -> Iterator[Pass]:
        """Watch a pass. With ``answers``, what is found holds for every later value of the trained weights."""
        snapshot, guard = StateSnapshot.of(chunk.model, chunk.loss_fn, chunk.batch), WriteGuard()
        constants = constants_of(chunk.model)
        constants.add(snapshot.tensors)
        records = batches.records(chunk.batch, chunk.n)
        tracker = Tracker(chunk.n, records, constants, guard, answers, state=snapshot.tensors)
        try:
            with run_eagerly():
                draws = GeneratorStates.of(outside_torch(snapshot.generators))
                yield Pass(tracker, Exits(tracker, guard), guard, draws)
        finally:
            snapshot.restore()
            guard.restore()
            tracker.memory.close()

    def verdict(self, losses: Tensor, own: tuple[type, ...] = ()) -> Verdict:
        """Whether the records are apart in everything that leads to the losses, forwards and backwards.

        ``own`` are the engine's nodes of the backward graph, which keep them apart.
        """
        place = self.tracker.place(losses)
        found = [*self.tracker.findings]
        if self.before.moved():
            found.append(Finding("unknown", "random, numpy or a generator that is held draws for all records together"))
        if not self.tracker.generators.go_on():
            found.append(Finding("unknown", SET))
        if place.kind in ("unknown", "mixed"):
            found.append(Finding(place.kind, place.why))
        for kind in ("mixed", "unknown"):
            for finding in found:
                if finding.kind == kind:
                    return Verdict(kind, str(finding))
        if place.kind != "axis":
            return Verdict("unknown", "the losses do not depend on the records")
        if name := unwatched_backward(losses, own):
            return Verdict(
                "unknown", f"{name} has a backward pass of its own, which is not watched{PLAIN.get(name, '')}"
            )
        return Verdict("apart")

    def require_apart(self, losses: Tensor, own: tuple[type, ...] = ()) -> None:
        """Raise NoRule unless the records are apart."""
        verdict = self.verdict(losses, own)
        if verdict.kind != "apart":
            raise NoRule(verdict.why)


def judge(chunk: batches.Chunk) -> Verdict:
    """Run a chunk of made-up records forwards, to its end, and say whether they are apart.

    A constant that neither the model nor the loss holds (a global tensor) is a stranger at first. As no record was read
    yet, whatever is alive then holds none: it is declared, and the chunk judged again.
    """
    constants = constants_of(chunk.model)
    constants.strangers.clear()  # those of earlier passes may hold records
    verdict = judge_pass(chunk)
    if verdict.kind == "apart" or not constants.strangers:
        return verdict
    constants.add_alive()
    return judge_pass(chunk)


def judge_pass(chunk: batches.Chunk) -> Verdict:
    """Run a chunk forwards, to its end, and say whether its records are apart."""
    with Pass.over(chunk) as watched:
        with torch.enable_grad(), watched.tracker, watched.exits:
            losses = chunk.losses()
        return watched.verdict(batches.check_losses(losses, chunk.n))


def constants_of(model: nn.Module) -> Constants:
    """What is known, for a model, to hold no records."""
    known = _constants.get(model)
    if known is None:
        known = _constants[model] = Constants()
    return known


def unwatched_backward(losses: Tensor, own: tuple[type, ...]) -> str:
    """The name of a function with a backward pass of its own on the way to the losses, if there is one."""
    waiting: list[Any] = [losses.grad_fn]
    seen = set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction) and not isinstance(node, own):
            return type(node).__name__.removesuffix("Backward")
        waiting += [above for above, _ in node.next_functions]
    return ""


SET = "torch's generator was set, or moved by an operation that does not say that it draws"
PLAIN = {"CheckpointFunction": " (with use_reentrant=False it is)"}
"""What to use instead of functions whose backward pass is not watched."""


READERS: Final = EXITS | {
    "tolist", "__reduce_ex__", "__cuda_array_interface__", "apply_", "map_", "map2_",
}  # fmt: skip
"""Methods that hand out a tensor's values or memory."""
HOOKS: Final = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
"""Methods that put the user's code into the backward pass, which is not watched."""
MAKERS: Final = frozenset({
    "tensor", "as_tensor", "new_tensor", "asarray", "tensor_split", "__repr__", "__format__", "sparse_coo_tensor",
    "tensordot",
})  # fmt: skip
"""Functions that read values in their arguments below the dispatcher, or make tensors from numbers of Python."""
CONSTRUCTORS: Final = MAKERS - {"tensordot", "tensor_split"}
SUBSCRIPTS: Final = frozenset({"__getitem__", "__setitem__"})
LEFT_ALIGNED: Final = "_nested_tensor_from_mask_left_aligned"
"""Asked by nn.TransformerEncoder in evaluation mode of the padding of all records: if not, it computes as in training,
which it does with gradients in any case."""
_SEEN: Final = READERS | HOOKS | MAKERS


class Exits(TorchFunctionMode):
    """Notes every value of a record that leaves torch, and saves memory that is handed out."""

    def __init__(self, tracker: Tracker, guard: WriteGuard) -> None:
        super().__init__()
        self.tracker, self.guard = tracker, guard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a torch function, or what stands for it without a look at all the records."""
        name = getattr(func, "__name__", "")
        if name == LEFT_ALIGNED:
            return False
        if name == "one_hot" and (replaced := one_hot(*args, **kwargs)) is not None:
            return replaced
        if name in SUBSCRIPTS:
            args = (args[0], self._without_lists(args[0], args[1]), *(as_tensor(v, args[0]) for v in args[2:]))
        elif name == "__get__":
            if getattr(func, "__self__", None) in (torch.Tensor.grad_fn, torch.Tensor._grad_fn):
                self._note(args, "takes a node of the backward graph")
        elif name in _SEEN:
            self._before_exit(name, args, kwargs)
            out = func(*args, **kwargs)
            if name in CONSTRUCTORS and isinstance(out, Tensor):
                self._declare(out)
            return out
        return func(*args, **kwargs)

    def _before_exit(self, name: str, args: Any, kwargs: Any) -> None:
        if name == "tensordot":
            self._note_read(args[2:] or kwargs.get("dims"), "reads axes from records")
        elif name in HOOKS:
            self._note(args[:1], f"{name}: the backward pass of records runs code that is not watched")
        elif name in MAKERS:
            self._note_read((args, kwargs), f"{name} reads values of records")
        else:
            self._note_read(args[:1], f"{name} takes values of records out of torch")
            for t in batches.tensors(args[:1]):
                if not self.tracker.memory.tag(t).born:
                    self.guard.before_exit(t)

    def _note(self, values: Any, what: str) -> None:
        with torch._C.DisableTorchFunction():
            if any(self.tracker.holds_records(t) for t in batches.tensors(values)):
                self.tracker.note("unknown", what)

    def _note_read(self, values: Any, what: str) -> None:
        """The same for values that Python then knows: draws of the chunk are no record's own."""
        self._note(values, what)
        with torch._C.DisableTorchFunction():
            if any(self.tracker.place(t).holds_draws for t in batches.tensors(values)):
                self.tracker.note("unknown", READ_DRAWS)

    def _without_lists(self, t: Tensor, index: Any) -> Any:
        """A subscript with tensors for its lists of numbers: torch would make them where nobody sees it."""
        if isinstance(index, tuple):
            return tuple(self._without_lists(t, each) for each in index)
        if not isinstance(index, np.ndarray) and not (isinstance(index, list) and is_of_numbers(index)):
            return index
        with torch._C.DisableTorchFunction():
            made = torch.tensor(index, device=t.device)
            self._declare(made)
        return made

    def _declare(self, out: Tensor) -> None:
        """Numbers of Python made a tensor: no record was read, or that was noted."""
        if self.tracker.memory.tag(out).kind == "unknown":
            self.tracker.memory.put(out, SHARED)


def as_tensor(value: Any, like: Tensor) -> Any:
    """A number that is written by a subscript as a tensor: torch would make it where nobody sees it."""
    if not isinstance(value, bool | int | float):
        return value
    with torch._C.DisableTorchFunction():
        return torch.full((), value, dtype=like.dtype, device=like.device)


def is_of_numbers(values: list[Any]) -> bool:
    """Whether a list holds whole numbers or truth values of Python, and nothing else."""
    return {type(value) for value in values} in ({int}, {bool})


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor | None:
    """F.one_hot of a given number of classes; torch's own looks at the smallest and the largest label of the batch."""
    if num_classes < 0:
        return None
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=tensor.device)
    return zeros.scatter(-1, tensor.unsqueeze(-1), 1)
