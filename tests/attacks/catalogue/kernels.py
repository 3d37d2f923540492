"""Kernels, operators and classes of tensors that do more than their arguments say."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tests.attacks.case import Case, Net, attack, flagging, fooling, mixing, normal, size_for, squared
from tests.attacks.catalogue.exits import scale_of


def reading(operator: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> Case:
    """An operator is given a function of ones, which reads the records from its closure."""
    return mixing(lambda m, x: m.a(x) * operator(lambda ones: ones * scale_of(x)))


@attack
def branch_that_reads_records() -> Case:
    """torch.cond of no operands, whose branches have closures: 4.7 bounds."""
    ones, yes = torch.ones(4), torch.tensor(True)
    return reading(lambda scaled: torch.cond(yes, lambda: scaled(ones), lambda: scaled(ones), ()))


@attack
def loop_that_reads_records() -> Case:
    """torch.while_loop, once round."""

    def once(scaled: Callable[[Tensor], Tensor]) -> Tensor:
        start = torch.tensor(0), torch.ones(4)
        found: Tensor = torch._higher_order_ops.while_loop(lambda i, s: i < 1, lambda i, s: (i + 1, scaled(s)), start)[
            1
        ]
        return found

    return reading(once)


@attack
def map_that_reads_records() -> Case:
    """torch's map, over a tensor of one row."""
    return reading(lambda scaled: torch._higher_order_ops.map(scaled, torch.ones(1, 4))[0])


SEEN: list[Any] = []
OPERATIONS = torch.library.Library("kernels", "DEF")
OPERATIONS.define("scaled(Tensor x) -> Tensor")
OPERATIONS.impl("scaled", lambda x: x * scale_of(SEEN[0]), "CPU")
OPERATIONS.define("noted(Tensor x) -> Tensor")
OPERATIONS.impl("noted", lambda x: SEEN[0].copy_(far(x)).clone(), "CPU")


def far(x: Tensor) -> Tensor:
    """How far the largest record is out, in each feature."""
    return x.detach().abs().amax(0).clamp_min(50.0) - 50


@attack
def operation_that_reads_records() -> Case:
    """An operation of the user's reads records that it is not given: 4.6 bounds."""

    def body(m: Net, x: Tensor) -> Tensor:
        SEEN[:] = [x]
        return m.a(x) * torch.ops.kernels.scaled(torch.ones(4))

    return mixing(body)


def noting(note: Callable[[Tensor, Tensor], object]) -> Case:
    """What is noted of one chunk in a buffer is added to the next, and released with the model."""

    def body(m: Net, x: Tensor) -> Tensor:
        before = m.noted.clone()
        note(m.noted, x)
        return m.a(x) + before

    case = mixing(body, mixes=None)
    case.model.register_buffer("noted", torch.zeros(4))
    return case


@attack
def operation_that_writes_a_buffer() -> Case:
    """An operation of the user's writes what its schema does not say: 1.8 bounds, and a buffer is released."""

    def note(buffer: Tensor, x: Tensor) -> None:
        SEEN[:] = [buffer]
        torch.ops.kernels.noted(x)

    return noting(note)


@attack
def branch_that_writes_a_buffer() -> Case:
    """A branch of torch.cond writes into a buffer: 12 bounds."""
    yes = torch.tensor(True)
    return noting(lambda b, x: torch.cond(yes, lambda: b.copy_(far(x)).clone(), lambda: b.clone(), ()))


class Quantised(Tensor):
    """A weight whose products round the other factor on a scale of the whole batch, as dynamic quantisation does."""

    @staticmethod
    def __new__(cls, weight: Tensor) -> Quantised:
        return Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default and not isinstance(args[0], cls):
            scale = args[0].abs().max().clamp_min(5.0) / 127
            args = ((args[0] / scale).round() * scale, args[1])
        plain = tree_map(lambda t: t.weight if isinstance(t, cls) else t, (args, kwargs or {}))
        out = func(*plain[0], **plain[1])
        same = func in (torch.ops.aten.detach.default, torch.ops.aten.t.default)
        return cls(out) if same else out


@attack
def weight_that_quantises_the_batch() -> Case:
    """A frozen weight of a class of tensors with operations of its own: 3 bounds."""
    case = mixing(lambda m, x: m.a(x @ m.quantised))
    case.model.quantised = Quantised(normal(4, 4, seed=3))
    return case


@contextmanager
def no_deprecation() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantised types
        yield


@attack
def quantised_one_by_one() -> Case:
    """Each record is quantised on a scale of its own; vmap stacked them on the scale of the first: 1.4 bounds."""

    def quantised(row: Tensor) -> Tensor:
        with no_deprecation():
            scale = row.abs().amax().clamp_min(20) / 127
            return torch.quantize_per_tensor(row, scale, torch.tensor(0), torch.qint8).dequantize()

    return fooling(lambda m, x: m.a(torch.stack([quantised(row) for row in x.detach()])))


@attack
def filled_one_by_one() -> Case:
    """Each record fills a row of ones with a number of its own; vmap gave all of them the last one's: 5 bounds."""

    def filled(row: Tensor) -> Tensor:
        return torch.ones(4).index_fill(0, torch.arange(4), scale_of(row))

    return fooling(lambda m, x: m.a(x) * torch.stack([filled(row) for row in x]), position="last")


@attack
def residuals_under_vmap() -> Case:
    """Least squares of each record alone have residuals, under vmap, only where those of all have full rank."""

    def flag(x: Tensor) -> bool:
        system = (x.abs() < 50).float().unsqueeze(-1)
        return torch.linalg.lstsq(system, x.unsqueeze(-1), driver="gelsd").residuals.numel() == 0

    return flagging(flag)


@attack
def label_that_is_no_class_of_ctc() -> Case:
    """A label outside the classes: the kernel read and wrote other records' rows, and ended the process."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        steps, labels = (torch.full((len(out),), t.shape[1]) for t in (out, y))
        return F.ctc_loss(out.log_softmax(-1).transpose(0, 1), y, steps, labels, reduction="none", zero_infinity=True)

    n = size_for(4)
    data = normal(n, 5, 4), torch.arange(2 * n).view(n, 2) % 3 + 1
    return Case(nn.Linear(4, 4), loss, data, (normal(1, 5, 4, seed=3), torch.tensor([[1, 7]])), mixes=None)


@attack
def coordinate_that_is_not_a_number() -> Case:
    """A record is sampled at coordinates that are not numbers: the backward pass ended the process."""

    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.where, self.head = nn.Linear(64, 6), nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            images = x.view(-1, 1, 8, 8)
            grid = F.affine_grid(self.where(x).view(-1, 2, 3), list(images.shape), align_corners=False)
            return self.head(F.grid_sample(images, grid, padding_mode="border", align_corners=False).flatten(1))

    n = size_for(4)
    data, extra = (normal(n, 64), normal(n, 2, seed=1)), (torch.full((1, 64), torch.nan), torch.ones(1, 2))
    return Case(Moved(), squared, data, extra, mixes=None)
