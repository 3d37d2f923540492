"""torch's batching rules on torch's own catalogue of operations: does a record move another one's results?

Each operation is computed and differentiated under vmap, with what the engine watches, for four records; then the last
is replaced by zeros, infinities and the like. A process of its own: ``python -m tests.engine.vmap_opinfo [name ...]``.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpilot.engine.batch import tensors
from dpilot.engine.isolate.vmap import refuse_leaks
from tests.engine.places_opinfo import CATALOGUE, SKIPPED

RECORDS, SAMPLES = 4, 12
ENDS = frozenset({"grid_sampler_2d"})
"""Kernels that end the process for coordinates that are not finite (``engine/writes.py``)."""
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "not a number": lambda t: torch.full_like(t, torch.nan),
    "infinite": lambda t: torch.full_like(t, torch.inf),
    "huge": lambda t: torch.full_like(t, 1e30),
    "turned round": torch.neg,
    "large": lambda t: 1000 * t,
}


def calls(op: Any, sample: Any) -> Iterator[tuple[Callable[..., Any], list[Tensor]]]:
    """An operation as a function of some of its tensors, and these for four records: all, the first, all but it."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    at = [
        i for i, t in enumerate(leaves)
        if isinstance(t, Tensor) and t.layout is torch.strided and t.is_floating_point()
    ]  # fmt: skip
    for chosen in dict.fromkeys((tuple(at), tuple(at[:1]), tuple(at[1:]))):

        def total(*given: Tensor, chosen: tuple[int, ...] = chosen) -> tuple[Tensor, list[Tensor]]:
            filled = list(leaves)
            for i, t in zip(chosen, given, strict=True):
                filled[i] = t
            first, args, kwargs = tree_unflatten(filled, spec)
            outs = [o for o in tensors(op.op(first, *args, **kwargs)) if o.is_floating_point()]
            sums = [(o * torch.linspace(0.5, 1.5, o.numel()).view(o.shape)).sum() for o in outs]
            return torch.stack(sums).sum(), outs

        if chosen:
            records = [torch.stack([leaves[i] * (1 + 0.1 * j) for j in range(RECORDS)]) for i in chosen]
            yield torch.func.grad(total, argnums=tuple(range(len(chosen))), has_aux=True), records


def results(call: Callable[..., Any], records: list[Tensor]) -> list[Tensor] | None:
    """Gradients and results of every record; None where vmap does not run, or the engine would not use it."""
    torch.manual_seed(1)
    try:
        with refuse_leaks():
            return list(tensors(torch.func.vmap(call, randomness="different")(*records)))
    except Exception:
        return None


def same(one: Tensor, other: Tensor) -> bool:
    """Whether all records but the last have the same numbers."""
    if one.shape != other.shape:
        return False
    size = float(one.nan_to_num(0, 0, 0).abs().max()) if one.numel() else 0.0
    return torch.allclose(one[:-1], other[:-1], rtol=1e-3, atol=1e-4 * size + 1e-12, equal_nan=True)


def moved(name: str) -> tuple[int, list[str]]:
    """How many calls were compared, and which records moved others."""
    compared, found = 0, list[str]()
    op = CATALOGUE[name]
    for number, sample in enumerate(itertools.islice(op.sample_inputs("cpu", torch.float32), SAMPLES)):
        for call, records in calls(op, sample):
            before = results(call, records)
            for other, make in OTHERS.items() if before is not None else ():
                changed = [torch.cat([t[:-1], make(t[-1:])]) for t in records]
                after = results(call, changed)
                compared += after is not None
                if after is not None and before is not None and not all(map(same, before, after)):
                    found.append(f"{name}, sample {number}: a record of which all is {other} moves others")
    return compared, found


def main(names: list[str]) -> int:
    compared, false = 0, 0
    chosen = names or [n for n in CATALOGUE if n not in SKIPPED | ENDS and CATALOGUE[n].supports_autograd]
    for name in chosen:
        count, found = moved(name)
        compared, false = compared + count, false + len(found)
        for line in found:
            print(line, flush=True)
    print(f"{compared} calls, {false} moved")
    return int(bool(false) or not compared)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main(sys.argv[1:]))
