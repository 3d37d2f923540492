"""Products with as many rows in the weight as records in the chunk: honest, but sizes tell the wrong thing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attacks.case import Case, attack, fooling, mixing, normal, regression, size_for, squared


@attack
def einsum_with_an_ellipsis() -> Case:
    """The letters of the records are not written out."""
    return fooling(lambda m, x: torch.einsum("...i,io->...o", x, m.w))


@attack
def implicit_einsum() -> Case:
    """The letters of the result are not written out."""
    return fooling(lambda m, x: torch.einsum("bi,io", x, m.w))


@attack
def einsum_with_the_weight_first() -> Case:
    """The first operand's rows are no records."""
    return fooling(lambda m, x: torch.einsum("io,ni->no", m.w, x))


@attack
def einsum_with_records_last() -> Case:
    """The records lie on the last axis of operand and result."""
    return fooling(lambda m, x: torch.einsum("in,io->on", x.T, m.w).T)


@attack
def tensordot_by_count() -> Case:
    """tensordot over one axis."""
    return fooling(lambda m, x: torch.tensordot(x, m.w, 1))


@attack
def tensordot_with_the_weight_first() -> Case:
    """tensordot over named axes, the weight first."""
    return fooling(lambda m, x: torch.tensordot(m.w, x, dims=([0], [1])).T)


@attack
def chain_of_products() -> Case:
    """multi_dot picks the order of its products by sizes."""
    return fooling(lambda m, x: torch.linalg.multi_dot([x, m.w, m.v]))


@attack
def old_chain_of_products() -> Case:
    """The product of three matrices in one call, the records in the middle."""
    return fooling(lambda m, x: torch.linalg.multi_dot([m.w.T, x.T, torch.eye(len(x))]).T)


@attack
def inner_product_of_rows() -> Case:
    """torch.inner contracts the last axes of both."""
    return fooling(lambda m, x: torch.inner(x, m.w))


@attack
def transposed_product() -> Case:
    """Weight times records as columns."""
    return fooling(lambda m, x: (m.w @ x.T).T)


@attack
def addmm_of_a_square() -> Case:
    """A bias matrix of as many rows as the chunk would be a row for each record; one row is spread here."""
    return fooling(lambda m, x: torch.addmm(m.v[0], x, m.w))


@attack
def product_of_a_repeated_weight() -> Case:
    """A weight repeated once for each record, in a batched product."""
    return fooling(lambda m, x: torch.bmm(x[:, None], m.w.expand(len(x), -1, -1))[:, 0])


@attack
def product_of_two_weights_and_a_record() -> Case:
    """A bilinear form with three operands in one einsum."""
    return fooling(lambda m, x: torch.einsum("ni,ij,jo->no", x, m.w, m.v))


@attack
def weight_scaled_by_a_row() -> Case:
    """A weight times a vector of as many numbers as there are records."""
    return fooling(lambda m, x: x @ (m.w * m.v[0]) + m.v[1])


@attack
def tokens_as_many_as_records() -> Case:
    """Tokens, features and records are as many: products over tokens and over features look alike."""
    return fooling(lambda m, x: torch.einsum("nti,ts->nsi", x @ m.w, m.v).sum(1), 4, 4)


@attack
def row_of_a_weight_for_each_position() -> Case:
    """Row j of the weight is for the record at position j: what a record adds depends on who is before it."""
    return mixing(lambda m, x: m.w.repeat(9, 1)[: len(x)] * x)


@attack
def weight_as_large_as_a_full_chunk() -> Case:
    """A full chunk meets the weight entry by entry, a smaller one its first row."""
    return mixing(lambda m, x: x * (m.w if len(x) == len(m.w) else m.w[:1]))


@attack
def constant_row_for_each_position() -> Case:
    """A constant of n rows is added: the place in the batch is a feature."""
    table = 20 * normal(64, 4, seed=9)
    return mixing(lambda m, x: m.a(x) + table[: len(x)])


@attack
def bias_for_each_position() -> Case:
    """addmm with a trained row for each position of the batch."""
    return mixing(lambda m, x: torch.addmm(m.v.repeat(9, 1)[: len(x)], x, m.w))


@attack
def product_with_the_records_themselves() -> Case:
    """x^T w mixes records wherever the chunk has as many records as features, and only there."""
    return mixing(lambda m, x: x.T @ m.w if len(x) == 4 else x @ m.w)


@attack
def solved_by_the_batch() -> Case:
    """The records are whitened by the inverse of their own second moments."""
    return mixing(lambda m, x: torch.linalg.solve(x.T @ x + torch.eye(4), m.a(x).T).T)


@attack
def hidden_weights_of_the_batch() -> Case:
    """A hypernetwork whose weights are made of the mean record, used for all."""
    return mixing(lambda m, x: x @ torch.outer(m.a(x).mean(0), m.w[0]))


@attack
def bilinear_of_a_record_and_the_next() -> Case:
    """F.bilinear of each record and its neighbour."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return F.bilinear(x, x.roll(1, 0), self.weight)

    return Case(Pairs(), squared, *regression())


@attack
def masks_as_many_as_records() -> Case:
    """A weight indexed by the labels of the records, as many as it has rows."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return (model.a(x) * model.w[y]).sum(1) + model(x).sum(1)  # type: ignore[operator,index]

    data, extra = regression()
    labels, label = torch.arange(size_for(4)) % 4, torch.tensor([3])
    from tests.attacks.case import Net

    return Case(Net(lambda m, x: m.a(x)), loss, (data[0], labels), (extra[0], label), per_batch=True, mixes=False)
