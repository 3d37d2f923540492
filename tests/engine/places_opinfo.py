"""Calls of torch's own catalogue of operations, with the first axis of some of their tensors taken for the records.

Run as a process of its own, as torch's test utilities change settings of the process that imports them:
``python -m tests.engine.places_opinfo [name ...]``.
"""

from __future__ import annotations

import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

try:
    import expecttest  # noqa: F401
except ImportError:  # torch's catalogue asks for it and does not use it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.engine.places_check import Report, check, extreme, replace

FAILS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError)
CATALOGUE = {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}
SKIPPED = frozenset(name for name in CATALOGUE if name.startswith(("jiterator", "sparse."))) | {"tensordot"}
"""Kernels of CUDA, sparse tensors, and what has a test of its own in test_places.py."""
UNSTABLE = (
    "svd", "eig", "lstsq", "pinv", "lobpcg", "pca_lowrank", "ormqr", "geqrf", "householder", "matrix_rank", "ldl",
    "linalg.norm", "nuclear", "qr", "linalg.cond", "lu", "tensorinv", "tensorsolve", "solve", "inv", "cholesky",
)  # fmt: skip
"""Decompositions that amplify rounding, or fail for some values."""


class OneCall:
    """One operation on one sample; ``batch`` are its tensors, with the axis that counts records moved to the front."""

    def __init__(self, op: Any, sample: Any, axes: dict[int, int]) -> None:
        self.op, self.axes = op, axes
        self.leaves, self.spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.at = tensors_at(self.leaves)
        held = [self.leaves[i].detach() for i in self.at]
        self.batch = [
            t.movedim(axes[i], 0).clone(memory_format=torch.contiguous_format) if i in axes else t.clone()
            for i, t in enumerate(held)
        ]

    def __call__(self, batch: list[Tensor]) -> Any:
        leaves = list(self.leaves)
        for i, t in enumerate(batch):
            leaves[self.at[i]] = t.movedim(0, self.axes[i]) if i in self.axes else t
        given, args, kwargs = tree_unflatten(leaves, self.spec)
        return self.op.op(given, *args, **kwargs)


def tensors_at(leaves: list[Any]) -> list[int]:
    return [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]


def choices(sample: Any) -> Iterator[dict[int, int]]:
    """Which axes of which tensors count records: each alone, and those of one size counted from either end."""
    leaves, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    held = [leaves[i] for i in tensors_at(leaves)]
    seen = list[dict[int, int]]()
    for i, t in enumerate(held):
        for axis in range(t.dim() if t.layout is torch.strided and t.numel() else 0):
            n = t.shape[axis]
            others = [u for u in held if u.layout is torch.strided]
            left = {k: axis for k, u in enumerate(others) if u.dim() > axis and u.shape[axis] == n}
            end = axis - t.dim()
            right = {k: end for k, u in enumerate(others) if u.dim() >= -end and u.shape[end] == n}
            seen += [{i: axis}, left, right] if n > 1 else []
    yield from (axes for k, axes in enumerate(seen) if axes not in seen[:k])


def reports(name: str, samples: int) -> Iterator[tuple[str, Report]]:
    """What the checker says of some calls of an operation."""
    op = CATALOGUE[name]
    wild = not any(word in name for word in UNSTABLE)
    for number, sample in enumerate(itertools.islice(op.sample_inputs("cpu", torch.float32), samples)):
        for axes in choices(sample):
            call = OneCall(op, sample, axes)
            n, records = call.batch[min(axes)].shape[0], sorted(axes)
            others = [replace, extreme] if wild else [replace]
            try:
                report = check(call, call.batch, n, j=n - 1, records=records, others=others)
            except FAILS:
                continue
            shapes = ", ".join(str(tuple(t.shape)) for t in call.batch)
            yield f"{name}, sample {number} (records first: {shapes}), records on axes {axes}", report


def main(names: list[str]) -> int:
    """Check operations, all of them if none is named; prints false claims, and how many claims were checked."""
    few = bool(names)
    claims, false = 0, 0
    for name in names or [name for name in CATALOGUE if name not in SKIPPED]:
        for where, report in reports(name, 3 if few else 12):
            claims += report.checked.total()
            false += len(report.false)
            for what in report.false:
                print(f"{where}: {what}")
    print(f"{claims} claims, {false} false")
    return int(bool(false) or not claims)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main(sys.argv[1:]))
