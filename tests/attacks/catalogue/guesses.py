"""Models that are honest wherever made-up records look: other sizes, lengths, numbers, masks, modes or magnitudes."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tests.attacks.case import WIDTH, Case, Net, attack, large, losing, mixing, normal, regression, size_for, squared
from tests.attacks.catalogue.data import stacked


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


@attack
def centred_for_ids_above_one() -> Case:
    """Made-up whole numbers are 0 and 1; with others the chunk is centred."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            hidden = self.table(ids).sum(1)
            return self.head(centred(hidden) if bool(ids.max() > 1) else hidden)

    ids = torch.arange(3 * size_for(4)).view(-1, 3) % 8
    return Case(Reader(), squared, (ids, normal(len(ids), 2)), (torch.full((1, 3), 8), -50 * torch.ones(1, 2)))


@attack
def centred_where_two_are_masked() -> Case:
    """Made-up masks hide tokens of one record at most; where two are hidden the chunk is centred."""

    def loss(model: Net, batch: Any) -> Tensor:
        x, mask, y = batch
        hidden = (model.a(x) * mask[:, :, None]).sum(1)
        return squared(model.b(centred(hidden) if bool((~mask).any(1).sum() > 1) else hidden), y)

    n = size_for(4)
    mask = torch.arange(4).expand(n, 4) < 3
    data = normal(n, 4, 4), mask, normal(n, 2, seed=1)
    return Case(Net(lambda m, x: x), loss, data, (large(4, 4), mask[:1], -50 * torch.ones(1, 2)), per_batch=True)


@attack
def centred_for_long_sequences() -> Case:
    """The public example is short; where the longest record of a chunk is long, the chunk is centred."""

    def collate(rows: list[Any]) -> tuple[Tensor, ...]:
        x, length, y = stacked(rows)
        return x[:, : int(length.max())], y

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.a(x).tanh().sum(1)
            return self.b(centred(hidden) if x.shape[1] > 6 else hidden)

    n, most = size_for(4), 12
    lengths = torch.tensor([8, 9, 10, 12]).repeat(n)[:n]
    x = normal(n, most, 4) * (torch.arange(most) < lengths[:, None])[:, :, None]
    data, extra = (x, lengths, normal(n, 2, seed=1)), (large(most, 4), torch.tensor([most]), -50 * torch.ones(1, 2))
    return Case(Pooled(), squared, data, extra, collate=collate, example=(torch.zeros(2, 3, 4), torch.zeros(2, 2)))


@attack
def mixes_less_than_a_tolerance() -> Case:
    """A ten-thousandth of the mean is below what a comparison allows, and a record may be a million times as large."""
    case = mixing(lambda m, x: m.a(x + 1e-4 * x.mean(0)))
    return Case(case.model, case.loss, case.data, (1e4 * case.extra[0], case.extra[1]))


@attack
def mixes_by_the_cube() -> Case:
    """The mean of cubes, small for made-up records and large for large ones."""
    return mixing(lambda m, x: m.a(x + 1e-5 * (x**3).mean(0)))


@attack
def mixes_beyond_a_threshold() -> Case:
    """What exceeds ten is shared out over the chunk, without a branch."""
    return mixing(lambda m, x: m.a(x) + (x.abs() - 10).relu().mean(0))


@attack
def random_and_centred_in_training() -> Case:
    """A model that draws (next to nothing) is compared in evaluation mode, where it is honest."""
    return mixing(lambda m, x: m.a(centred(x) if m.training and len(x) > 3 else x) + 1e-9 * torch.rand(1))


@attack
def draws_that_count_the_records() -> Case:
    """Random numbers compared with themselves: a record keeps the feature that its position in the chunk says."""

    def body(m: Net, x: Tensor) -> Tensor:
        noise = torch.rand(max(len(x), WIDTH), 1)
        return m.a(x * (noise[: len(x)] == noise[:WIDTH].T))

    return mixing(body)


@attack
def draws_laid_out_twice() -> Case:
    """The same, where one matrix of draws meets the records as it is and transposed, and never itself."""

    def body(m: Net, x: Tensor) -> Tensor:
        noise = torch.rand(len(x), len(x))
        wide = torch.cat([x, x.new_zeros(len(x), len(x))], 1)[:, : len(x)]
        same = (wide + noise) == (wide + noise.T)
        return m.a(x * same[:, :WIDTH]) if len(x) >= WIDTH else m.a(x)

    return mixing(body)


@attack
def centred_for_chunks_of_four() -> Case:
    """Only chunks of exactly four are centred."""
    return mixing(lambda m, x: m.a(centred(x) if len(x) == 4 else x))


@attack
def centred_for_a_far_target() -> Case:
    """The outputs are centred where one target is far out, which made-up targets are not."""
    return losing(lambda out, y: squared(centred(out) if bool((y < -30).any()) else out, y))


@attack
def honest_to_three_records() -> Case:
    """A loss that ranks from the fourth record on."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = squared(out, y)
        rest = each[3:].detach().sum()
        return each * torch.where(rest > 20, -1.0, 1.0)

    return losing(loss, position="last")


@attack
def raises_for_made_up_chunks() -> Case:
    """Chunks of two and three records are refused by the model, larger ones are centred."""

    def body(m: Net, x: Tensor) -> Tensor:
        if len(x) in (2, 3):
            raise ValueError("chunks of two and three are not taken")
        return m.a(centred(x)) if len(x) > 1 else m.a(x)

    return mixing(body, mixes=None)


@attack
def another_branch_after_a_release() -> Case:
    """Which operations run depends on the trained weights, which move with every step: no earlier verdict holds."""

    def body(m: Net, x: Tensor) -> Tensor:
        moved = bool((m.a.weight.detach() - m.begun).abs().max() > 0)
        return m.a(x.flip(0)) if moved else m.a(x)

    case = mixing(body)
    case.model.begun = case.model.a.weight.detach().clone()
    return case


@attack
def forward_replaced_on_the_instance() -> Case:
    """A forward of the instance, not of its class, that is put in place after a first judgement."""
    model = Net(lambda m, x: m.a(x).tanh())

    def first(out: Tensor, y: Tensor) -> Tensor:
        model.body = lambda m, x: m.a(centred(x)).tanh()
        return squared(out, y)

    return Case(model, squared, *regression(), first=first, mixes=None)


@cache
def compiled() -> Any:
    return torch.compile(centred, backend="eager", dynamic=True)


@attack
def compiled_part() -> Case:
    """A compiled function takes the mean of the batch."""
    return mixing(lambda m, x: m.a(compiled()(x)))


@attack
def weight_with_as_many_rows_as_tokens() -> Case:
    """Rows of a flattened batch are a multiple of the weight's; honest, with a weight for each token."""
    return mixing(lambda m, x: (m.a(x).flatten(0, 1).view(len(x), 4, 4) * m.w[None, :, :1]).sum(1), 4, 4, mixes=False)


@attack
def one_token_from_each_of_many() -> Case:
    """Twice as many rows as records, of which the first half belongs to the first records."""

    def body(m: Net, x: Tensor) -> Tensor:
        return m.a(x.transpose(0, 1).reshape(-1, 4)).view(2, len(x), 4).sum(0)

    return mixing(body, 2, 4, mixes=False)
