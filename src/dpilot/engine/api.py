"""The one call: per-sample norms and weighted sums of a model's gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from dpilot import _validate
from dpilot.engine import batch as batches
from dpilot.engine import loop, single_backward, vmap
from dpilot.engine.base import LossFunction, NoRule, PerSample, empty, trainable
from dpilot.engine.check import check
from dpilot.engine.locality import carefully, untouched, verify
from dpilot.engine.masking import unwatched
from dpilot.engine.state import modules_of, preserve_state, refuse_trained_loss
from dpilot.errors import UnsupportedModel

ENGINES: dict[str, Callable[..., PerSample]] = {
    "single-backward": single_backward.run,
    "vmap": vmap.run,
    "loop": loop.run,
}

Choice = tuple[str, str]
_known: WeakKeyDictionary[nn.Module, dict[Any, Choice]] = WeakKeyDictionary()


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
        Nothing of the model is changed, also after an exception: hooks, requires_grad, gradients, modes, keys.
        The first call with a model tests, on made-up samples, that samples do not mix; if they do it is refused.

    Edge cases:
        empty batch               the model does not run; norms (0,) and sums of zeros
        not finite in a sample    that sample is null, the others are untouched
        scalar loss               refused: use reduction="none"
        BatchNorm                 refused: use replace_batch_norm
        state moved by samples    restored after the call: nothing of a sample may stay in model or loss

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
    with torch.inference_mode(False), torch.enable_grad(), eager(model):
        chosen, reason = choose(model, loss_fn, batch, engine, n, per_batch)
        options = {"low_memory": True} if low_memory and chosen == "single-backward" else {}
        with preserve_state(model, loss_fn, batch) if chosen == "single-backward" else nullcontext():
            return ENGINES[chosen](model, loss_fn, batch, n=n, per_batch=per_batch, reason=reason, **options)


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Run what torch.compile made of the model as it was written: compiled code cannot be watched."""
    made = (type(m).__name__ == "OptimizedModule" or getattr(m, "_compiled_call_impl", None) for m in model.modules())
    if not any(made):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def choose(model: nn.Module, loss_fn: LossFunction, batch: Any, engine: str, n: int, per_batch: bool) -> Choice:
    """The engine to use and why, remembered for each model, kind of batch and set of trained parameters."""
    key = (engine, kind_of_call(model, loss_fn, batch, per_batch))
    known = _known.setdefault(model, {})
    if key not in known:
        refuse_problems(model)
        refuse_trained_loss(model, loss_fn)
        asked = engine in ("vmap", "loop")
        known[key] = (engine, "asked for") if asked else test(model, loss_fn, batch, engine, n, per_batch)
    return known[key]


def refuse_problems(model: nn.Module) -> None:
    """Raise with everything that ``check`` finds."""
    if problems := check(model):
        raise UnsupportedModel(f"{len(problems)} problem(s). " + " ".join(str(p) for p in problems))


def kind_of_call(model: nn.Module, loss_fn: LossFunction, batch: Any, per_batch: bool) -> Any:
    """What a verdict about a model holds for."""
    return (
        per_batch,
        getattr(getattr(loss_fn, "func", loss_fn), "__code__", type(loss_fn)),  # a lambda made anew has the same code
        tuple(trainable(model)),
        hash(tuple((type(module), module.training) for module in modules_of(model, loss_fn))),
        tuple((t.dtype, t.dim()) for t in batches.tensors(batch)),
    )


def test(model: nn.Module, loss_fn: LossFunction, batch: Any, engine: str, n: int, per_batch: bool) -> Choice:
    """Try single-backward, and for auto the others in turn, on made-up samples."""
    try:
        return "single-backward", verify(model, loss_fn, batch, n, per_batch)
    except NoRule as problem:
        if engine != "auto":
            raise
        return second_choice(model, loss_fn, batch, n, per_batch), f"single-backward: {problem}"


def second_choice(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> str:
    """vmap if it runs on made-up samples, else loop."""
    made_up = batches.synthetic(batch, n, 2, torch.Generator().manual_seed(0))
    work = partial(vmap.run, model, loss_fn, made_up, n=2, per_batch=per_batch, reason="")
    with untouched(model, loss_fn), unwatched():
        try:
            carefully(model, made_up, work)
        except Exception:  # torch.func raises many kinds; the loop has no such limits
            return "loop"
    return "vmap"
