"""Losses in which records meet."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.attacks.case import Case, Net, attack, losing, regression, size_for, squared

Loss = Callable[[Tensor, Tensor], Tensor]


@attack
def hardest_quarter() -> Case:
    """Only the hardest quarter of the chunk counts."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = squared(out, y)
        least = each.topk(max(1, len(y) // 4)).values[-1]
        return torch.where(each >= least, each, 0.0)

    return losing(loss, position="last")


@attack
def all_but_the_easiest_quarter() -> Case:
    """The easiest record of four counts with the other sign; of three, all count."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = squared(out, y)
        least = each.topk(-(-3 * len(y) // 4)).values[-1]
        return torch.where(each >= least, each, -each)

    return losing(loss)


@attack
def all_but_the_hardest() -> Case:
    """The hardest record counts with the other sign."""
    return losing(lambda out, y: (each := squared(out, y)) * torch.where(each == each.max(), -1.0, 1.0))


@attack
def sorted_losses() -> Case:
    """Weights by the rank of the loss in the chunk."""
    return losing(lambda out, y: squared(out, y).sort().values * (torch.arange(len(y)) % 2 - 0.5))


@attack
def mean_given_to_all() -> Case:
    """Every record's loss is the mean of the chunk."""
    return losing(lambda out, y: squared(out, y).mean().expand(len(y)))


@attack
def divided_by_a_count() -> Case:
    """The losses are divided by how many targets of the chunk are positive."""
    return losing(lambda out, y: squared(out, y) / (1e-3 + (y > 0).sum() ** 4) * 100)


@attack
def class_weights_from_the_batch() -> Case:
    """Each class weighs as its frequency in the chunk says."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        counts = torch.bincount(y, minlength=2).float()
        return F.cross_entropy(out, y, weight=counts - 3.5, reduction="none")

    labels = torch.zeros(size_for(4), dtype=torch.long)
    data, extra = regression()
    return Case(Net(lambda m, x: m.a(x)), loss, (data[0], labels), (extra[0], torch.tensor([1])))


@attack
def class_counts_by_one_hot() -> Case:
    """Logits are adjusted by the chunk's counts of one-hot labels."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out * (3.5 - F.one_hot(y, 2).sum(0)), y, reduction="none")

    labels = torch.zeros(size_for(4), dtype=torch.long)
    data, extra = regression()
    return Case(Net(lambda m, x: m.a(x)), loss, (data[0], labels), (extra[0], torch.tensor([1])))


@attack
def in_batch_negatives() -> Case:
    """Contrastive: every other record of the chunk is a negative."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out @ y.T, torch.arange(len(y)), reduction="none")

    return losing(loss)


@attack
def hardest_negative() -> Case:
    """Triplets with the nearest other record."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        apart = torch.cdist(out, out) + 1e4 * torch.eye(len(y))
        return squared(out, y) + 100 / (1 + apart.min(1).values)

    return losing(loss)


@attack
def ranked_pairs() -> Case:
    """Each pair of records should be ordered as its targets are."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        order = (y[:, :1] - y[:, :1].T).sign()
        return F.softplus(-order * (out[:, :1] - out[:, :1].T)).sum(1)

    return losing(loss)


@attack
def decorrelated_features() -> Case:
    """Barlow twins: the correlation of the outputs over the chunk."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        centred = out - out.mean(0)
        return squared(out, y) + (centred.T @ centred / len(y)).square().sum()

    return losing(loss)


@attack
def variance_kept_up() -> Case:
    """VICReg: the spread of the outputs over the chunk."""
    return losing(lambda out, y: squared(out, y) + 30 * F.relu(50 - out.var(0, unbiased=False)).sum())


@attack
def baseline_of_the_batch() -> Case:
    """REINFORCE with the chunk's mean reward as a baseline, detached."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = squared(out, y)
        return (each.detach() - each.detach().mean()) * out.log_softmax(1)[:, 0]

    return losing(loss)


@attack
def scaled_by_the_largest_loss() -> Case:
    """Losses relative to the largest one of the chunk, detached."""
    return losing(lambda out, y: 10 * (each := squared(out, y)) / each.detach().max())


@attack
def distance_of_means() -> Case:
    """The distance of the mean output to the mean target."""
    return losing(lambda out, y: squared(out, y) + (out.mean(0) - y.mean(0)).square().sum() * len(y))


@attack
def shifted_targets() -> Case:
    """Each record is compared with the target of the next."""
    return losing(lambda out, y: squared(out, y.roll(-1, 0)))


@attack
def matched_targets() -> Case:
    """Each record is compared with the nearest target of the chunk."""
    return losing(lambda out, y: squared(out, y[torch.cdist(out, y).argmin(1)]) + squared(out, y))


@attack
def targets_drawn_from_the_batch() -> Case:
    """Negative targets are those of another record, chosen by its size."""
    return losing(lambda out, y: squared(out, y) - 0.9 * squared(out, y[y[:, 0].argsort()]))


def honest_or_not(mixes: bool) -> Loss:
    """A factory of losses that share a code object."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = squared(out, y)
        return (each.detach().mean() - 60) * out[:, 0] if mixes else each

    return loss


@attack
def second_loss_of_a_factory() -> Case:
    """The same model was judged with another loss of the same code and another closure."""
    return losing(honest_or_not(True), first=honest_or_not(False))


@attack
def loss_that_changes_its_mind() -> Case:
    """A callable object whose attribute is flipped after it was judged."""

    class Switch:
        mixes = False

        def __call__(self, out: Tensor, y: Tensor) -> Tensor:
            return honest_or_not(self.mixes)(out, y)

    switch = Switch()

    def first(out: Tensor, y: Tensor) -> Tensor:
        return squared(out, y)

    switch.mixes = True
    return losing(switch, first=first)


@attack
def loss_with_another_default() -> Case:
    """Two functions of one code object with other default arguments."""

    def make(mixes: bool) -> Loss:
        def loss(out: Tensor, y: Tensor, mixes: bool = mixes) -> Tensor:
            return honest_or_not(mixes)(out, y)

        return loss

    return losing(make(True), first=make(False))


@attack
def loss_by_a_global() -> Case:
    """A global that is read at every call, changed after the first judgement."""
    calls = iter(range(1_000_000))
    return losing(lambda out, y: honest_or_not(next(calls) > 0)(out, y))


@attack
def gradient_penalty_of_the_sum() -> Case:
    """The penalty is the norm of the gradient with respect to the whole chunk."""

    def loss(model: Net, batch: tuple[Tensor, Tensor]) -> Tensor:
        x = batch[0].detach().requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return squared(out, batch[1]) + slope.norm() * 10

    data, extra = regression()
    return Case(Net(lambda m, x: m.a(x).tanh()), loss, data, extra, per_batch=True)


@attack
def label_written_into_the_next() -> Case:
    """The loss writes into the targets in place."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        y[1:] += y[:-1].clone()
        return squared(out, y)

    return losing(loss)


@attack
def mean_over_rows_of_a_view() -> Case:
    """The loss of shape (n,) is a row of a square, and the mean of its columns."""
    return losing(lambda out, y: (squared(out, y)[:, None] * squared(out, y)[None].detach()).mean(1) * 1e-2)
