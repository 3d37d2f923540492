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
        batch = batches.copy_tensors(batch)
        with run_eagerly():
            choice = choose(model, loss_fn, batch, engine, n, per_batch)
        # asked again: a first pass with torch.cond loads the compiler
        with run_eagerly(), answer_capturing(True) if choice.traced else nullcontext():
            return run(choice, model, loss_fn, batch, n=n, per_batch=per_batch, low_memory=low_memory)


def run(
    choice: EngineChoice,
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    n: int,
    per_batch: bool,
    low_memory: bool,
) -> PerSample:
    """The gradients by the chosen engine, or one sample at a time where it does not keep samples apart."""
    if choice.engine == "loop" or n == 1:
        reason = choice.reason if choice.engine == "loop" else "one sample"
        return loop.run(model, loss_fn, batch, n=n, per_batch=per_batch, reason=reason)
    of_chunk, before = ENGINES[choice.engine], GeneratorStates.now()
    if choice.engine == "single-backward":
        of_chunk = partial(of_chunk, low_memory=low_memory)
    try:
        return of_chunk(model, loss_fn, batch, n=n, per_batch=per_batch, reason=choice.reason)
    except NoRule as problem:
        reason = f"this chunk: {problem}"
    except BaseException:
        before.go_on()  # what one sample did to the generators must not be met by those that are computed next
        raise
    run_copies = partial(copies.run, draws=before, of_chunk=of_chunk)
    return run_copies(model, loss_fn, batch, n=n, per_batch=per_batch, reason=reason)


def choose(model: nn.Module, loss_fn: LossFunction, batch: Any, engine: str, n: int, per_batch: bool) -> EngineChoice:
    """The engine to use and why, found on made-up samples and remembered, refusals too.

    It is the first line only: a pass over samples is judged by itself, whatever is remembered here.
    """
    key = (engine, form_of_call(model, loss_fn, batch, per_batch))
    known = _known.setdefault(model, {})
    found = known.get(key)
    if found is None:
        if len(known) >= KEPT:
            known.clear()
        try:
            found = find_choice(model, loss_fn, batch, engine, n, per_batch)
        except UnsupportedModel as refusal:
            found = refusal.with_traceback(None)
        known[key] = found
    if isinstance(found, UnsupportedModel):
        raise found
    return found


def find_choice(
    model: nn.Module, loss_fn: LossFunction, batch: Any, engine: str, n: int, per_batch: bool
) -> EngineChoice:
    """Look at the model, then try it on made-up samples."""
    refuse_problems(model)
    refuse_trained_loss(model, loss_fn)
    if engine in ("vmap", "loop"):
        require_loss_each(model, loss_fn, batch, n, per_batch)
        if engine == "vmap":
            require_vmap(model, loss_fn, batch, n, per_batch)
        refuse_company(model, loss_fn, batch, n, per_batch, ENGINES[engine])
        return EngineChoice(engine, "asked for")
    try:
        return apart(examine(model, loss_fn, batch, n, per_batch))
    except NoRule as problem:
        first = problem
    with answer_capturing(True):  # transformers reads whether anything is padded, unless it is traced
        try:
            return apart(examine(model, loss_fn, batch, n, per_batch))._replace(traced=True)
        except UnsupportedModel:
            if engine != "auto":
                raise first from None
    return second_choice(model, loss_fn, batch, n, per_batch, f"single-backward: {first}")


def apart(draws: bool) -> EngineChoice:
    """The choice for a model that keeps samples apart."""
    checked = "" if draws else ", as one at a time on made-up samples"
    return EngineChoice("single-backward", f"its samples stay apart{checked}")


def refuse_problems(model: nn.Module) -> None:
    """Raise with everything that ``check`` finds."""
    if problems := check(model):
        raise UnsupportedModel(f"{len(problems)} problem(s). " + " ".join(str(p) for p in problems))


def form_of_call(model: nn.Module, loss_fn: LossFunction, batch: Any, per_batch: bool) -> Any:
    """What a choice is remembered for: this very loss, what is trained, every module's mode, types of tensors."""
    return (
        per_batch,
        loss_fn if isinstance(loss_fn, Hashable) else Identity(loss_fn),
        tuple(trainable(model)),
        hash(tuple((type(module), module.training) for module in modules_of(model, loss_fn))),
        tuple((t.dtype, t.dim()) for t in batches.tensors(batch)),
    )


class Identity(NamedTuple):
    """An object that is equal to itself alone, and kept alive so that no other takes its place."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def second_choice(
    model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool, reason: str
) -> EngineChoice:
    """vmap if it runs on made-up samples, else loop; refused if samples meet in it."""
    try:
        require_vmap(model, loss_fn, batch, n, per_batch)
        choice = EngineChoice("vmap", reason)
    except Exception:  # torch.func raises many kinds; the loop has no such limits
        choice = EngineChoice("loop", reason)
    refuse_company(model, loss_fn, batch, n, per_batch, ENGINES[choice.engine])
    return choice


def require_vmap(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> None:
    """Raise what vmap raises on made-up samples."""
    size = free_size(model, loss_fn, batch, n, 2)
    made_up = batches.synthetic(batch, n, size, torch.Generator().manual_seed(0))
    work = partial(vmap.run, model, loss_fn, made_up, n=size, per_batch=per_batch, reason="")
    with leave_as_found(model, loss_fn), without_checks():
        carefully(model, made_up, work)
