"""How one record is written (the order of its keys, more of them, a list for a tuple) changes no other record."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn

from dpilot import Budget, Plan, Trainer, engine
from dpilot.errors import InvalidInput
from dpilot.numerics.devices import use_policy
from dpilot.train.batches.reader import Reader, SpecMismatch, conform_to_spec
from dpilot.train.gradients import null_on_error
from tests.devices import recording
from tests.engine.test_graphed import Again
from tests.tapes import exact_sum
from tests.thin import thin

Pair = namedtuple("Pair", ["a", "b"])
Turned = namedtuple("Turned", ["b", "a"])
PLACES = {"front": 0, "middle": 3, "second chunk": 8, "inside the second chunk": 11}


@pytest.fixture(autouse=True)
def _replays():
    with use_policy(**recording(Again)):
        yield


def values(seed):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(3, generator=made), 3 * torch.randn(3, generator=made)


def as_dict(a, b):
    return {"a": a, "b": b}


ODD = {
    "order": lambda a, b: {"b": b, "a": a},
    "order and kind": lambda a, b: OrderedDict(b=b, a=a),
    "frozen": lambda a, b: MappingProxyType({"b": b, "a": a}),
    "more keys": lambda a, b: {"extra": a, "b": b, "a": a},
    "missing key": lambda a, b: {"b": b},
    "no mapping": lambda a, b: (b, a),
}
COUNTED = {"order", "order and kind", "frozen", "more keys"}
FORM = {"a": torch.zeros(2, 3), "b": torch.zeros(2, 3)}


def by_name(model, batch):
    return (model(batch["a"]) - batch["b"]).square().sum(1)


def by_place(model, batch):
    a, b = batch.values()
    return (model(a) - b).square().sum(1)


class Records(torch.utils.data.Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        return self.records[i]


def released(records, loss, name):
    """The sum that a step of full batch adds noise to."""
    plan = Plan.calibrate(Budget(8.0, 1e-5), size=20, batch_size=20, steps=1, clipping="constant")
    torch.manual_seed(0)
    options = {"lr": 0.1, "per_batch": True, "engine": name, "chunk_size": 8, "example": FORM, "test_seed": 1}
    trainer = Trainer(nn.Linear(3, 3), loss, plan, **options)
    return torch.from_numpy(exact_sum(trainer.fit, Records(records)))


@pytest.mark.parametrize("name", thin(["auto", "single-backward"], 2))
@pytest.mark.parametrize("loss", [by_name, by_place])
@pytest.mark.parametrize("odd", ODD)
def test_a_record_written_in_another_way_moves_the_sum_as_any_record_does(odd, loss, name):
    others = [as_dict(*values(seed)) for seed in range(19)]
    without = released(others, loss, name)
    moved = {
        place: released([*others[:at], ODD[odd](*values(99)), *others[at:]], loss, name) - without
        for place, at in PLACES.items()
    }
    first = moved["front"]
    assert float(first.norm()) == pytest.approx(1.0 if odd in COUNTED else 0.0, abs=1e-4)
    assert all(torch.allclose(each, first, atol=1e-4) for each in moved.values())


@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("named", [False, True])
def test_chunks_of_tuples_are_replayed_in_the_kind_of_the_form(named, at):
    def loss(model, batch):
        a, b = (batch.a, batch.b) if named else batch
        return (model(a) - b).square().sum(1) * (1.0 if type(batch) is (Pair if named else tuple) else 5.0)

    kind = Pair if named else lambda a, b: (a, b)
    odd = (lambda a, b: Turned(b=a, a=b)) if named else lambda a, b: [a, b]
    records = [kind(*values(seed)) for seed in range(7)]
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    expected = engine.per_sample(model, loss, kind(*map(torch.stack, zip(*records, strict=True))), per_batch=True)
    records[at] = odd(*values(at))
    replayed = engine.Graphed(model, loss, rows=8, per_batch=True, forms=1)
    reader = Reader(records, None, kind(torch.zeros(1, 3), torch.zeros(1, 3)))
    found = [null_on_error(replayed, model)(chunk) for chunk in reader.chunks([np.arange(7)])]
    assert len(found) == (2 if named else 1)  # another class is collated apart
    assert found[0].reason.endswith("; replayed")
    assert torch.allclose(torch.cat([each.norms for each in found]).sort()[0], expected.norms.sort()[0], rtol=1e-4)


def test_a_chunk_has_the_containers_and_the_order_of_the_form():
    one, two = torch.zeros(1), torch.ones(1)
    form = OrderedDict(x=(one, {"b": one, "a": one}), y=[one])
    made = conform_to_spec({"y": (two,), "x": [one, {"a": two, "b": one}]}, form)[0]
    assert type(made) is OrderedDict
    assert list(made) == ["x", "y"]
    assert type(made["x"]) is tuple
    assert type(made["y"]) is list
    assert list(made["x"][1]) == ["b", "a"]
    assert made["x"][1]["a"] is not one
    assert float(made["x"][1]["a"]) == 1.0
    assert form["x"][1]["a"] is one


def test_a_tensor_is_no_tuple_and_a_further_key_is_left_out():
    one = torch.zeros(1)
    with pytest.raises(SpecMismatch):
        conform_to_spec(torch.zeros(2, 1), (one, one))
    with pytest.raises(SpecMismatch):
        conform_to_spec({"a": one, "b": one}, (one, one))
    assert list(conform_to_spec({"a": one, "b": one}, {"a": one})[0]) == ["a"]


def test_a_tensor_of_another_class_is_plain_where_the_forms_is():
    class Tagged(torch.Tensor):
        pass

    assert type(conform_to_spec(torch.ones(2).as_subclass(Tagged), torch.ones(1))[0]) is torch.Tensor


def numbered(odd):
    """Records whose second part is a number, and one in which it is written otherwise."""
    return [(torch.ones(3), float(i)) for i in range(3)], (torch.ones(3), odd)


class Speaking(str):
    """A key that raises when it is compared."""

    __slots__ = ()

    def __eq__(self, other):
        raise ValueError("a record speaks")

    def __hash__(self):
        return hash("a")


class Other(list):
    """A list that gives its entries out as it likes."""

    __slots__ = ()

    def __iter__(self):
        return iter([torch.zeros(3), 9.0])


ODD_NUMBERS = [torch.tensor([7.0]), np.array([7.0]), [7.0], torch.tensor(7.0), 7, True, np.float64(7), "7", None]
ODD_NUMBERS += [np.uint64(5), np.longdouble(5), np.complex64(5), np.timedelta64(5, "s")]
ODD_NUMBERS += [2**63, 2**60, 10**400, {"a": 1.0}]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_key_that_raises_when_compared_is_its_own_trouble(place):
    records = [{"a": 1.0}, {"a": 2.0}]
    records.insert(place, {Speaking("a"): 9.0})
    chunks = list(Reader(records, None, {"a": torch.zeros(1)}).chunks([np.arange(3)]))
    assert sorted(torch.cat([chunk.whole["a"] for chunk in chunks]).tolist()) in ([1.0, 2.0], [1.0, 2.0, 9.0])


def test_a_list_that_gives_its_entries_out_as_it_likes_is_read_apart():
    form = [torch.zeros(1, 3), torch.zeros(1)]
    records = [[torch.ones(3), 1.0], Other([torch.ones(3), 1.0]), [torch.ones(3), 2.0]]
    first, *_ = Reader(records, None, form).chunks([np.arange(3)])
    assert first.whole[1].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("odd", ODD_NUMBERS, ids=repr)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_what_a_record_counts_for_does_not_depend_on_who_is_before_it(odd, place):
    form = (torch.zeros(1, 3), torch.zeros(1, dtype=torch.float64))
    others, record = numbered(odd)
    alone = [float(x) for chunk in Reader([record], None, form).chunks([np.arange(1)]) for x in chunk.whole[1]]
    mixed = [*others[:place], record, *others[place:]]
    found = [float(x) for chunk in Reader(mixed, None, form).chunks([np.arange(4)]) for x in chunk.whole[1]]
    assert sorted(found) == sorted([*alone, 0.0, 1.0, 2.0])


def test_what_a_record_shares_is_brought_to_the_form_with_it():
    form = {"x": torch.zeros(1, 2), "positions": torch.zeros(3, dtype=torch.int64)}
    record = {"x": torch.ones(1, 2) + 0j, "positions": torch.tensor([0.0, 1.0, 2.0])}
    made, wrong = conform_to_spec(record, form)
    assert made["positions"].tolist() == [0, 1, 2]
    assert wrong.tolist() == [False]
    assert conform_to_spec({**record, "positions": torch.tensor([0.0, 0.5, 2.0])}, form)[1].tolist() == [True]


def test_several_rows_of_one_record_are_refused(tmp_path):
    def doubled(records):
        return torch.cat([x.repeat(2, 1) for x, _ in records]), torch.tensor([y for _, y in records for _ in range(2)])

    data = [(torch.ones(3), 0), (torch.zeros(3), 1)] * 10
    plan = Plan.calibrate(Budget(8.0, 1e-5), size=20, batch_size=20, steps=1, clipping="constant")
    options = {"lr": 0.1, "collate_fn": doubled, "test_seed": 1}
    with pytest.raises(InvalidInput, match="one record is collated to 2 rows"):
        Trainer(nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), plan, **options).fit(data)
