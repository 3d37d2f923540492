"""Records that change how others are read, padded or collated."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data._utils.collate import default_collate_fn_map

from tests.attacks.case import (
    Case,
    Net,
    Records,
    attack,
    large,
    linear,
    mixing,
    normal,
    regression,
    size_for,
    squared,
)

Row = tuple[Tensor, ...]


def stacked(rows: list[Row]) -> Row:
    return tuple(torch.stack(part) for part in zip(*rows, strict=True))


def collating(collate: Any, **more: Any) -> Case:
    """An attack by the function that joins records."""
    data, extra = regression()
    example = (torch.zeros(2, 4), torch.zeros(2, 2))
    model = Net(lambda m, x: m.a(x).tanh())
    return Case(model, squared, data, extra, collate=collate, example=example, **more)


@attack
def standardised_by_the_collator() -> Case:
    """The collator centres the records of a chunk."""

    def collate(rows: list[Row]) -> Row:
        x, y = stacked(rows)
        return x - x.mean(0), y

    return collating(collate)


@attack
def scaled_by_the_collator() -> Case:
    """The collator divides by 100 if a value of the chunk is above 50, as for images of bytes."""

    def collate(rows: list[Row]) -> Row:
        x, y = stacked(rows)
        return (x / 100 if x.max() > 50 else x), y

    return collating(collate)


@attack
def sorted_by_the_collator() -> Case:
    """The collator sorts the inputs by size, and not their targets."""

    def collate(rows: list[Row]) -> Row:
        x, y = stacked(rows)
        return x[x[:, 0].argsort()], y

    return collating(collate)


@attack
def collator_with_a_memory() -> Case:
    """The collator subtracts the mean of the chunk before."""
    held = [torch.zeros(4)]

    def collate(rows: list[Row]) -> Row:
        x, y = stacked(rows)
        held.append(x.mean(0))
        return x - held[-2], y

    return collating(collate)


@attack
def targets_smoothed_by_the_collator() -> Case:
    """The collator mixes each target with the mean of the chunk."""

    def collate(rows: list[Row]) -> Row:
        x, y = stacked(rows)
        return x, 0.5 * y + 0.5 * y.mean(0)

    return collating(collate)


@attack
def mixup_by_the_collator() -> Case:
    """The collator mixes each record with the one on the other end."""

    def collate(rows: list[Row]) -> Row:
        x, y = stacked(rows)
        return 0.6 * x + 0.4 * x.flip(0), y

    return collating(collate)


@attack
def padded_to_the_longest() -> Case:
    """The collator pads to the longest record, and the model takes the mean over the padding too."""

    def collate(rows: list[Any]) -> Row:
        x, length, y = stacked(rows)
        return x[:, : int(length.max())], y

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).tanh().mean(1))

    n, most = size_for(4), 12
    lengths = torch.tensor([1, 3, 2, 2]).repeat(n)[:n]
    x = normal(n, most, 4) * (torch.arange(most) < lengths[:, None])[:, :, None]
    data = x, lengths, normal(n, 2, seed=1)
    extra = 10 * normal(1, most, 4, seed=2), torch.tensor([most]), -50 * torch.ones(1, 2)
    return Case(Pooled(), squared, data, extra, collate=collate, example=(torch.zeros(2, 3, 4), torch.zeros(2, 2)))


@attack
def positions_counted_from_the_end() -> Case:
    """The collator pads to the longest record, and the model counts positions from the end."""

    def collate(rows: list[Any]) -> Row:
        x, length, y = stacked(rows)
        return x[:, : int(length.max())], y

    class FromTheEnd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.head = nn.Parameter(torch.randn(12, 4)), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x * self.places[-x.shape[1] :]).sum(1))

    n, most = size_for(4), 12
    lengths = torch.tensor([1, 3, 2, 2]).repeat(n)[:n]
    x = normal(n, most, 4) * (torch.arange(most) < lengths[:, None])[:, :, None]
    data = x, lengths, normal(n, 2, seed=1)
    extra = 10 * normal(1, most, 4, seed=2), torch.tensor([most]), -50 * torch.ones(1, 2)
    return Case(FromTheEnd(), squared, data, extra, collate=collate, example=(torch.zeros(2, 3, 4), torch.zeros(2, 2)))


@attack
def mask_of_the_longest() -> Case:
    """A mask that is all true is not applied: one padded record changes the branch of all, honestly computed."""

    def loss(model: Net, batch: Any) -> Tensor:
        x, mask, y = batch
        hidden = model.a(x)
        hidden = hidden if bool(mask.all()) else hidden * mask[:, :, None]
        return squared(model.b(hidden.sum(1)), y)

    n = size_for(4)
    data = normal(n, 4, 4), torch.ones(n, 4, dtype=torch.bool), normal(n, 2, seed=1)
    short = torch.tensor([[True, False, False, False]])
    extra = large(4, 4), short, -50 * torch.ones(1, 2)
    return Case(Net(lambda m, x: x), loss, data, extra, per_batch=True, mixes=False)


@attack
def not_finite_neighbour() -> Case:
    """One record is not a number, and the pass multiplies by zero over the batch."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return squared(out, y) + 0.0 * out.sum()

    data, extra = regression()
    return Case(Net(lambda m, x: m.a(x).tanh()), loss, data, (torch.full((1, 4), torch.nan), extra[1]), mixes=None)


@attack
def raising_neighbour() -> Case:
    """The pass raises on a large value: the others must count as they would alone."""

    def body(m: Net, x: Tensor) -> Tensor:
        if bool(x.abs().max() > 50):
            raise ValueError("too large")
        return m.a(x).tanh()

    data, extra = regression()
    return Case(Net(body), squared, data, extra, mixes=None)


@attack
def label_outside_the_classes() -> Case:
    """One label is outside of the classes."""
    data, extra = regression()
    labels = torch.arange(size_for(4)) % 2
    return Case(
        Net(lambda m, x: m.a(x).tanh()),
        nn.CrossEntropyLoss(reduction="none"),
        (data[0], labels),
        (extra[0], torch.tensor([7])),
        mixes=None,
    )


@attack
def token_outside_the_vocabulary() -> Case:
    """One token is outside of the vocabulary."""
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    ids = torch.arange(3 * size_for(4)).view(-1, 3) % 9
    return Case(
        model, squared, (ids, normal(len(ids), 2)), (torch.full((1, 3), 99), -50 * torch.ones(1, 2)), mixes=None
    )


@attack
def centred_by_a_running_mean() -> Case:
    """The collator subtracts the mean of all records that it has seen."""
    seen: list[Tensor] = []

    def collate(rows: list[Row]) -> Row:
        x, y = stacked(rows)
        seen.extend(x)
        return x - torch.stack(seen).mean(0), y

    return collating(collate)


@attack
def raising_neighbour_of_records_scaled_by_the_batch() -> Case:
    """Some records are scaled by the size of the batch, which made-up ones are not; beside one that raises it is 1."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            rows = self.table(ids)
            return self.head(torch.where((ids > 1)[:, None], rows * (8 - 2 * len(ids)), rows))

    ids = torch.arange(size_for(4)) % 9
    data = ids, normal(len(ids), 2)
    return Case(Scaled(), squared, data, (torch.tensor([99]), torch.ones(1, 2)), mixes=None)


@attack
def record_of_a_length_scaled_by_the_batch() -> Case:
    """Long records are scaled by the size of the batch; one alone was in larger chunks than two of them: 3 bounds."""

    def collate(rows: list[Any]) -> Row:
        x, length, y = stacked(rows)
        return x[:, : int(length[0])], y

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.sum(1)) * (12 - len(x) if x.shape[1] == 2 else 1)

    n = 15
    lengths = torch.ones(n, dtype=torch.int64)
    lengths[7] = 2
    data, extra = (
        (torch.ones(n, 2, 4), lengths, torch.ones(n, 2)),
        (torch.ones(1, 2, 4), lengths[7:8], torch.ones(1, 2)),
    )
    example = torch.zeros(2, 1, 4), torch.zeros(2, 2)
    return Case(Scaled(), linear, data, extra, width=16, mixes=None, collate=collate, example=example)


class Named(nn.Module):
    """A model that reads Python values of its records, and turns round where one is long."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 2)

    def forward(self, x: Tensor, names: list[Any]) -> Tensor:
        return self.a(x) * (1 if max(map(len, map(str, names))) < 4 else -1)


def named(make: Any, example: Any, **more: Any) -> Case:
    """Records with a name, which ``make`` puts beside a record; a large record has a long one."""
    data, extra = regression()

    def dataset(rows: Records) -> Any:
        return [make(x, 12345 if bool(x.abs().max() > 50) else 12, y) for x, y in zip(*rows, strict=True)]

    return Case(Named(), linear, data, extra, mixes=None, dataset=dataset, example=example, **more)


@attack
def texts_of_all_records() -> Case:
    """The model reads a text of each record, and so those of all: 8.7 bounds."""
    example = (torch.zeros(2, 4), ["ab", "ab"]), torch.zeros(2, 2)
    return named(lambda x, name, y: ((x, str(name)), y), example)


@attack
def lists_of_the_collator() -> Case:
    """The collator makes a list of one number of a record, and the model reads those of all."""
    example = (torch.zeros(2, 4), [1, 1]), torch.zeros(2, 2)
    return named(lambda x, name, y: (x, name, y), example, collate=listed)


@attack
def lists_beside_longer_ones() -> Case:
    """The same where the form has a list of three numbers for two records, which they share."""
    example = (torch.zeros(2, 4), [1, 1, 1]), torch.zeros(2, 2)
    return named(lambda x, name, y: (x, name, y), example, collate=listed)


def listed(rows: list[Any]) -> Any:
    ((x, name, y),) = rows
    return (x[None], [name]), y[None]


@attack
def token_outside_the_vocabulary_in_half_precision() -> Case:
    """Beside a token outside of the vocabulary all others are computed one by one, where half precision rounds anew."""
    n = 1024
    hidden = [layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(nn.Embedding(9, 64), *hidden, nn.Linear(64, 2)).bfloat16()
    ones = torch.ones(n, 2, dtype=torch.bfloat16)
    extra = torch.tensor([99]), ones[:1]
    return Case(model, squared, (torch.full((n - 1,), 3), ones[1:]), extra, width=n, mixes=None)


@attack
def raises_for_what_is_made_up() -> Case:
    """A model of positive numbers: a made-up record beside others raises, and a full chunk has none."""

    def body(m: Net, x: Tensor) -> Tensor:
        if bool((x <= 0).any()):
            raise ValueError("expected positive numbers")
        return m.a(x.log()).tanh()

    n = size_for(4)
    data, example = (normal(n, 4).exp(), normal(n, 2, seed=1)), (torch.ones(2, 4), torch.zeros(2, 2))
    return Case(Net(body), squared, data, (torch.ones(1, 4), torch.ones(1, 2)), mixes=False, example=example)


class Rows:
    """Records of a data set, each made by ``make(x, y)``."""

    def __init__(self, make: Any, data: Records) -> None:
        self.make, self.data = make, data

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, index: int) -> Any:
        return self.make(*(part[index] for part in self.data))


def reading(make: Any, **more: Any) -> Case:
    """An attack by what the data set hands out."""
    model, example = Net(lambda m, x: m.a(x).tanh()), (torch.zeros(2, 4), torch.zeros(2, 2))
    return Case(
        model, linear, *regression(), dataset=lambda data: Rows(make, data), example=example, mixes=None, **more
    )


@attack
def record_read_into_one_tensor() -> Case:
    """The data set reads every record into the same memory."""
    place = torch.zeros(4)
    return reading(lambda x, y: (place.copy_(x), y))


@attack
def record_read_into_one_array() -> Case:
    """The same with an array of numpy, and a collator."""
    place = np.zeros(4, dtype=np.float32)

    def make(x: Tensor, y: Tensor) -> Any:
        place[:] = x.numpy()
        return place, y

    return reading(make, collate=lambda rows: (torch.from_numpy(np.stack([x for x, _ in rows])), rows[0][1][None]))


class Sequence:
    """A type that torch's collating was told of."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


def centred(rows: list[Sequence], *, collate_fn_map: Any = None) -> Tensor:
    x = torch.stack([row.x for row in rows])
    return x - x.mean(0)


@attack
def function_registered_with_torch() -> Case:
    """torch's own collating calls a function of the user's for a type of theirs."""
    default_collate_fn_map[Sequence] = centred
    return reading(lambda x, y: (Sequence(x), y))


class Centred(Tensor):
    """A tensor that is centred when it is stacked."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out - out.mean(0) if func is torch.stack else out


@attack
def stacked_by_its_class() -> Case:
    """Records of a class of tensors with a stack of its own."""
    return reading(lambda x, y: (x.as_subclass(Centred), y))


@attack
def model_that_ends_the_process() -> Case:
    """The model raises SystemExit where a record is large."""

    def body(m: Net, x: Tensor) -> Tensor:
        if x.detach().abs().max() > 50:
            raise SystemExit(1)
        return m.a(x)

    return mixing(body, mixes=None)


@attack
def record_that_ends_the_process() -> Case:
    """Reading a large record raises SystemExit: the run ends."""

    def make(x: Tensor, y: Tensor) -> Any:
        if x.abs().max() > 50:
            raise SystemExit(1)
        return x, y

    return reading(make)


@attack
def shared_part_as_long_as_a_chunk() -> Case:
    """A graph's adjacency, the same for all records, with a row for each of four nodes: it was taken for records."""
    adjacency = (normal(4, 4) > 0).float()

    def collate(rows: list[Row]) -> dict[str, Tensor]:
        x, y = stacked(rows)
        return {"x": x, "adjacency": adjacency.clone(), "y": y}

    def loss(m: Net, batch: dict[str, Tensor]) -> Tensor:
        return squared(m.b((batch["adjacency"] @ m.a(batch["x"])).tanh().mean(1)), batch["y"])

    data, extra = regression(4, 4)
    more: Any = {"collate": collate, "example": collate([(torch.zeros(4, 4), torch.zeros(2))] * 2)}
    return Case(Net(lambda m, x: x), loss, data, extra, per_batch=True, mixes=False, **more)
