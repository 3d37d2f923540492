"""From uses of weights to uses of parameters: gradients are pulled back through whatever computed the weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dpilot.engine.base import accumulator
from dpilot.engine.layers.base import Dense, Use
from dpilot.engine.layers.embedding import lookup_use
from dpilot.engine.quiet import no_batching_warnings
from dpilot.engine.recorder import FoundUse, Origin, Recorder

REPEATS = frozenset({"expand", "expand_as", "broadcast_to", "repeat"})


def own_name(recorder: Recorder, once: set[int], item: FoundUse) -> str | None:
    """The parameter whose only use this is, if it is one: such a use can be measured as soon as it is found."""
    alone = id(item.weight) in once and not item.by_row
    return recorder.names.get(id(item.weight)) if alone else None


def used_once(recorder: Recorder) -> set[int]:
    """Parameters that meet the samples in one place only and from which no other weight is computed."""
    derived = {id(v) for origin in recorder.origins.values() for v in flat(origin.args)}
    return {
        key for key, count in recorder.expected.items() if count == 1 and key in recorder.names and key not in derived
    }


def flat(tree: Any) -> list[Any]:
    """Leaves of nested tuples and lists."""
    return [leaf for v in tree for leaf in flat(v)] if isinstance(tree, (tuple, list)) else [tree]


def settle(recorder: Recorder, found: Iterable[FoundUse]) -> dict[str, list[Use]]:
    """All uses by parameter name."""
    uses: dict[str, list[Use]] = {}
    for item in found:
        for name, use in parameters_of(recorder, item):
            uses.setdefault(name, []).append(use)
    return uses


def parameters_of(recorder: Recorder, item: FoundUse) -> list[tuple[str, Use]]:
    """The uses of parameters that one use of a weight stands for."""
    name = recorder.names.get(id(item.weight))
    if name is not None and not item.by_row:
        return [(name, item.use)]
    if item.by_row:
        shorter = undo_rows(recorder, item, recorder.origins.get(id(item.weight)))
        if shorter is not None:
            return parameters_of(recorder, shorter)
        return pull_back(recorder, item.weight, one_row_each(item.use.gradients(0, recorder.batch_size)))
    return pull_back(recorder, item.weight, item.use.gradients(0, recorder.batch_size))


def undo_rows(recorder: Recorder, item: FoundUse, origin: Origin | None) -> FoundUse | None:
    """A weight with one row a sample that is a repeat, or a look-up of constant ids, in a smaller weight."""
    if origin is None:
        return None
    n = recorder.batch_size
    base = origin.args[0]
    if origin.operation in REPEATS and is_row_repeat(base, item.weight):
        return FoundUse(base, Dense(sum_to(item.use.gradients(0, n).sum(1), base)))
    if origin.operation == "embedding" and len(origin.args) <= 3:
        ids, table = origin.args[:2]
        padding = origin.args[2] if len(origin.args) == 3 else None
        return FoundUse(table, lookup_use(table, n, padding)((ids,), item.use.gradients(0, n)))
    return None


def is_row_repeat(base: Tensor, weight: Tensor) -> bool:
    """The first dimension was 1 or absent, so every row is the whole base; the others may be repeated as well."""
    aligned = (1,) * (weight.dim() - base.dim()) + tuple(base.shape)
    return aligned[0] == 1 and all(a in (1, w) for a, w in zip(aligned[1:], weight.shape[1:], strict=True))


def sum_to(values: Tensor, base: Tensor) -> Tensor:
    """(n, ...) summed over repeated dimensions to (n, *base.shape)."""
    lifted = values.unsqueeze(1)  # (n, 1, *weight.shape[1:])
    aligned = (1,) * (lifted.dim() - 1 - base.dim()) + tuple(base.shape)
    return lifted.sum_to_size(values.shape[0], *aligned).reshape(values.shape[0], *base.shape)


def one_row_each(values: Tensor) -> Tensor:
    """(n, r, ...) -> (n, n r, ...): sample i's gradient of the whole weight is zero but for its own rows."""
    n, r = values.shape[:2]
    whole = values.new_zeros(n, n, r, *values.shape[2:])
    index = torch.arange(n, device=values.device)
    whole[index, index] = values
    return whole.flatten(1, 2)


def pull_back(recorder: Recorder, weight: Tensor, gradients: Tensor) -> list[tuple[str, Use]]:
    """Vector-Jacobian products of all samples at once, or one by one where torch cannot batch them."""
    gradients = gradients.to(weight.dtype)

    def pull(values: Tensor, batched: bool) -> tuple[Any, ...]:
        return torch.autograd.grad(
            weight, recorder.parameters, values, retain_graph=True, allow_unused=True, is_grads_batched=batched
        )

    try:
        with no_batching_warnings():
            pulled = pull(gradients, True)
    except RuntimeError:
        rows = [pull(g, False) for g in gradients]
        pulled = tuple(None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True))
    names = (recorder.names[id(p)] for p in recorder.parameters)
    found = [(name, g.to(accumulator(g))) for name, g in zip(names, pulled, strict=True) if g is not None]
    return [(name, Dense(g)) for name, g in found]
