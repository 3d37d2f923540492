"""One watched pass over a chunk: are its records apart, and if not, where do they meet?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from dpilot.engine import batch as batches
from dpilot.engine.base import LossFunction, NoRule
from dpilot.engine.generators import GeneratorStates, outside_torch
from dpilot.engine.record.exits import Exits
from dpilot.engine.record.memory import Answers, Constants
from dpilot.engine.record.tracker import Finding, Tracker
from dpilot.engine.recorder import Tap
from dpilot.engine.state import StateSnapshot, run_eagerly
from dpilot.engine.writes import WriteGuard

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

    n: int
    tracker: Tracker
    exits: Exits
    guard: WriteGuard
    before: GeneratorStates
    """Where generators stood whose draws no operation shows."""

    @staticmethod
    @contextmanager
    def over(
        model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, answers: Answers | None = None
    ) -> Iterator[Pass]:
        """Watch a pass. With ``answers``, what is found holds for every later value of the trained weights."""
        snapshot, guard = StateSnapshot.of(model, loss_fn, batch), WriteGuard()
        constants = constants_of(model)
        constants.add(snapshot.tensors)
        tracker = Tracker(n, batches.records(batch, n), constants, guard, answers)
        try:
            with run_eagerly():
                draws = GeneratorStates.of(outside_torch(snapshot.generators))
                yield Pass(n, tracker, Exits(tracker, guard), guard, draws)
        finally:
            snapshot.restore()
            guard.restore()
            tracker.memory.close()

    def verdict(self, losses: Tensor) -> Verdict:
        """Whether the records are apart in everything that leads to the losses, forwards and backwards."""
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
        if own := own_backward(losses):
            return Verdict("unknown", f"{own} has a backward pass of its own, which is not watched{PLAIN.get(own, '')}")
        return Verdict("apart")

    def require_apart(self, losses: Tensor) -> None:
        """Raise NoRule unless the records are apart."""
        verdict = self.verdict(losses)
        if verdict.kind != "apart":
            raise NoRule(verdict.why)


def judge(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> Verdict:
    """Run a chunk of made-up records forwards, to its end, and say whether they are apart.

    A constant that neither the model nor the loss holds (a global tensor) is a stranger at first. As no record was read
    yet, whatever is alive then holds none: it is declared, and the chunk judged again.
    """
    constants = constants_of(model)
    constants.strangers.clear()  # those of earlier passes may hold records
    verdict = judge_pass(model, loss_fn, batch, n, per_batch)
    if verdict.kind == "apart" or not constants.strangers:
        return verdict
    constants.add_alive()
    return judge_pass(model, loss_fn, batch, n, per_batch)


def judge_pass(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> Verdict:
    """Run a chunk forwards, to its end, and say whether its records are apart."""
    with Pass.over(model, loss_fn, batch, n) as watched:
        with torch.enable_grad(), watched.tracker, watched.exits:
            losses = batches.check_losses(batches.losses(model, loss_fn, batch, per_batch), n)
        return watched.verdict(losses)


def constants_of(model: nn.Module) -> Constants:
    """What is known, for a model, to hold no records."""
    return _constants.setdefault(model, Constants())


def own_backward(losses: Tensor) -> str:
    """The name of a function with a backward pass of its own on the way to the losses, if there is one."""
    waiting: list[Any] = [losses.grad_fn]
    seen = set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction) and not isinstance(node, TAPPED):
            return type(node).__name__.removesuffix("Backward")
        waiting += [above for above, _ in node.next_functions]
    return ""


TAPPED: Any = Tap._backward_cls
SET = "torch's generator was set, or moved by an operation that does not say that it draws"
PLAIN = {"CheckpointFunction": " (with use_reentrant=False it is)"}
"""What to use instead of functions whose backward pass is not watched."""
