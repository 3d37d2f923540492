"""Replayed chunks read containers of every structure as launched ones do, and no buffer keeps anything of a chunk.

On the CPU work is run again instead of replayed.
"""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling as ModelOutput

from dpilot import engine
from dpilot.engine import Graphed, batch
from dpilot.engine.replay import graphed
from dpilot.errors import UnsupportedModel
from dpilot.numerics.devices import use_policy
from tests.contracts.zoo import DEVICE
from tests.devices import recording
from tests.engine.test_graphed import Again

Named = namedtuple("Named", ["a", "b"])
Turned = namedtuple("Turned", ["b", "a"])
WEIGHTS = torch.tensor([0.5, 1.0, 0.25], device=DEVICE)


@pytest.fixture(autouse=True)
def _replays_anywhere() -> Iterator[None]:
    with use_policy(**(recording(Again) if DEVICE.type == "cpu" else {})):
        yield


def parts(seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(3, 3, generator=made, device=DEVICE), torch.randn(3, 3, generator=made, device=DEVICE)


class Shared(MutableMapping[str, Tensor]):
    """A mapping whose shallow copy holds the same items."""

    def __init__(self, items: dict[str, Tensor]) -> None:
        self.items_held = dict(items)

    def __getitem__(self, key: str) -> Tensor:
        return self.items_held[key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        self.items_held[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_held)

    def __len__(self) -> int:
        return len(self.items_held)


class Scaled(dict[str, Tensor]):
    scale: Any = 1.0


def scaled(scale: Any, a: Tensor, b: Tensor) -> Scaled:
    made = Scaled(a=a, b=b)
    made.scale = scale
    return made


def read(found: Any) -> tuple[Tensor, Tensor]:
    """The two parts, as a user's loss may take them: by name where there are names, else by place."""
    if isinstance(found, Turned | Named | ModelOutput):
        return (found.a, found.b) if hasattr(found, "a") else (found.last_hidden_state, found.pooler_output)
    if isinstance(found, tuple | list):
        first, second = found if isinstance(found, tuple) else reversed(found)
        return (first["x"], second) if isinstance(first, dict) else (first, second)
    inner = found.get("inner", found)
    scale = 2.0 if isinstance(found, OrderedDict) else getattr(found, "scale", 1.0)
    return scale * (inner["a"] if "a" in inner else inner["c"]), inner["b"]


def loss(model: nn.Module, found: Any) -> Tensor:
    a, b = read(found)
    return (model(a) - b).square().sum(1)


def by_place(model: nn.Module, found: Any) -> Tensor:
    """A loss that goes by the order of keys."""
    a, b = found.values()
    return (model(a) - b).square().sum(1)


FORMS = {
    "keys": (lambda a, b: {"a": a, "b": b}, lambda a, b: {"b": b, "a": a}),
    "keys of another kind": (lambda a, b: OrderedDict(a=a, b=b), lambda a, b: UserDict(b=b, a=a)),
    "kind of mapping": (lambda a, b: {"a": a, "b": b}, lambda a, b: OrderedDict(a=a, b=b)),
    "nested keys": (lambda a, b: {"inner": {"a": a, "b": b}}, lambda a, b: {"inner": {"b": b, "a": a}}),
    "other names": (lambda a, b: {"a": a, "b": b}, lambda a, b: {"b": b, "c": a}),
    "list for a tuple": (lambda a, b: (a, b), lambda a, b: [a, b]),
    "other fields": (Named, Turned),
    "fields for a tuple": (lambda a, b: (a, b), Turned),
    "dict inside a tuple": (lambda a, b: (a, b), lambda a, b: ({"x": a}, b)),
    "output of a model": (
        lambda a, b: ModelOutput(last_hidden_state=a, pooler_output=b),
        lambda a, b: {"b": a, "a": b},
    ),
    "number beside the items": (lambda a, b: scaled(1.0, a, b), lambda a, b: scaled(3.0, a, b)),
    "tensor beside the items": (
        lambda a, b: scaled(torch.tensor(1.0, device=DEVICE), a, b),
        lambda a, b: scaled(torch.tensor(3.0, device=DEVICE), a, b),
    ),
}


@pytest.mark.parametrize(
    ("name", "reads"), [*((name, loss) for name in FORMS), ("keys", by_place), ("keys of another kind", by_place)]
)
def test_a_chunk_of_another_structure_is_replayed_as_it_is_launched(name: str, reads: Any) -> None:
    usual, odd = FORMS[name]
    torch.manual_seed(0)
    model = nn.Linear(3, 3).to(DEVICE)
    replayed = Graphed(model, reads, rows=4, per_batch=True)
    for seed, form in enumerate((usual, odd, usual, odd)):
        chunk = form(*parts(seed))
        ours, plain = replayed(chunk), engine.per_sample(model, reads, chunk, per_batch=True)
        assert torch.allclose(ours.norms, plain.norms, rtol=1e-4)
        total, expected = ours.weighted_sum(WEIGHTS), plain.weighted_sum(WEIGHTS)
        assert all(torch.allclose(total[key], t, rtol=1e-4, atol=1e-5) for key, t in expected.items())
    assert ours.reason.endswith("; replayed") == ("tensor beside" not in name)


def test_tensors_that_are_more_than_their_numbers_are_launched() -> None:
    class Tagged(Tensor):
        pass

    a, b = parts(0)
    gradients = Graphed(nn.Linear(3, 3).to(DEVICE), loss, rows=4, per_batch=True)
    assert gradients({"a": a, "b": b}).reason.endswith("; replayed")
    assert "not tensors" in gradients({"a": a.as_subclass(Tagged), "b": b}).reason


def test_a_changed_twin_leaves_a_mapping_that_shares_what_it_holds_as_it_is() -> None:
    a, b = parts(0)
    tree = Shared({"a": a, "b": b})
    twin = batch.rebuild(tree, lambda t: t + 1)
    assert isinstance(twin, Shared)
    assert tree["a"] is a
    assert tree["b"] is b
    assert torch.equal(twin["a"], a + 1)
    assert torch.equal(twin["b"], b + 1)


class Peak(nn.Module):
    """Keeps the largest number it saw above 5e8, or counts its calls, in a buffer, in one of several ways."""

    def __init__(self, way: str, start: float = 5e8, *, counts: bool = False) -> None:
        super().__init__()
        self.way, self.counts, self.layer = way, counts, nn.Linear(2, 1)
        self.register_buffer("kept", torch.full((), start))
        self.register_buffer("wide", torch.full((1, 1), start).expand(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        largest = self.kept + 1 if self.counts else torch.maximum(self.kept, x.detach().abs().max())
        if self.way == "data":
            self.kept.data.copy_(largest)
        elif self.way == "data of a view":
            self.wide[:1, :1].data.copy_(largest)
        elif self.way == "other memory":
            self.kept.data = largest
        elif self.way == "assigned":
            self.kept = largest
        elif self.way == "in place":
            self.kept.copy_(largest)
        return self.layer(x) + 0 * self.wide[0, 0]


def of_one(out: Tensor, y: Tensor) -> Tensor:
    return (out[:, 0] - y).square()


EXCHANGED = ["other memory", "assigned"]
WRITTEN = ["data", "data of a view", "in place"]


@pytest.mark.parametrize("way", EXCHANGED)
def test_no_buffer_remembers_the_samples_of_a_replay(way: str) -> None:
    model = Peak(way).to(DEVICE)
    before = model.kept
    gradients = Graphed(model, of_one, rows=4)
    for largest in (7.7e8, 1.2e9):
        found = gradients._find_graph((torch.zeros(3, 2, device=DEVICE), torch.zeros(3, device=DEVICE)), 3)
        assert isinstance(found, graphed.CapturedChunk)
        found.replay([torch.full((3, 2), largest, device=DEVICE), torch.zeros(3, device=DEVICE)], 3)
        assert float(model.kept) == 5e8
        assert bool((model.wide == 5e8).all())
    assert model.kept is before


@pytest.mark.parametrize("way", [*EXCHANGED, *WRITTEN])
def test_capturing_leaves_every_buffer_as_it_was(way: str) -> None:
    model = Peak(way, 0.0, counts=True).to(DEVICE)
    batch_of = torch.full((3, 2), 7.0, device=DEVICE), torch.zeros(3, device=DEVICE)
    gradients = Graphed(model, of_one, rows=4)
    engine.per_sample(model, of_one, batch_of)  # the verdict: from here on only the capture runs
    before, version, place = model.kept, model.kept._version, model.kept.data_ptr()
    found = gradients._find_graph(batch_of, 3)
    assert isinstance(found, graphed.CapturedChunk) == (way in EXCHANGED)
    assert way in EXCHANGED or "writes into memory that was there before" in str(found)
    assert model.kept is before
    assert model.kept.data_ptr() == place
    assert way == "in place" or model.kept._version == version
    assert float(model.kept) == 0.0
    assert not bool(model.wide.any())


def test_a_buffer_that_is_set_between_chunks_is_read_and_kept() -> None:
    model = Peak("none", 1.0).to(DEVICE)
    gradients = Graphed(model, lambda out, y: of_one(out, y) * model.kept, rows=4)
    chunk, zeros = torch.ones(3, 2, device=DEVICE), torch.zeros(3, device=DEVICE)
    first = gradients((chunk, zeros))
    assert first.reason.endswith("; replayed")
    model.kept.fill_(2.0)
    assert torch.allclose(gradients((chunk, zeros)).norms, 2 * first.norms, rtol=1e-4)
    assert float(model.kept) == 2.0


def test_a_buffer_of_the_loss_is_restored_too() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(()))

        def forward(self, out: Tensor, y: Tensor) -> Tensor:
            self.kept.data.copy_(torch.maximum(self.kept, y.abs().max() - 1e8))
            return of_one(out, y)

    criterion = Loss().to(DEVICE)
    gradients = Graphed(nn.Linear(2, 1).to(DEVICE), criterion, rows=4)
    batch_of = torch.ones(3, 2, device=DEVICE), torch.full((3,), 2e8, device=DEVICE)
    with pytest.raises(UnsupportedModel, match="memory that outlives the pass"):
        gradients(batch_of)
    assert float(criterion.kept) == 0.0
