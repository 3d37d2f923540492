"""What a forward pass, a loss or a hook writes: nothing of it is left, and no record meets it."""

from __future__ import annotations

import copy
import types
from collections import Counter, OrderedDict, UserDict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.utils.parametrizations import spectral_norm

from dpilot import engine
from dpilot.engine.batch import Chunk
from dpilot.engine.replay import capture
from dpilot.engine.replay.capture import NotReplayable
from dpilot.engine.state import StateSnapshot, modules_of, preserve_state, preserve_structure, refuse_trained_loss, tops
from dpilot.engine.trace import Pass
from dpilot.engine.writes import WriteGuard, watch_writes
from dpilot.errors import UnsupportedModel

LARGE = 1_100_000
SEEN: list[float] = []
TOTAL = 0.0
TABLE = {"mean": torch.zeros(())}


def distance(out: Tensor, y: Tensor) -> Tensor:
    return (out[:, 0] - y).square()


def peak(x: Tensor) -> Tensor:
    return x.detach().abs().max()


class Scaled(nn.Module):
    """A linear map, multiplied by a number that earlier forward passes may have left."""

    def __init__(self, keep: Callable[[nn.Module, Tensor], Tensor | float], **held: Any) -> None:
        super().__init__()
        self.inner, self.keep = nn.Linear(2, 1), keep
        for name, value in held.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            factor = self.keep(self, x)
            factor = factor.clone() if isinstance(factor, Tensor) else factor
        return self.inner(x) * factor


def frozen(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape), requires_grad=False)


class ActNorm(nn.Module):
    """Scale and shift are set from the first batch (Kingma and Dhariwal 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift, self.ready = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2)), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.shift.data.copy_(-x.detach().mean(0))
            self.scale.data.copy_(1 / (x.detach().abs().amax(0) + 1.0))
            self.ready = True
        return (x + self.shift) * self.scale


class Codebook(nn.Module):
    """The nearest code, moved towards what it stands for by a moving average (van den Oord et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("codes", torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        nearest = torch.cdist(z.detach(), self.codes).argmin(1)
        out = (z - self.codes[nearest]).square()
        self.codes.index_copy_(0, nearest[:1], 0.5 * self.codes[nearest[:1]] + 0.5 * z.detach()[:1])
        return out


def buffer_in_place(m: Any, x: Tensor) -> Any:
    m.mean.mul_(0.5).add_(peak(x))
    return m.mean


def another_buffer(m: Any, x: Tensor) -> Any:
    m.mean = 0.5 * m.mean + peak(x)
    return m.mean


def through_data(m: Any, x: Tensor) -> Any:
    m.mean.data.add_(peak(x))
    return m.mean


def other_data(m: Any, x: Tensor) -> Any:
    m.mean.data = m.mean.data + peak(x)
    return m.mean


def other_memory(m: Any, x: Tensor) -> Any:
    m.mean.set_((m.mean + peak(x)).detach())
    return m.mean


def through_numpy(m: Any, x: Tensor) -> Any:
    view = m.mean.detach().numpy()
    view += float(peak(x))
    return m.mean


def through_storage(m: Any, x: Tensor) -> Any:
    torch.empty(0).set_(m.mean.untyped_storage()).add_(peak(x))
    return m.mean


def in_out(m: Any, x: Tensor) -> Any:
    torch.add(m.mean, peak(x), out=m.mean)
    return m.mean


def in_a_foreach(m: Any, x: Tensor) -> Any:
    torch._foreach_add_([m.mean.detach()], float(peak(x)))
    return m.mean


def resized(m: Any, x: Tensor) -> Any:
    size = m.mean.numel() + 1
    m.mean.resize_(size).fill_(float(peak(x)) + size)
    return m.mean.mean()


def plain_tensor(m: Any, x: Tensor) -> Any:
    m.held[0].add_(peak(x))
    return m.held[0]


def attribute(m: Any, x: Tensor) -> Any:
    m.number = 0.5 * m.number + float(peak(x))
    return m.number


def new_attribute(m: Any, x: Tensor) -> Any:
    m.last = getattr(m, "last", 1.0) + float(peak(x))
    return m.last


def in_list(m: Any, x: Tensor) -> Any:
    m.seen.append(float(peak(x)))
    return sum(m.seen)


def in_nested(m: Any, x: Tensor) -> Any:
    m.nested["a"][0].setdefault("b", deque([1.0], maxlen=3)).append(float(peak(x)))
    return sum(m.nested["a"][0]["b"])


def in_set(m: Any, x: Tensor) -> Any:
    m.kinds.add(round(float(peak(x)), 3))
    return 1.0 + sum(m.kinds)


def in_object(m: Any, x: Tensor) -> Any:
    m.object.total += float(peak(x))
    m.object.tensor = m.object.tensor + peak(x)
    return m.object.total + m.object.tensor


def in_slots(m: Any, x: Tensor) -> Any:
    m.slots.total += float(peak(x))
    m.slots.later = m.slots.total
    return m.slots.total


def in_class(m: Any, x: Tensor) -> Any:
    Stats.shared += float(peak(x))
    return Stats.shared


def in_user_dict(m: Any, x: Tensor) -> Any:
    m.table["mean"] = m.table.get("mean", 1.0) + float(peak(x))
    return m.table["mean"]


def in_array(m: Any, x: Tensor) -> Any:
    m.array += float(peak(x))
    return float(m.array[0])


def in_global(m: Any, x: Tensor) -> Any:
    global TOTAL
    TOTAL += float(peak(x))
    SEEN.append(float(peak(x)))
    TABLE["mean"] = TABLE["mean"] + peak(x)
    return TOTAL + sum(SEEN) + TABLE["mean"]


def in_tensor_attribute(m: Any, x: Tensor) -> Any:
    p = m.inner.weight
    p.seen = getattr(p, "seen", 1.0) + float(peak(x))
    return p.seen


def another_class(m: Any, x: Tensor) -> Any:
    was = type(m) is Scaled
    m.__class__ = Later
    return 1.0 if was else 1.0 + float(peak(x))


def new_layer(m: Any, x: Tensor) -> Any:
    if hasattr(m, "further"):
        return float(m.further.bias)
    m.further = nn.Linear(1, 1)
    m.further.bias.fill_(peak(x))
    return 1.0


def own_hook(m: Any, x: Tensor) -> Any:
    largest = float(peak(x))
    m.inner.register_forward_hook(lambda module, args, out: out * (1.0 + largest))
    return 1.0


def into_gradient(m: Any, x: Tensor) -> Any:
    m.mean.grad.add_(peak(x))
    return m.mean.grad


def flipped(m: Any, x: Tensor) -> Any:
    was = m.mean.requires_grad
    m.mean.requires_grad_(not was)
    return 1.0 if was else 1.0 + float(peak(x))


def mode(m: Any, x: Tensor) -> Any:
    was = m.training
    m.eval()
    return 1.0 if was else 2.0 + float(peak(x))


def trained_weight(m: Any, x: Tensor) -> Any:
    m.inner.weight.copy_(0.5 * m.inner.weight + peak(x))
    return 1.0


def embedded(m: Any, x: Tensor) -> Any:
    return m.table_of(torch.arange(2)).sum() + float(peak(x))


class Stats:
    shared = 1.0

    def __init__(self) -> None:
        self.total, self.tensor = 1.0, torch.ones(())


class Slots:
    __slots__ = ("later", "total")

    def __init__(self) -> None:
        self.total = 1.0


class Later(Scaled):
    pass


def iterating() -> nn.Module:
    """Spectral norm, whose power iteration has not come to an end: it writes its vectors, from weights only."""
    layer = spectral_norm(nn.Linear(2, 2))
    layer.parametrizations.weight[0]._u.copy_(torch.tensor([1.0, 0.0]))  # type: ignore[union-attr, index]
    return layer


def with_gradient() -> nn.Parameter:
    made = frozen()
    made.grad = torch.ones(())
    return made


MODELS: dict[str, Callable[[], nn.Module]] = {
    "weights set from the first batch": lambda: nn.Sequential(ActNorm(), nn.Linear(2, 1)),
    "a codebook": Codebook,
    "a buffer in place": lambda: Scaled(buffer_in_place, mean=torch.ones(())),
    "another buffer": lambda: Scaled(another_buffer, mean=torch.ones(())),
    "a parameter through data": lambda: Scaled(through_data, mean=frozen()),
    "other data": lambda: Scaled(other_data, mean=frozen()),
    "other memory": lambda: Scaled(other_memory, mean=torch.ones(())),
    "numpy": lambda: Scaled(through_numpy, mean=torch.ones(())),
    "a storage": lambda: Scaled(through_storage, mean=torch.ones(1)),
    "out=": lambda: Scaled(in_out, mean=torch.ones(())),
    "a list of tensors": lambda: Scaled(in_a_foreach, mean=torch.ones(())),
    "another size": lambda: Scaled(resized, mean=torch.ones(2)),
    "a tensor in a list": lambda: Scaled(plain_tensor, held=[torch.ones(())]),
    "a number": lambda: Scaled(attribute, number=1.0),
    "a new attribute": lambda: Scaled(new_attribute),
    "a list": lambda: Scaled(in_list, seen=[1.0]),
    "nested containers": lambda: Scaled(in_nested, nested={"a": [{}, 1]}),
    "a set": lambda: Scaled(in_set, kinds=set()),
    "an object": lambda: Scaled(in_object, object=Stats()),
    "slots": lambda: Scaled(in_slots, slots=Slots()),
    "a class": lambda: Scaled(in_class, object=Stats()),
    "a user dict": lambda: Scaled(in_user_dict, table=UserDict()),
    "a numpy array": lambda: Scaled(in_array, array=np.ones(3)),
    "global variables": lambda: Scaled(in_global),
    "an attribute of a parameter": lambda: Scaled(in_tensor_attribute),
    "another class": lambda: Scaled(another_class),
    "a new layer": lambda: Scaled(new_layer),
    "a hook": lambda: Scaled(own_hook),
    "a gradient": lambda: Scaled(into_gradient, mean=with_gradient()),
    "requires_grad": lambda: Scaled(flipped, mean=nn.Parameter(torch.ones(()))),
    "a mode": lambda: Scaled(mode),
    "a trained weight": lambda: Scaled(trained_weight),
    "an embedding that renorms": lambda: Scaled(embedded, table_of=nn.Embedding(2, 2, max_norm=0.1)),
    "a large frozen parameter": lambda: Scaled(through_data, mean=frozen(LARGE)[:1].detach()),
    "spectral norm": lambda: nn.Sequential(iterating(), nn.Linear(2, 1)),
    "a statistic of a batch": lambda: nn.Sequential(nn.GroupNorm(1, 2), nn.BatchNorm1d(2).eval(), nn.Linear(2, 1)),
}


def picture(value: Any, seen: set[int] | None = None) -> Any:
    """Everything that can be told of a value: identities, memory, numbers; found by a walk of its own."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return id(value)
    if isinstance(value, (int, float, str, bytes, type(None))):
        return repr(value)
    seen.add(id(value))
    if isinstance(value, Tensor):
        grad = value.grad if value.is_leaf else None
        storage = value.untyped_storage()
        memory = storage._cdata, storage.nbytes(), value.storage_offset(), tuple(value.shape), value.stride()
        flags = value.is_leaf, value.requires_grad, str(value.dtype)
        whole = hash(torch.empty(0, dtype=torch.uint8).set_(storage).clone().numpy().tobytes())
        return id(value), memory, flags, whole, picture(grad, seen), picture(value.__dict__, seen)
    if isinstance(value, dict):
        return id(value), [(repr(k), picture(v, seen)) for k, v in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return id(value), [picture(v, seen) for v in value]
    if isinstance(value, np.ndarray):
        return id(value), value.tobytes()
    if isinstance(value, set):
        return id(value), sorted(map(repr, value))
    if isinstance(value, types.FunctionType):
        return id(value), [picture(c.cell_contents, seen) for c in value.__closure__ or ()], picture(vars(value), seen)
    if isinstance(value, Slots):
        return [picture(getattr(value, name, "nothing"), seen) for name in Slots.__slots__]
    own = getattr(value, "__dict__", None)
    return id(value), type(value).__name__, picture(own, seen) if isinstance(own, dict) else None


def everything(*roots: Any) -> Any:
    return picture([*roots, SEEN, TOTAL, TABLE, Stats.shared])[1]


def records(n: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    return torch.randn(n, 2) * 3, torch.randn(n)


def run(model: nn.Module, loss: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    losses = loss(model(batch[0]), batch[1])
    if losses.requires_grad:
        losses.sum().backward()
    return losses.detach()


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_left_of_a_forward_and_backward_pass(name: str) -> None:
    model, batch = MODELS[name](), records()
    before = everything(model, *batch)
    for _ in range(2):
        with preserve_state(model, distance, batch):
            run(model, distance, batch)
        assert everything(model, *batch) == before


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_left_of_a_watched_pass(name: str) -> None:
    model, batch = MODELS[name](), records()
    before = everything(model, *batch)
    with Pass.over(Chunk(model, distance, batch, len(batch[0]))) as watched, watched.exits, watched.tracker:
        run(model, distance, batch)
    assert everything(model, *batch) == before


@pytest.mark.parametrize("name", [name for name in MODELS if name != "a statistic of a batch"])
def test_the_models_do_keep_something(name: str) -> None:
    model = MODELS[name]()
    before, shared = everything(model), copy.deepcopy((list(SEEN), TOTAL, Stats.shared))
    with preserve_state(SEEN, TABLE, in_global, Stats):
        x, y = records()
        with torch.no_grad():
            distance(model(x), y)
        assert everything(model) != before
    assert (list(SEEN), TOTAL, Stats.shared) == shared


@pytest.mark.parametrize("name", MODELS)
def test_the_second_pass_is_computed_as_if_it_were_the_first(name: str) -> None:
    model, (x, y) = MODELS[name](), records()
    first, second = (x[:1], y[:1]), (x[1:], y[1:])
    with preserve_state(model, distance):
        alone = run(model, distance, second)
    with preserve_state(model, distance):
        run(model, distance, first)
    with preserve_state(model, distance):
        assert torch.equal(run(model, distance, second), alone)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "an embedding that renorms"])
def test_records_do_not_meet_in_the_loop(name: str) -> None:
    model, (x, y) = MODELS[name](), records(4)
    before = everything(model)
    alone = engine.per_sample(model, distance, (x[1:], y[1:]), "loop")
    x[0] = 1e3
    beside = engine.per_sample(model, distance, (x, y), "loop")
    assert torch.equal(beside.norms[1:], alone.norms)
    assert everything(model) == before


@pytest.mark.parametrize("name", MODELS)
def test_an_exception_leaves_nothing_either(name: str) -> None:
    model, (x, y) = MODELS[name](), records()
    before = everything(model)

    def fails(out: Tensor, y: Tensor) -> Tensor:
        out.sum().backward()
        raise ZeroDivisionError

    with suppress(ZeroDivisionError), preserve_state(model, fails):
        run(model, fails, (x, y))
    assert everything(model) == before


class SlowLoss(nn.Module):
    """Losses divided by what earlier losses left."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.ones(()))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        losses = distance(out, y)
        found = losses / self.mean.clone()
        self.mean.add_(losses.detach().mean())
        return found


class Callable_:
    def __init__(self) -> None:
        self.total = 1.0

    def __call__(self, out: Tensor, y: Tensor) -> Tensor:
        losses = distance(out, y)
        self.total += float(losses.detach().mean())
        return losses / self.total


def counting() -> Callable[..., Tensor]:
    count = 1.0

    def loss(out: Tensor, y: Tensor) -> Tensor:
        nonlocal count
        count += float(out.detach().abs().mean())
        return distance(out, y) / count

    return loss


def unset() -> Callable[..., Tensor]:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        nonlocal first
        try:
            factor = first
        except NameError:
            factor = float(out.detach().abs().mean())
            first = factor + 1.0
        return distance(out, y) * factor

    if loss is None:
        first = 1.0
    return loss


def closing(held: Any) -> Callable[..., Tensor]:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        held.append(float(out.detach().abs().mean()))
        return distance(out, y) * sum(held)

    return loss


def defaults() -> Callable[..., Tensor]:
    def loss(out: Tensor, y: Tensor, seen: list[float] = [1.0], *, table: Any = {"a": 1.0}) -> Tensor:  # noqa: B006
        seen.append(float(out.detach().abs().mean()))
        table["a"] += sum(seen)
        return distance(out, y) * table["a"]

    return loss


def attributes() -> Callable[..., Tensor]:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        loss.seen = getattr(loss, "seen", 1.0) + float(out.detach().abs().mean())  # type: ignore[attr-defined]
        return distance(out, y) * loss.seen  # type: ignore[attr-defined]

    return loss


def helped() -> Callable[..., Tensor]:
    return lambda out, y: distance(out, y) * in_global(None, out)


def weighted(held: Any, out: Tensor, y: Tensor) -> Tensor:
    held["n"] += float(out.detach().abs().mean())
    return distance(out, y) * held["n"]


LOSSES: dict[str, Callable[[], Any]] = {
    "a module": SlowLoss,
    "a method": lambda: SlowLoss().forward,
    "a partial of a module": lambda: partial(lambda loss, out, y: loss(out, y), SlowLoss()),
    "a partial of a dict": lambda: partial(weighted, Counter(n=1.0)),
    "a closure over a module": lambda: (lambda inner: lambda out, y: inner(out, y))(SlowLoss()),
    "a callable": Callable_,
    "a counter": counting,
    "a variable without a value": unset,
    "a closure over a list": lambda: closing([1.0]),
    "a closure over a deque": lambda: closing(deque([1.0], maxlen=2)),
    "defaults": defaults,
    "attributes of a function": attributes,
    "a helper with global variables": helped,
}


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_is_left_in_a_loss(name: str) -> None:
    model, loss, (x, y) = nn.Linear(2, 1), LOSSES[name](), records(4)
    with preserve_state(model, loss):
        first = run(model, loss, (x, y))
        assert not torch.equal(run(model, loss, (x, y)), first)
    with preserve_state(model, loss):
        assert torch.equal(run(model, loss, (x, y)), first)
    alone = engine.per_sample(model, loss, (x[1:], y[1:]), "loop")
    x[0] = 1e3
    beside = engine.per_sample(model, loss, (x, y), "loop")
    assert torch.equal(beside.norms[1:], alone.norms)


@pytest.mark.parametrize("forward", [True, False])
def test_a_hook_that_uses_earlier_activations_finds_none(forward: bool) -> None:
    model, (x, y), seen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)), records(), list[Tensor]()

    def hook(module: nn.Module, given: Any, out: Any) -> Any:
        value = out if forward else out[0]
        seen.append(value.detach())
        changed = value * len(seen)
        return changed if forward else None

    register = model[1].register_forward_hook if forward else model[1].register_full_backward_hook
    register(hook)
    for _ in range(2):
        with preserve_state(model, distance):
            run(model, distance, (x, y))
            assert len(seen) == 1
        assert seen == []


@pytest.mark.parametrize("earlier", [False, True])
def test_hooks_that_a_pass_leaves_on_a_weight_are_gone(earlier: bool) -> None:
    weight, seen = nn.Parameter(torch.ones(2)), list[str]()
    if earlier:
        weight.register_hook(lambda g: seen.append("earlier"))
    with preserve_state([weight]):
        weight.register_hook(lambda g: seen.append("hook"))
        weight.register_post_accumulate_grad_hook(lambda p: seen.append("late hook"))
    weight.sum().backward()
    assert seen == ["earlier"] * earlier


def test_containers_are_restored_in_place_with_their_order() -> None:
    held = {"b": 1, "a": [1, 2], "c": OrderedDict(x=1, y=2), "d": {1, 2}, "e": deque([1, 2], maxlen=2)}
    inner = {name: value for name, value in held.items() if name != "b"}
    before = copy.deepcopy(held)
    snapshot = StateSnapshot.of(held)
    for _ in range(2):
        held["a"].reverse()
        held["c"].move_to_end("x")
        held["d"].discard(1)
        held["e"].append(3)
        del held["b"]
        held["a2"], held["a"] = 1, []
        snapshot.restore()
        assert held == before
        assert list(held) == list(before)
        assert list(held["c"]) == ["x", "y"]
        assert all(held[name] is value for name, value in inner.items())


def test_cycles_and_long_containers_end() -> None:
    model = nn.Linear(2, 1)
    model.me, model.data, model.loop = [model], [[j] for j in range(10_000)], []
    model.loop.append(model.loop)
    snapshot = StateSnapshot.of(model)
    model.data.pop()
    model.loop.append(1)
    snapshot.restore()
    assert len(model.data) == 10_000
    assert len(model.loop) == 1


def test_a_leaf_that_an_operation_wrote_into_is_a_leaf_again() -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("mean", torch.ones(1))
    with preserve_state(model):
        model.mean.mul_(model.weight.sum())
        assert not model.mean.is_leaf
    assert model.mean.is_leaf
    assert not model.mean.requires_grad
    assert model.mean.tolist() == [1.0]


def test_gradients_of_every_leaf_are_as_before() -> None:
    model, x = nn.Linear(2, 1), torch.ones(3, 2, requires_grad=True)
    model.weight.grad = torch.full((1, 2), 5.0)
    held = model.weight.grad
    with preserve_state(model, x):
        model(x).sum().backward()
        assert x.grad is not None
        assert held.tolist() != [[5.0, 5.0]]
    assert x.grad is None
    assert model.bias.grad is None
    assert model.weight.grad is held
    assert held.tolist() == [[5.0, 5.0]]


def test_a_scripted_module_is_restored() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0
            self.mean = nn.Buffer(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.mean += x.sum(0)
            self.mean = self.mean * 2
            return x * self.mean

    with pytest.warns(DeprecationWarning, match="deprecated"):
        model = torch.jit.script(Counts())
    mean = model.mean
    with preserve_state(model):
        model(torch.ones(3, 2))
        assert model.count == 1
    assert model.count == 0
    assert model.mean is mean
    assert mean.tolist() == [1.0, 1.0]


class Written(NamedTuple):
    work: Callable[[Tensor], Any]
    expected: bool = True


WRITES: dict[str, Written] = {
    "in place": Written(lambda p: p.detach().add_(1)),
    "data": Written(lambda p: p.data.copy_(torch.zeros(4))),
    "a view": Written(lambda p: p.data[1:].zero_()),
    "an expanded tensor": Written(lambda p: p.data[:1].expand(3)[0].fill_(9.0)),
    "out": Written(lambda p: torch.mul(p.data, 2, out=p.data)),
    "foreach": Written(lambda p: torch._foreach_mul_([p.data], 2.0)),
    "set item": Written(lambda p: p.data.__setitem__(0, 9.0)),
    "random": Written(lambda p: nn.init.normal_(p)),
    "fused optimizer": Written(lambda p: torch.optim.SGD([p], lr=1.0, fused=True).step()),
    "numpy": Written(lambda p: p.detach().numpy().fill(9.0)),
    "numpy array": Written(lambda p: np.asarray(p.detach()).fill(9.0)),
    "dlpack": Written(lambda p: np.from_dlpack(p.detach()).__array_interface__ and p.data.fill_(9.0)),
    "storage": Written(lambda p: p.untyped_storage().fill_(0)),
    "reading": Written(lambda p: (p * 2).sum().backward(), expected=False),
    "reading in numpy": Written(lambda p: p.detach().numpy().sum(), expected=False),
    "new memory": Written(lambda p: (p * 2).relu_().detach().zero_(), expected=False),
    "a new constant": Written(lambda p: torch.tensor([1.0, 2.0]).add_(1), expected=False),
    "new memory, as it is": Written(lambda p: torch.empty(3).normal_().reshape(1, 3).zero_(), expected=False),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_are_seen_and_undone(name: str) -> None:
    p = nn.Parameter(torch.arange(4.0))
    p.grad = torch.ones(4)
    case, guard = WRITES[name], WriteGuard()
    with watch_writes(guard):
        case.work(p)
    mine = p.untyped_storage()._cdata
    assert (mine in [storage._cdata for storage in guard.written]) == case.expected
    guard.restore()
    assert p.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_running_statistics_that_no_schema_declares_are_restored() -> None:
    layer, x = nn.BatchNorm1d(2), torch.randn(5, 2)
    before = copy.deepcopy(layer.state_dict())
    for training in (True, False):
        layer.train(training)
        guard = WriteGuard()
        with watch_writes(guard):
            layer(x)
        assert bool(guard.written) == training
        guard.restore()
        assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_a_custom_operation_says_what_it_writes() -> None:
    with torch.library._scoped_library("dpilot_test", "FRAGMENT") as library:
        library.define("bump(Tensor(a!) t, Tensor x) -> Tensor")
        library.impl("bump", lambda t, x: t.add_(x) * 1, "CompositeExplicitAutograd")
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", lambda x: x.view(-1), "CompositeExplicitAutograd")
        t, other, guard = torch.ones(2), torch.ones(2), WriteGuard()
        with watch_writes(guard):
            torch.ops.dpilot_test.bump(t, torch.ones(2))
            torch.ops.dpilot_test.same(other).zero_()
        guard.restore()
    assert t.tolist() == [1.0, 1.0]
    assert other.tolist() == [1.0, 1.0]


def test_writes_under_vmap_are_undone() -> None:
    mean, guard = torch.zeros(2), WriteGuard()

    def work(x: Tensor) -> Tensor:
        mean.add_(1)
        return (x * mean).sum()

    with watch_writes(guard):
        vmap(work)(torch.ones(3, 2))
    assert mean.tolist() == [1.0, 1.0]
    guard.restore()
    assert mean.tolist() == [0.0, 0.0]


class Made(Tensor):
    """A tensor made of another, as quantised and sharded ones are."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Made:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = [a.inner if isinstance(a, Made) else a for a in args]
        return func(*inner, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_of_every_kind_can_be_held_and_written() -> None:
    with torch.inference_mode():
        fixed = torch.ones(2)
    made = Made(torch.ones(2))
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    kinds = [
        torch.zeros(0), torch.ones(1).expand(3), torch.ones(2, 3).T, torch.ones(2, dtype=torch.complex64), fixed, made,
        torch.ones(2).bool(), torch.ones(2).half(), quantised, torch.eye(2).to_sparse(), torch.ones(2, device="meta"),
        nn.parameter.UninitializedParameter(),
    ]  # fmt: skip
    with preserve_state(kinds):
        kinds[0].resize_(3).fill_(1.0)
        for j in (2, 3, 5, 6, 7, 10):
            kinds[j].zero_()
        quantised.copy_(torch.zeros(2))
        with torch.inference_mode():
            fixed.zero_()
        kinds.pop()
    assert kinds[0].shape == (0,)
    assert all(bool((kinds[j] == 1).all()) for j in (2, 3, 4, 6, 7))
    assert made.inner.tolist() == [1.0, 1.0]
    assert quantised.dequantize().tolist() == pytest.approx([1.0, 1.0], abs=0.01)
    assert len(kinds) == 12


def test_what_was_not_written_keeps_its_version_and_a_second_backward_pass() -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("mean", torch.ones(1))
    versions = [p._version for p in model.parameters()]
    with preserve_state(model):
        loss = (model(torch.ones(3, 2)) * model.weight.sum()).sum()
        loss.backward(retain_graph=True)
        model.mean.add_(1)
        model.weight.data_ptr()
    assert [p._version for p in model.parameters()] == versions
    loss.backward()
    assert model.mean.tolist() == [1.0]


@pytest.mark.parametrize("write", [buffer_in_place, through_data])
def test_a_sum_is_of_the_gradients_that_were_measured_also_with_low_memory(write: Any) -> None:
    def keep(m: Any, x: Tensor) -> Any:
        write(m, torch.full((1,), 3.0))
        return m.mean

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.mean = nn.Linear(2, 700), nn.Buffer(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                keep(self, x)
            return self.inner(x).sum(1, keepdim=True) * self.mean

    model, batch = Wide(), records()
    made = engine.per_sample(model, distance, batch, "single-backward", low_memory=True)
    alone = made.weighted_sum(torch.tensor([1.0, 0.0, 0.0]))
    size = torch.stack([g.square().sum() for g in alone.values()]).sum().sqrt()
    assert float(size) == pytest.approx(float(made.norms[0]), rel=1e-4)


def test_a_graph_that_saved_what_was_written_refuses_a_second_backward_pass() -> None:
    mean, w = torch.ones(2), torch.ones(2, requires_grad=True)
    with preserve_state(mean):
        mean.add_(1)
        loss = (w * mean).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_large_frozen_parameter_is_copied_only_if_it_is_written() -> None:
    large = frozen(LARGE)
    model = Scaled(lambda m, x: 1.0, large=large)
    guard = WriteGuard()
    with watch_writes(guard):
        model(torch.ones(3, 2))
        model(torch.ones(3, 2)).relu_().sum().backward()
    assert guard._saved == {}
    with preserve_state(model) as guard:
        large.data.mul_(2.0)
        assert len(guard.written) == 1
    assert bool((large == 1).all())


def test_work_that_writes_what_was_there_is_not_replayed() -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("mean", torch.ones(2))
    for write in (model.mean.fill_, model.mean.data.fill_, model.weight.data.fill_):
        with pytest.raises(NotReplayable, match="writes into memory"), capture.refuse_unreplayable(model):
            write(2.0)
        assert model.mean.tolist() == [1.0, 1.0]
    with capture.refuse_unreplayable(model):
        model.last = model(torch.ones(3, 2)).mul_(2.0)
    assert not hasattr(model, "last")
    with pytest.raises(NotReplayable, match="drawn on the processor"), capture.refuse_unreplayable(model):
        torch.rand(2)


def test_captured_work_leaves_the_structure_as_it_was() -> None:
    loss = SlowLoss()
    mean = loss.mean
    with preserve_structure(lambda out, y: loss):
        loss.mean = torch.zeros(())
        loss.another = nn.Parameter(torch.zeros(2))
    assert loss.mean is mean
    assert list(loss.state_dict()) == ["mean"]


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return distance(out, y) * self.scale


@pytest.mark.parametrize("kind", ["module", "method", "closure", "partial", "list"])
def test_a_loss_with_trainable_parameters_is_refused(kind: str) -> None:
    model, inner = nn.Linear(2, 1), Learned()
    held = [inner.scale]
    loss: Any = {
        "module": inner,
        "method": inner.forward,
        "closure": lambda out, y: inner(out, y),
        "partial": partial(lambda inner, out, y: inner(out, y), inner),
        "list": lambda out, y: distance(out, y) * held[0],
    }[kind]
    with pytest.raises(UnsupportedModel, match="make it part of the model"):
        engine.per_sample(model, loss, records())
    inner.requires_grad_(False)
    refuse_trained_loss(model, loss)


def test_a_loss_may_hold_the_model() -> None:
    model = nn.Linear(2, 1)
    refuse_trained_loss(model, lambda out, y: distance(out, y) + model.weight.square().sum())


def test_a_variable_without_a_value_hides_no_loss() -> None:
    def made(loss: SlowLoss) -> Callable[..., Tensor]:
        def chosen(out: Tensor, y: Tensor) -> Tensor:
            return loss(out, y) if loss is not None else later(out, y)

        found = tops(chosen)
        later = distance
        assert found == [loss]
        return chosen

    chosen = made(SlowLoss())
    assert len(tops(chosen)) == len(modules_of(chosen)) == 1


@pytest.mark.parametrize("chosen", ["auto", "loop"])
def test_what_a_branch_writes_is_undone(chosen: str) -> None:
    """No mode sees inside of torch.cond, whose functions have closures."""

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 1)
            self.register_buffer("noted", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            def note() -> Tensor:
                return self.noted.copy_(x.detach()[0]).clone()

            torch.cond(torch.tensor(True), note, note, ())
            return self.head(x)

    model = Noting()
    engine.per_sample(model, lambda out, y: (out[:, 0] - y).square(), (torch.ones(4, 3), torch.ones(4)), chosen)
    assert not model.noted.any()


def test_an_object_of_a_package_that_is_named_like_torch_is_put_back() -> None:
    kept = type("Kept", (), {"__module__": "torch_ema.averages"})()
    with preserve_state(kept):
        kept.seen = True
    assert not hasattr(kept, "seen")
