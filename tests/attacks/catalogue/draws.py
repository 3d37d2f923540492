"""Random numbers that belong to a chunk, or to a place in it, and not to a record.

Which records share a chunk depends on all of them: given every coin, a record that comes first moves others to chunks
with other coins. In ``coins`` the sum over D is 0 whatever the coins of chunks are, so no pairing of them explains what
moves. Coins of a record's own come with it from D to D'.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attacks.case import Case, Net, attack, linear, mixing

CHUNKS, WIDE = 8, 16


class Head(nn.Module):
    """``body(self, x)`` around one linear map."""

    def __init__(self, body: Callable[[Head, Tensor], Tensor]) -> None:
        super().__init__()
        self.b, self.body = nn.Linear(WIDE, 2, bias=False), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def coins(body: Callable[[Head, Tensor], Tensor]) -> Case:
    """Gradients that cancel in each chunk of four of D, whatever is drawn for it, and not if all move on by one."""
    sizes = torch.tensor([10.0, 0, 0, -10, -10, 0, 0, 10]).repeat(CHUNKS)[: 4 * CHUNKS - 1]
    sizes[-3:] = 0
    data = torch.ones(len(sizes), WIDE), sizes[:, None] * torch.ones(2)
    return Case(Head(body), linear, data, (torch.ones(1, WIDE), torch.zeros(1, 2)), mixes=None, draws=True)


def turned(m: Head, x: Tensor, turn: float) -> Tensor:
    """Another direction for each number."""
    return m.b(x * (torch.arange(WIDE) * 10 * turn).cos())


@attack
def one_draw_for_a_chunk() -> Case:
    """Numbers that all records of a chunk are multiplied with: about 5 bounds in 8 chunks."""
    return coins(lambda m, x: m.b(x * torch.randn(WIDE)))


@attack
def one_draw_repeated() -> Case:
    """The same, expanded to a row for each record and copied, counts as drawn for each record."""
    return coins(lambda m, x: m.b(x * torch.randn(1, WIDE).expand(len(x), WIDE).clone()))


@attack
def draw_read_by_python() -> Case:
    """Python reads a draw, as for a layer that is left out at times."""
    return coins(lambda m, x: turned(m, x, float(torch.rand(()))))


@attack
def draw_of_python() -> Case:
    """The draw is one of Python's own."""
    return coins(lambda m, x: turned(m, x, random.random()))


@attack
def draw_of_numpy() -> Case:
    """The draw is one of numpy."""
    return coins(lambda m, x: turned(m, x, float(np.random.rand())))


@attack
def draw_of_a_generator_of_numpy() -> Case:
    """The draw is one of a generator that the model holds."""
    generator = np.random.default_rng(0)
    return coins(lambda m, x: turned(m, x, float(generator.random())))


@attack
def draw_of_a_generator_of_python() -> Case:
    """The same with a generator of Python's."""
    generator = random.Random(0)
    return coins(lambda m, x: turned(m, x, generator.random()))


@attack
def draw_of_a_generator_of_torch() -> Case:
    """The same with a generator of torch, and a tensor."""
    generator = torch.Generator().manual_seed(0)
    return coins(lambda m, x: m.b(x * torch.randn(WIDE, generator=generator)))


@attack
def dropped_connections() -> Case:
    """Dropout of the weights."""
    return coins(lambda m, x: F.linear(x, F.dropout(m.b.weight, 0.5)))


@attack
def seeded_in_every_pass() -> Case:
    """The pass seeds torch and draws a row for each record: 1.6 bounds in chunks of 4, 2.1 in chunks of 5."""

    def body(m: Net, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return m.a(x) + 10 * torch.randn(len(x), 4)

    return mixing(body, mixes=None)


@attack
def seeded_at_the_end_of_every_pass() -> Case:
    """The pass draws a row for each record, and then seeds torch for the next."""

    def body(m: Net, x: Tensor) -> Tensor:
        noise = torch.randn(len(x), 4)
        torch.manual_seed(0)
        return m.a(x) + 10 * noise

    return mixing(body, mixes=None, draws=True)


@attack
def generator_made_in_every_pass() -> Case:
    """The pass draws a row for each record from a generator that it makes: 1.6 and 2.1 bounds."""

    def body(m: Net, x: Tensor) -> Tensor:
        return m.a(x) + 10 * torch.randn(len(x), 4, generator=torch.Generator().manual_seed(0))

    return mixing(body, mixes=None)
