"""Any other operation: torch.func.vmap over that operation alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.func import vjp, vmap

from dpilot.engine.base import NoRule, no_batching_warnings
from dpilot.engine.batch import tensors
from dpilot.engine.layers.base import Dense, MakeUse, Operation, Scope, Use, per_sample_rows


def fallback(scope: Scope, func: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation without a rule, and differentiate it sample by sample when the gradient arrives.

    The operation must give one tensor with samples first and treat them independently.
    """
    weights = unique([v for v in tensors((args, kwargs)) if scope.is_weight(v)])
    samples = unique([v for v in tensors((args, kwargs)) if scope.is_sample(v)])
    name = getattr(func, "__name__", str(func))
    for s in samples:
        scope.require_rows(s)
    first = samples[0]
    alike = [w for w in weights if w.dim() == first.dim() and w.shape[0] == first.shape[0] and scope.has_equal_rows(w)]
    rows = {id(w): scope.spread(w, first) for w in alike}
    if rows:
        args, kwargs = swap(args, rows), swap(kwargs, rows)
        return fallback(scope, func, args, kwargs) if len(rows) < len(weights) else func(*args, **kwargs)
    out = call(func, args, kwargs, {id(w): w.detach() for w in weights})
    if not isinstance(out, Tensor) or not out.is_floating_point():
        raise NoRule(f'{name} of a trained weight has no rule and more than one output. Use engine="vmap" or "loop".')
    n = scope.batch_size

    def make(chosen: int) -> MakeUse:
        def use(saved: tuple[Tensor, ...], e: Tensor) -> Use:
            return Dense(per_sample(func, args, kwargs, weights, samples, saved, e, n, chosen))

        return use

    uses = [(w, make(j)) for j, w in enumerate(weights)]
    if out.data_ptr() in {s.data_ptr() for s in samples}:
        raise NoRule(
            f"{name} writes a trained weight into the samples in place. Write it out of place (torch.cat, where)."
        )
    own = out.clone()  # the operation may have kept its output for its own backward pass; a tap marks it as changed
    return scope.tap(own, tuple(s.detach() for s in samples), uses)


def per_sample(
    func: Operation, args: Any, kwargs: Any, weights: list[Tensor], samples: list[Tensor],
    saved: tuple[Tensor, ...], e: Tensor, n: int, chosen: int,
) -> Tensor:  # fmt: skip
    """Gradients (n, *shape) of one weight of one call."""
    fixed = {id(w): w.detach() for w in weights}

    def one(error: Tensor, *rows: Tensor) -> Tensor:
        now = fixed | {id(s): r for s, r in zip(samples, rows, strict=True)}

        def of(weight: Tensor) -> Tensor:
            result: Tensor = call(func, args, kwargs, now | {id(weights[chosen]): weight})
            return result

        pulled: Tensor = vjp(of, weights[chosen].detach())[1](error)[0]
        return pulled

    shaped = [s.reshape(n, s.shape[0] // n, *s.shape[1:]) for s in saved]
    with no_batching_warnings():
        result: Tensor = vmap(one, randomness="different")(per_sample_rows(e, n).to(e.dtype), *shaped)
    return per_sample_rows(result, n)[:, 0]


def unique(found: list[Tensor]) -> list[Tensor]:
    """Each tensor once, by identity."""
    return list({id(t): t for t in found}.values())


def call(func: Operation, args: Any, kwargs: Any, now: dict[int, Tensor]) -> Any:
    """The call with some tensors exchanged."""
    return func(*swap(args, now), **swap(kwargs, now))


def swap(tree: Any, now: dict[int, Tensor]) -> Any:
    """The same tree with some tensors exchanged."""
    if isinstance(tree, Tensor):
        return now.get(id(tree), tree)
    if isinstance(tree, dict):
        return {k: swap(v, now) for k, v in tree.items()}
    return type(tree)(swap(v, now) for v in tree) if isinstance(tree, (tuple, list)) else tree
