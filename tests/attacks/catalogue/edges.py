"""Records at an edge, where the last bit of a float32 sum decides: computed by other kernels they are others."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.attacks.case import Case, Records, attack, linear, normal

WIDE = 64
ROWS = 16


class Edged(nn.Module):
    """Units with equal weights, whose ReLUs open or close together."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDE, WIDE, bias=False), nn.Linear(WIDE, 2, bias=False)
        with torch.no_grad():
            self.a.weight.copy_(normal(1, WIDE, seed=5).expand(WIDE, WIDE))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())


def record_at_the_edge() -> Tensor:
    """A record (1, WIDE) whose ReLUs are open in a chunk, and closed alone."""
    weight = Edged().a.weight.detach()

    def hidden(x: Tensor, rows: int) -> Tensor:
        return functional.linear(x.repeat(rows, 1), weight)

    for seed in range(10_000):
        x = normal(1, WIDE, seed=seed)
        x[0, -1] -= (x @ weight[0])[0] / weight[0, -1]
        if bool((hidden(x, ROWS) > 0).all()) and bool((hidden(x, 1) <= 0).all()):
            return x
    return normal(1, WIDE)  # on this machine sums are the same in a chunk and alone


@attack
def edge_beside_a_failure() -> Case:
    """An operation fails on one record and is caught; the others were then computed alone: 15 bounds for 15 records."""

    class Careful(Edged):
        def forward(self, x: Tensor) -> Tensor:
            with suppress(IndexError):
                functional.embedding(x.detach()[:, :1].abs().long(), x.new_ones(50, 1))
            return super().forward(x)

    n = ROWS - 1
    data = record_at_the_edge().repeat(n, 1), torch.ones(n, 2)
    return Case(Careful(), linear, data, (torch.full((1, WIDE), 60.0), torch.ones(1, 2)), width=ROWS, mixes=None)


class Pooled(nn.Module):
    """A ReLU on the sum of a record's numbers, which stand at its edge in one layout and not in another."""

    def __init__(self, edge: float) -> None:
        super().__init__()
        self.w, self.edge = nn.Parameter(torch.ones(1)), edge

    def forward(self, x: Tensor) -> Tensor:
        return (x.sum((1, 2))[:, None] * self.w - self.edge).relu()


def transposed(x: Tensor) -> Tensor:
    """The same numbers, columns of a record together in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@attack
def edge_of_a_full_chunk() -> Case:
    """A chunk that was filled up lay in memory otherwise than a full one: 16 bounds for 16 records."""
    for seed in range(1000):
        x = normal(1, 33, 29, seed=seed).repeat(ROWS, 1, 1)
        sums = x.sum((1, 2)), transposed(x).sum((1, 2))
        if bool((sums[0] != sums[1]).all()):
            break
    edge, y = float(torch.minimum(*sums)[0]), 100 * torch.ones(ROWS, 1)

    def dataset(records: Records) -> TensorDataset:
        return TensorDataset(transposed(records[0]), records[1])

    data, extra = (x[1:], y[1:]), (x[:1], y[:1])
    return Case(Pooled(edge), linear, data, extra, width=ROWS, mixes=False, dataset=dataset)
