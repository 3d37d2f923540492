"""Layers of torch given the batch on an axis that is not theirs, or options that reach over the batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attacks.case import Case, Net, attack, fooling, mixing, normal, regression, size_for, squared


class Layered(nn.Module):
    """A layer, how it is called, and a head."""

    def __init__(self, layer: nn.Module, call: Any) -> None:
        super().__init__()
        self.layer, self.call, self.head = layer, call, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.call(self.layer, x))


def layered(layer: nn.Module, call: Any, *shape: int, mixes: bool = True) -> Case:
    return Case(Layered(layer, call), squared, *regression(*shape), mixes=mixes)


@attack
def recurrent_over_the_batch() -> Case:
    """A GRU without batch_first on (n, T, d): the batch is its time, and n = T."""
    return layered(nn.GRU(4, 4), lambda layer, x: layer(x)[0].sum(1), 4, 4)


@attack
def lstm_on_one_sequence() -> Case:
    """An LSTM on the batch as one unbatched sequence."""
    return layered(nn.LSTM(4, 4), lambda layer, x: layer(x)[0])


@attack
def recurrent_last_step_of_the_batch() -> Case:
    """The last hidden state of an RNN that ran over the batch, given to all tokens."""
    return layered(nn.RNN(4, 4), lambda layer, x: layer(x)[1][0].sum(0) + x.sum(1), 4, 4)


@attack
def attention_without_batch_first() -> Case:
    """nn.MultiheadAttention without batch_first on (n, T, d), n = T."""
    return layered(nn.MultiheadAttention(4, 2), lambda layer, x: layer(x, x, x)[0].sum(1), 4, 4)


@attack
def attention_on_one_sequence() -> Case:
    """nn.MultiheadAttention on the batch as one unbatched sequence."""
    return layered(nn.MultiheadAttention(4, 2, batch_first=True), lambda layer, x: layer(x, x, x)[0])


@attack
def transformer_without_batch_first() -> Case:
    """A transformer layer without batch_first on (n, T, d), n = T."""
    return layered(nn.TransformerEncoderLayer(4, 2, 8, 0.0), lambda layer, x: layer(x).sum(1), 4, 4)


@attack
def convolution_over_the_batch() -> Case:
    """conv1d whose length is the batch."""
    return layered(nn.Conv1d(4, 4, 3, padding=1), lambda layer, x: layer(x.T[None])[0].T)


@attack
def batch_as_channels() -> Case:
    """conv1d whose channels are the records of a full chunk."""
    return layered(nn.Conv1d(4, 4, 1), lambda layer, x: layer(x[None])[0] if len(x) == 4 else x)


@attack
def groups_for_each_record() -> Case:
    """conv1d with the records as channels and a group for each: a filter for each position."""

    def body(m: Net, x: Tensor) -> Tensor:
        filters = m.w.repeat(9, 1)[: len(x), None, :1]
        return F.conv1d(m.a(x)[None], filters, groups=len(x))[0]

    return mixing(body)


@attack
def one_filter_in_groups() -> Case:
    """conv1d with the records as channels, a group each and one filter for all: honest."""
    return fooling(lambda m, x: F.conv1d(x[None], m.w[:1, None, :1].expand(len(x), 1, 1), groups=len(x))[0])


@attack
def image_of_the_batch() -> Case:
    """conv2d on an image whose rows are the records."""
    return layered(nn.Conv2d(1, 1, 3, padding=1), lambda layer, x: layer(x[None, None])[0, 0])


@attack
def channel_shuffle_of_the_batch() -> Case:
    """channel_shuffle with the records as channels."""

    def body(m: Net, x: Tensor) -> Tensor:
        return m.a(F.channel_shuffle(x[None, :, :, None], 2)[0, :, :, 0] if len(x) % 2 == 0 else x)

    return mixing(body)


@attack
def bags_with_offsets_by_data() -> Case:
    """An embedding bag over all ids of the chunk, cut where the records say."""

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(9, 4, mode="sum"), nn.Linear(4, 2)

    def loss(model: Bags, batch: Any) -> Tensor:
        ids, lengths, y = batch
        ends = lengths.cumsum(0)
        return squared(model.head(model.bag(ids.flatten(), ends - lengths)), y)

    n = size_for(4)
    lengths = torch.tensor([2, 4, 3, 3]).repeat(n)[:n]
    data = torch.arange(4 * n).view(n, 4) % 9, lengths, normal(n, 2)
    extra = torch.full((1, 4), 8), torch.tensor([1]), -50 * torch.ones(1, 2)
    return Case(Bags(), loss, data, extra, per_batch=True)


@attack
def bag_of_everybody() -> Case:
    """One embedding bag for the ids of all records."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            shared = F.embedding_bag(ids.view(1, -1), self.table.weight, mode="sum")
            return self.head(self.table(ids).sum(1) * shared)

    ids = torch.arange(3 * size_for(4)).view(-1, 3) % 8
    return Case(Bag(), squared, (ids, normal(len(ids), 2)), (torch.full((1, 3), 8), -50 * torch.ones(1, 2)))


@attack
def gradients_scaled_by_frequency() -> Case:
    """The functional embedding divides gradients by how often an id is in the batch."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(1e-3 * torch.randn(9, 2))

        def forward(self, ids: Tensor) -> Tensor:
            return F.embedding(ids, self.table, scale_grad_by_freq=True).sum(1)

    ids = torch.zeros(size_for(4), 1, dtype=torch.long)
    y = 0.4 * torch.ones(len(ids), 2)
    return Case(Scaled(), squared, (ids, y), (ids[:1], y[:1]), mixes=False)


@attack
def upsampled_records() -> Case:
    """grid_sample from an image of the batch, at places of its own."""

    def body(m: Net, x: Tensor) -> Tensor:
        grid = torch.stack([x.tanh(), x.flip(1).tanh()], -1)[None]
        return m.a(F.grid_sample(x[None, None], grid, align_corners=False)[0, 0])

    return mixing(body)


@attack
def local_response_over_the_batch() -> Case:
    """local_response_norm with the records as channels."""
    return mixing(lambda m, x: F.local_response_norm(m.a(x)[None], 3, alpha=10.0)[0])


@attack
def max_pool_indices_of_the_batch() -> Case:
    """Max pooling along the batch and its unpooling."""

    def body(m: Net, x: Tensor) -> Tensor:
        if len(x) % 2:
            return m.a(x)
        pooled, places = F.max_pool1d(m.a(x).T[None], 2, return_indices=True)
        return F.max_unpool1d(pooled, places, 2)[0].T

    return mixing(body)
