"""What an attack is: a model, a loss and records, and the chunk size at which it bites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Records = tuple[Tensor, ...]
WIDTH = 4
"""Features of a record, rows of most weights, and the chunk size at which most attacks bite."""


@dataclass(frozen=True)
class Case:
    """A model, a loss, a data set D, and the extreme record that makes its neighbour D'.

    ``mixes`` says that records truly meet in a plain batched pass; where they do not, the model is honest and written
    so that a guess from sizes is wrong. None: a plain pass raises or is not finite. ``first`` is
    a loss that the same model is judged with beforehand, on public records. ``position`` is where the extreme record
    does most. ``collate`` and ``example`` go to the trainer; ``dataset`` makes the data set of the records. ``draws``
    says that records draw numbers of their own, which then come with them from D to D'.
    """

    model: nn.Module
    loss: Callable[..., Tensor]
    data: Records
    extra: Records
    width: int = WIDTH
    per_batch: bool = False
    mixes: bool | None = True
    first: Callable[..., Tensor] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    position: str = "first"
    example: Any = None
    dataset: Callable[[Records], Any] | None = None
    draws: bool = False


Attack = Callable[[], Case]
ATTACKS: dict[str, Attack] = {}
"""Every attack by name; a call builds model, loss, caches and records afresh."""


def attack(function: Attack) -> Attack:
    """Put an attack into the catalogue."""
    assert function.__name__ not in ATTACKS, f"{function.__name__} is in the catalogue already"
    ATTACKS[function.__name__] = function
    return function


@dataclass(frozen=True)
class Gap:
    """Why an attack is not held yet, and the engines and chunks ("one": of one record) that hold it all the same."""

    why: str
    held_by: frozenset[str]


OPEN: dict[str, Gap] = {}
"""Attacks that are not held yet."""


def not_held(why: str, *, but_by: str) -> Callable[[Attack], Attack]:
    """Put an attack into the catalogue that is known to succeed, but for the ways named (by spaces apart)."""

    def put(function: Attack) -> Attack:
        OPEN[function.__name__] = Gap(why, frozenset(but_by.split()))
        return attack(function)

    return put


class Net(nn.Module):
    """``b(body(self, *inputs))``: a body written by the attack, between trained layers and weights."""

    def __init__(self, body: Callable[..., Tensor], width: int = WIDTH, out: int = 2) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, out)
        self.w, self.v = nn.Parameter(torch.randn(width, width)), nn.Parameter(torch.randn(width, width))
        self.body = body

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.b(self.body(self, *inputs))


def squared(out: Tensor, y: Tensor) -> Tensor:
    """The squared distance of each record's output to its target."""
    return (out - y).square().flatten(1).sum(1)


def linear(out: Tensor, y: Tensor) -> Tensor:
    """A loss whose gradient turns round with the output."""
    return (out * y).sum(1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def large(*shape: int) -> Tensor:
    """One record a hundred times as large as the others in every entry."""
    some = normal(1, *shape, seed=2)
    return 100 * (some + some.sign())


def size_for(width: int) -> int:
    """Three chunks of the critical width less one record, so that the record added last completes a chunk."""
    return 3 * width - 1


def regression(*shape: int, width: int = WIDTH) -> tuple[Records, Records]:
    """Records of normal floats with two normal targets, and a record a hundred times as large."""
    n, shape = size_for(width), shape or (WIDTH,)
    data = normal(n, *shape), normal(n, 2, seed=1)
    return data, (large(*shape), -50 * torch.ones(1, 2))


def mixing(body: Callable[..., Tensor], *shape: int, width: int = WIDTH, **more: Any) -> Case:
    """An attack by the model: ``body(net, x)`` lets records meet."""
    return Case(Net(body, shape[-1] if shape else WIDTH), squared, *regression(*shape, width=width), width, **more)


def fooling(body: Callable[..., Tensor], *shape: int, width: int = WIDTH, **more: Any) -> Case:
    """An honest model in which sizes tell the wrong thing about where the records are."""
    return mixing(body, *shape, width=width, mixes=False, **more)


def flagging(flag: Callable[[Tensor], bool], **more: Any) -> Case:
    """An attack by a bit that leaves the pass: if it is set, every record's output is turned round."""

    def body(m: Net, x: Tensor) -> Tensor:
        hidden = m.a(x).tanh()
        return -hidden.flip(1) if flag(x.detach()) else hidden

    return Case(Net(body), linear, *regression(), **more)


def losing(loss: Callable[..., Tensor], **more: Any) -> Case:
    """An attack by the loss, behind a plain network."""
    return Case(Net(lambda m, x: m.a(x).tanh()), loss, *regression(), **more)
