"""The one call: per-sample norms and weighted sums of a model's gradients."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from dpilot import _validate
from dpilot.engine import batch as batches
from dpilot.engine import single_backward
from dpilot.engine.base import LossFunction, NoRule, PerSample, empty, trainable
from dpilot.engine.check import check
from dpilot.engine.generators import GeneratorStates
from dpilot.engine.isolate import copies, loop, vmap
from dpilot.engine.made_up import (
    carefully,
    examine,
    free_size,
    leave_as_found,
    refuse_company,
    require_loss_each,
    without_checks,
)
from dpilot.engine.state import answer_capturing, modules_of, refuse_trained_loss, run_eagerly
from dpilot.errors import UnsupportedModel

ENGINES: dict[str, Callable[..., PerSample]] = {
    "single-backward": single_backward.run,
    "vmap": vmap.run,
    "loop": loop.run,
}

KEPT = 16
"""Choices that are remembered for a model."""


class EngineChoice(NamedTuple):
    """The engine for a model, a loss and a form of batch, and why.

    ``traced``: the model is told that it is traced.
    """

    engine: str
    reason: str
    traced: bool = False


_known: WeakKeyDictionary[nn.Module, dict[Any, EngineChoice | UnsupportedModel]] = WeakKeyDictionary()


def names() -> list[str]:
    """The engines, the default first.

    Example:
        >>> names()
        ['single-backward', 'vmap', 'loop']
    """
    return list(ENGINES)


def per_sample(
    model: nn.Module, loss_fn: LossFunction, batch: Any, engine: str = "auto", *, per_batch: bool = False,
    low_memory: bool = False,
) -> PerSample:  # fmt: skip
    """Per-sample gradients of ``loss_fn(model(x), y)``, known by their norms and their weighted sums.

    ``x`` is a tensor, a tuple of arguments or a mapping of keyword arguments; losses have shape (n,). With
    ``per_batch=True`` the call is ``loss_fn(model, batch)``, for models that take whole batches. ``engine`` is one of
    ``names()`` or "auto", which takes single-backward and falls back to vmap, then loop, for what it cannot do
    (``.reason`` says why). ``low_memory=True`` trades a second backward pass for the memory of the records.

    Guarantee:
        Every pass is judged by the operations that ran in it: where it is not known which rows belong to which sample,
        or samples meet, the chunk is computed one sample at a time. Nothing of the model is changed, also after an
        exception: parameters, buffers, attributes, hooks, requires_grad, gradients, modes, keys.

    Edge cases:
        empty batch               the model does not run; norms (0,) and sums of zeros
        one sample                nothing can mix: its gradient as it is
        not finite in a sample    that sample is null, the others are untouched
        scalar loss               refused: use reduction="none"
        a text for each sample    refused, and so is any list of as many values: only tensors have rows
        BatchNorm                 refused: use replace_batch_norm
        samples are combined      refused where made-up samples show it, before a sample is read; else one at a time
        state moved by samples    the same; it is restored after the call in any case

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x, y = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2)
        >>> gradients = per_sample(model, lambda out, y: out[:, 0] - y, (x, y))
        >>> [round(float(n), 4) for n in gradients.norms]
        [5.0, 0.0]
        >>> gradients.weighted_sum(torch.tensor([0.5, 1.0]))["weight"]
        tensor([[1.5000, 2.0000]])

    Reference: Bu et al. 2023 (book-keeping, mixed ghost norms); Goodfellow 2015 (norms of linear layers).
    """
    _validate.one_of(("auto", *ENGINES), engine=engine)
    if low_memory and engine in ("vmap", "loop"):
        _validate.refuse("low_memory", True, "False with this engine", 'Use engine="single-backward".')
    n = batches.size(batch, per_batch)
    if n == 0:
        refuse_problems(model)
        return empty(trainable(model), "single-backward" if engine == "auto" else engine, "the batch is empty")
    if n > 1:
        batches.refuse_lists(batch, n)
    with torch.inference_mode(False), torch.enable_grad():
        chunk = batches.Chunk(model, loss_fn, batches.copy_tensors(batch), n, per_batch)
        with run_eagerly():
            choice = choose(chunk, engine)
        # asked again: a first pass with torch.cond loads the compiler
        with run_eagerly(), answer_capturing(True) if choice.traced else nullcontext():
            return run(choice, chunk, low_memory=low_memory)


def run(choice: EngineChoice, chunk: batches.Chunk, *, low_memory: bool) -> PerSample:
    """The gradients by the chosen engine, or one sample at a time where it does not keep samples apart."""
    if choice.engine == "loop" or chunk.n == 1:
        return loop.run(chunk, reason=choice.reason if choice.engine == "loop" else "one sample")
    of_chunk, before = ENGINES[choice.engine], GeneratorStates.now()
    if choice.engine == "single-backward":
        of_chunk = partial(of_chunk, low_memory=low_memory)
    try:
        return of_chunk(chunk, reason=choice.reason)
    except NoRule as problem:
        reason = f"this chunk: {problem}"
    except BaseException:
        before.go_on()  # what one sample did to the generators must not be met by those that are computed next
        raise
    return copies.run(chunk, reason=reason, draws=before, of_chunk=of_chunk)


def choose(chunk: batches.Chunk, engine: str) -> EngineChoice:
    """The engine to use and why, found on made-up samples and remembered, refusals too.

    It is the first line only: a pass over samples is judged by itself, whatever is remembered here.
    """
    key = (engine, form_of_call(chunk))
    known = _known.setdefault(chunk.model, {})
    found = known.get(key)
    if found is None:
        if len(known) >= KEPT:
            known.clear()
        try:
            found = find_choice(chunk, engine)
        except UnsupportedModel as refusal:
            found = refusal.with_traceback(None)
        known[key] = found
    if isinstance(found, UnsupportedModel):
        raise found
    return found


def find_choice(chunk: batches.Chunk, engine: str) -> EngineChoice:
    """Look at the model, then try it on made-up samples."""
    refuse_problems(chunk.model)
    refuse_trained_loss(chunk.model, chunk.loss_fn)
    if engine in ("vmap", "loop"):
        require_loss_each(chunk)
        if engine == "vmap":
            require_vmap(chunk)
        refuse_company(chunk, ENGINES[engine])
        return EngineChoice(engine, "asked for")
    try:
        return apart(examine(chunk))
    except NoRule as problem:
        first = problem
    with answer_capturing(True):  # transformers reads whether anything is padded, unless it is traced
        try:
            return apart(examine(chunk))._replace(traced=True)
        except UnsupportedModel:
            if engine != "auto":
                raise first from None
    return second_choice(chunk, f"single-backward: {first}")


def apart(draws: bool) -> EngineChoice:
    """The choice for a model that keeps samples apart."""
    checked = "" if draws else ", as one at a time on made-up samples"
    return EngineChoice("single-backward", f"its samples stay apart{checked}")


def refuse_problems(model: nn.Module) -> None:
    """Raise with everything that ``check`` finds."""
    if problems := check(model):
        raise UnsupportedModel(f"{len(problems)} problem(s). " + " ".join(str(p) for p in problems))


def form_of_call(chunk: batches.Chunk) -> Any:
    """What a choice is remembered for: this very loss, what is trained, every module's mode, types of tensors."""
    model, loss_fn = chunk.model, chunk.loss_fn
    return (
        chunk.per_batch,
        loss_fn if isinstance(loss_fn, Hashable) else Identity(loss_fn),
        tuple(trainable(model)),
        hash(tuple((type(module), module.training) for module in modules_of(model, loss_fn))),
        tuple((t.dtype, t.dim()) for t in batches.tensors(chunk.batch)),
    )


class Identity(NamedTuple):
    """An object that is equal to itself alone, and kept alive so that no other takes its place."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def second_choice(chunk: batches.Chunk, reason: str) -> EngineChoice:
    """vmap if it runs on made-up samples, else loop; refused if samples meet in it."""
    try:
        require_vmap(chunk)
        choice = EngineChoice("vmap", reason)
    except Exception:  # torch.func raises many kinds; the loop has no such limits
        choice = EngineChoice("loop", reason)
    refuse_company(chunk, ENGINES[choice.engine])
    return choice


def require_vmap(chunk: batches.Chunk) -> None:
    """Raise what vmap raises on made-up samples."""
    made_up = chunk.made_up(free_size(chunk, 2))
    with leave_as_found(chunk.model, chunk.loss_fn), without_checks():
        carefully(made_up, partial(vmap.run, reason=""))
