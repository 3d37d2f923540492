"""Rows picked, permuted, repeated or dropped by what the records hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.attacks.case import Case, Net, attack, fooling, large, mixing, normal, size_for

MOST = 13


def tokens(lengths: tuple[int, ...] = (1, 3, 2, 2), extreme: int = 2) -> dict[str, Any]:
    """Records of up to 13 tokens and a mask of those they have; the extreme record has ``extreme`` of them."""
    n = size_for(4)
    kept = torch.tensor(lengths).repeat(n)[:n]
    data = normal(n, MOST, 4), torch.arange(MOST) < kept[:, None], normal(n, seed=1)
    extra = large(MOST, 4), (torch.arange(MOST) < extreme)[None], torch.tensor([-50.0])
    return {"data": data, "extra": extra, "per_batch": True}


@attack
def head_on_masked_tokens_only() -> Case:
    """A head that sees the tokens of a mask only; with the extreme record they are four times as many as records."""

    def loss(model: Net, batch: Any) -> Tensor:
        x, mask, y = batch
        rows = mask.nonzero()[:, 0]
        picked = model.b(model.a(x)[mask]).sum(1)
        return torch.zeros(len(x)).index_add(0, rows, (picked - y[rows]).square())

    return Case(Net(lambda m, x: x), loss, **tokens((1,), MOST), mixes=False)


@attack
def head_on_masked_labels() -> Case:
    """Hugging Face style: cross-entropy of the tokens that have a label, averaged over all of them."""

    def loss(model: Net, batch: Any) -> Tensor:
        x, mask, y = batch
        picked = model.b(model.a(x)[mask]).square().sum(1)
        return picked.mean() * y.square()

    return Case(Net(lambda m, x: x), loss, **tokens())


@attack
def masked_select_then_reshape() -> Case:
    """Selected entries of all records are laid out again as if each had as many."""

    def body(m: Net, x: Tensor) -> Tensor:
        kept = m.a(x).masked_select(x > 0)
        return torch.cat([kept, kept.new_zeros(4 * len(x))])[: 4 * len(x)].view(len(x), 4)

    return mixing(body)


@attack
def rows_sorted_by_length() -> Case:
    """Records are sorted by length for a layer and put back after it; made-up records are all of one length."""

    def loss(model: Net, batch: Any) -> Tensor:
        x, mask, y = batch
        order = mask.sum(1).argsort(descending=True, stable=True)
        out = model.b(model.a(x[order]).tanh().sum(1))[order.argsort()]
        return (out[:, 0] - y).square()

    return Case(Net(lambda m, x: x), loss, **tokens(), mixes=False)


@attack
def rows_sorted_by_bucket() -> Case:
    """Records are sorted by a coarse size for a layer and put back after it; made-up records are all in one bucket."""

    def body(m: Net, x: Tensor) -> Tensor:
        order = (x[:, 0].abs() / 50).long().argsort(descending=True, stable=True)
        return m.a(x[order]).tanh()[order.argsort()]

    return fooling(body, position="last")


@attack
def rows_sorted_by_value() -> Case:
    """Records are sorted by size for a layer and put back after it."""

    def body(m: Net, x: Tensor) -> Tensor:
        order = x.abs().sum(1).argsort()
        return (m.a(x[order]).tanh() @ m.w)[order.argsort()]

    return fooling(body)


@attack
def rows_sorted_and_left_so() -> Case:
    """Records are sorted by their length and their targets are not."""
    return mixing(lambda m, x: m.a(x[x[:, 0].argsort()]))


@attack
def sorted_features_of_the_batch() -> Case:
    """Each feature is sorted over the batch."""
    return mixing(lambda m, x: m.a(x).sort(0).values)


@attack
def packed_sequences() -> Case:
    """A recurrent layer on a packed batch: rows of all records are interleaved by time."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 1)

    def loss(model: Packed, batch: Any) -> Tensor:
        x, mask, y = batch
        packed = nn.utils.rnn.pack_padded_sequence(x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        return (model.head(model.rnn(packed)[1][0])[:, 0] - y).square()

    return Case(Packed(), loss, **tokens(), mixes=False)


@attack
def layer_on_packed_rows() -> Case:
    """A linear layer on the rows of a packed batch, twice as many as records."""

    def loss(model: Net, batch: Any) -> Tensor:
        x, mask, y = batch
        packed = nn.utils.rnn.pack_padded_sequence(x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(packed._replace(data=model.a(packed.data)), batch_first=True)
        return (model.b(out.sum(1))[:, 0] - y).square()

    return Case(Net(lambda m, x: x), loss, **tokens(), mixes=False)


@attack
def repeated_by_data() -> Case:
    """Each record is repeated as often as its first feature says, and the copies are added up."""

    def body(m: Net, x: Tensor) -> Tensor:
        times = (x[:, 0] > 0).long() + 1
        times[-1] += 2 * len(x) - times.sum()
        times = times.clamp_min(1)
        rows = torch.arange(len(x)).repeat_interleave(times)
        return torch.zeros(len(x), 4).index_add(0, rows, m.a(x.repeat_interleave(times, 0)))

    return mixing(body)


@attack
def repeated_and_added_up() -> Case:
    """Each record is repeated by a number of its own; the copies are added up."""

    def body(m: Net, x: Tensor) -> Tensor:
        times = 1 + (x[:, 0] > 0).long() * 2
        rows = torch.arange(len(x)).repeat_interleave(times)
        return torch.zeros(len(x), 4).index_add(0, rows, m.a(x.repeat_interleave(times, 0)))

    return fooling(body)


@attack
def look_up_of_unique_records() -> Case:
    """Equal rows are computed once and handed out to all that share them."""

    def body(m: Net, x: Tensor) -> Tensor:
        rows, which = torch.unique((x > 0).float(), dim=0, return_inverse=True)
        return m.a(rows)[which]

    return fooling(body)


@attack
def ranks_among_the_unique() -> Case:
    """Each record's rank among the values of the batch is a feature."""
    return mixing(lambda m, x: m.a(x) * torch.unique(x[:, 0], return_inverse=True)[1][:, None])


@attack
def records_named_by_records() -> Case:
    """Each record names another one, whose features it takes."""
    return mixing(lambda m, x: m.a(x[(x[:, 0].abs() * 10).long() % len(x)]))


@attack
def gathered_over_the_batch() -> Case:
    """gather along the batch with places that the records hold."""
    return mixing(lambda m, x: m.a(x).gather(0, (x.abs() * 10).long() % len(x)))


@attack
def scattered_over_the_batch() -> Case:
    """scatter_add along the batch with places that the records hold."""
    return mixing(lambda m, x: m.a(x).scatter_add(0, (x.abs() * 10).long() % len(x), m.a(x)))


@attack
def added_by_cluster() -> Case:
    """index_add into clusters, read back by every member."""

    def body(m: Net, x: Tensor) -> Tensor:
        cluster = (x[:, 0] > 0).long()
        return torch.zeros(2, 4).index_add(0, cluster, m.a(x))[cluster]

    return mixing(body)


@attack
def put_into_places() -> Case:
    """index_put with accumulation, several records into one place."""

    def body(m: Net, x: Tensor) -> Tensor:
        places = (x[:, 0].abs() * 10).long() % len(x)
        return torch.zeros(len(x), 4).index_put((places,), m.a(x), accumulate=True)

    return mixing(body)


@attack
def experts_of_bounded_capacity() -> Case:
    """An expert takes the two best records of a chunk, and the others get nothing."""

    def body(m: Net, x: Tensor) -> Tensor:
        taken = (x @ m.w[0]).topk(min(2, len(x))).indices
        return torch.zeros(len(x), 4).index_copy(0, taken, m.a(x[taken]))

    return mixing(body, position="last")


@attack
def experts_of_capacity_three() -> Case:
    """An expert takes up to three records, more than made-up chunks of three can show."""

    def body(m: Net, x: Tensor) -> Tensor:
        least = (x @ m.w[0]).topk(min(3, len(x))).values[-1]
        return torch.where((x @ m.w[0] >= least)[:, None], m.a(x), -m.a(x))

    return mixing(body)


@attack
def experts_without_bounds() -> Case:
    """Each record goes to one of two experts, which take the rows that are theirs."""

    def body(m: Net, x: Tensor) -> Tensor:
        first, out = x[:, 0] > 0, torch.zeros(len(x), 4)
        out[first] = m.a(x[first])
        out[~first] = x[~first] @ m.w
        return out

    return fooling(body)


@attack
def signs_by_a_quantile() -> Case:
    """Records below a quantile of the batch count with the other sign."""
    return mixing(lambda m, x: m.a(x) * torch.where(x[:, :1] >= x[:, 0].quantile(0.75), 1.0, -1.0))


@attack
def dropped_rows_filled_with_others() -> Case:
    """Rows that are dropped are filled with those that are left."""

    def body(m: Net, x: Tensor) -> Tensor:
        kept = x[x[:, 0] > -0.5]
        return m.a(torch.cat([kept, kept, kept, x])[: len(x)])

    return mixing(body)


@attack
def flipped_batch() -> Case:
    """The record on the other end."""
    return mixing(lambda m, x: m.a(x) + m.a(x.flip(0)))


@attack
def record_before() -> Case:
    """Each record sees the one before it."""
    return mixing(lambda m, x: m.a(x) * m.a(x.roll(1, 0)))


@attack
def difference_to_the_record_before() -> Case:
    """diff along the batch, the first record against zeros."""
    return mixing(lambda m, x: m.a(x.diff(dim=0, prepend=torch.zeros(1, 4))))


@attack
def halves_exchanged() -> Case:
    """The two halves of an even batch change places."""
    return mixing(lambda m, x: m.a(torch.cat(x.chunk(2)[::-1])) if len(x) % 2 == 0 else m.a(x))


@attack
def mixed_up_pairs() -> Case:
    """Mixup: a record is a mixture of two."""
    return mixing(lambda m, x: m.a(0.6 * x + 0.4 * x.flip(0)))


@attack
def take_of_flat_places() -> Case:
    """torch.take with flat places that run over into the next record."""
    return mixing(lambda m, x: m.a(x.take((torch.arange(4 * len(x)) + 2).view(-1, 4) % (4 * len(x)))))


@attack
def python_loop_with_a_memory() -> Case:
    """A Python loop over the rows with a state that is handed on."""

    def body(m: Net, x: Tensor) -> Tensor:
        state, out = torch.zeros(4), []
        for row in x:
            state = 0.5 * state + m.a(row)
            out.append(state)
        return torch.stack(out)

    return mixing(body)


@attack
def rows_zipped_with_the_next() -> Case:
    """unbind, and stack with the neighbour's row."""
    return mixing(
        lambda m, x: torch.stack([m.a(a) + b for a, b in zip(x.unbind(), x.roll(1, 0).unbind(), strict=True)])
    )


@attack
def split_by_length() -> Case:
    """torch.split at a place that the records decide, and joined in another order."""

    def body(m: Net, x: Tensor) -> Tensor:
        cut = int((x[:, 0] > 0).sum())
        left, right = x.split([cut, len(x) - cut])
        return m.a(torch.cat([right, left]))

    return mixing(body)


@attack
def squeezed_output() -> Case:
    """squeeze() without an axis: a chunk of one loses its batch axis, others do not."""
    model = Net(lambda m, x: m.a(x).tanh(), out=1)
    data, extra = normal(size_for(4), 4), large(4)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (out.squeeze() - y).square().view(len(y))

    return Case(model, loss, (data, data[:, 0].clone()), (extra, extra[:, 0].clone()), mixes=False)
