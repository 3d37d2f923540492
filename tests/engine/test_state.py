"""Frozen parameters and losses that remember samples, and samples that could meet in what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine import capture, keeping
from dpilot.engine.capture import NotReplayable
from dpilot.errors import UnsupportedModel

HIGH = 5e8
HIGHER = 1.2e9
"""Beyond every made-up sample."""


def into_it(module: nn.Module, x: Tensor) -> None:
    if x > module.seen.max():
        module.seen.fill_(x)


def into_its_data(module: nn.Module, x: Tensor) -> None:
    module.seen.data.copy_(torch.maximum(module.seen, x))


def other_data(module: nn.Module, x: Tensor) -> None:
    module.seen.data = torch.maximum(module.seen, x)


def another_parameter(module: nn.Module, x: Tensor) -> None:
    module.seen = nn.Parameter(torch.maximum(module.seen, x), requires_grad=False)


def a_new_parameter(module: nn.Module, x: Tensor) -> None:
    if x > module.seen.max():
        module.another = nn.Parameter(x.clone(), requires_grad=False)


WRITES = [into_it, into_its_data, other_data, another_parameter, a_new_parameter]


class Peak(nn.Module):
    """Remembers the largest number it saw in a frozen parameter."""

    def __init__(self, write: Callable[[nn.Module, Tensor], None], start: float, size: int = 2) -> None:
        super().__init__()
        self.write, self.inner = write, nn.Linear(2, 1)
        self.seen = nn.Parameter(torch.full((size,), start), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self, x.detach().abs().max())
        return self.inner(x)


def distance(out: Tensor, y: Tensor) -> Tensor:
    return (out[:, 0] - y).square()


def samples(value: float = 0.0) -> tuple[Tensor, Tensor]:
    return torch.full((3, 2), value), torch.zeros(3)


@pytest.mark.parametrize("name", ["single-backward", "loop"])
@pytest.mark.parametrize("write", WRITES)
def test_a_frozen_parameter_is_put_back_however_it_was_written(write: Any, name: str) -> None:
    model = Peak(write, HIGH)
    seen, saved, memory = model.seen, list(model.state_dict()), model.seen.data_ptr()
    for _ in range(2):
        engine.per_sample(model, distance, samples(HIGHER), name)
        assert model.seen is seen
        assert model.seen.data_ptr() == memory
        assert model.seen.tolist() == [HIGH, HIGH]
        assert list(model.state_dict()) == saved


@pytest.mark.parametrize("start", [0.0, 5.0, 1e3, 1e5])
@pytest.mark.parametrize("write", WRITES)
def test_a_frozen_parameter_that_keeps_what_is_large_is_refused(write: Any, start: float) -> None:
    model = Peak(write, start)
    with pytest.raises(UnsupportedModel, match="keeps statistics"):
        engine.per_sample(model, distance, samples())
    assert model.seen.tolist() == [start, start]


@pytest.fixture
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MOST", 1)


@pytest.mark.usefixtures("_all_are_large")
@pytest.mark.parametrize("name", ["auto", "loop", "vmap"])
@pytest.mark.parametrize("write", [into_it, into_its_data])
def test_writing_into_a_large_frozen_parameter_is_refused_on_made_up_samples(write: Any, name: str) -> None:
    model = Peak(write, 5.0)
    with pytest.raises(UnsupportedModel, match=r"frozen parameters \('seen' of Peak\)"):
        engine.per_sample(model, distance, samples(HIGHER), name)
    assert float(model.seen.max()) < HIGH


@pytest.mark.usefixtures("_all_are_large")
@pytest.mark.parametrize("write", [other_data, another_parameter, a_new_parameter])
def test_a_large_frozen_parameter_that_is_exchanged_is_put_back(write: Any) -> None:
    model = Peak(write, HIGH)
    seen = model.seen
    engine.per_sample(model, distance, samples(HIGHER))
    assert model.seen is seen
    assert dict(model.named_parameters()).keys() == {"seen", "inner.weight", "inner.bias"}
    assert model.seen.tolist() == [HIGH, HIGH]


@pytest.mark.usefixtures("_all_are_large")
def test_a_large_frozen_parameter_that_samples_were_written_into_keeps_nothing_of_them() -> None:
    model = Peak(into_it, HIGH)
    with pytest.raises(UnsupportedModel, match="set to zero"):
        engine.per_sample(model, distance, samples(HIGHER))
    assert model.seen.tolist() == [0.0, 0.0]


@pytest.mark.usefixtures("_all_are_large")
def test_frozen_parameters_that_nothing_writes_are_neither_refused_nor_changed() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    before = [(p, p._version, p.detach().clone()) for p in model[0].parameters()]
    ps = engine.per_sample(model, distance, (torch.randn(3, 2), torch.zeros(3)), low_memory=True)
    assert torch.isfinite(ps.weighted_sum(torch.ones(3))["1.weight"]).all()
    assert all(p._version == version and torch.equal(p, value) for p, version, value in before)


def test_state_is_copied_before_weights_are() -> None:
    model = nn.Sequential(nn.Linear(1100, 1000, bias=False), Peak(into_it, 0.0, size=7)).requires_grad_(False)
    small, large = keeping.frozen_in(keeping.modules_of(model))
    assert {id(p) for p in small} == {id(p) for p in model[1].parameters()}
    assert [id(p) for p in large] == [id(model[0].weight)]


class Wrapped(Tensor):
    """Another kind of tensor."""


def test_frozen_parameters_of_every_kind_can_be_held() -> None:
    with torch.inference_mode():
        fixed = nn.Linear(2, 2).requires_grad_(False)
    model = nn.Sequential(fixed, nn.Linear(2, 1))
    kinds = {
        "none": torch.zeros(0),
        "spread": torch.ones(1).expand(3),
        "turned": torch.ones(2, 3).T,
        "complex": torch.ones(2, dtype=torch.complex128),
        "truth": torch.ones(2, dtype=torch.bool),
        "short": torch.ones(2, dtype=torch.float16),
        "wrapped": torch.ones(2).as_subclass(Wrapped),
    }
    for name, t in kinds.items():
        model[1].register_parameter(name, nn.Parameter(t, requires_grad=False))
    held, _ = keeping.frozen_in(keeping.modules_of(model))
    assert len(held) == len(kinds) - 1
    assert not any(p is model[1].wrapped for p in held)
    for most in (keeping.MOST, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keeping, "MOST", most)
            ps = engine.per_sample(model, distance, (torch.randn(3, 2), torch.zeros(3)), "single-backward")
            assert torch.isfinite(ps.norms).all()
            with keeping.refusing_writes(model):
                pass


class Slow(nn.Module):
    """A loss divided by a running mean of losses."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        if frozen:
            self.mean = nn.Parameter(torch.ones(()), requires_grad=False)
        else:
            self.register_buffer("mean", torch.ones(()))
        self.after = 0.0

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        losses = distance(out, y)
        found = losses / self.mean.clone()
        with torch.no_grad():
            self.mean.copy_(torch.where(losses.max() > self.after, self.mean.lerp(losses.mean(), 1e-3), self.mean))
        return found


def behind(kind: str, loss: Slow) -> Callable[..., Tensor]:
    if kind == "partial":
        return partial(lambda loss, out, y: loss(out, y), loss)
    if kind == "method":
        return loss.forward
    if kind == "closure":
        return lambda out, y: loss(out, y)
    return loss


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", ["module", "partial", "method", "closure"])
def test_a_loss_that_remembers_samples_is_refused(kind: str, frozen: bool) -> None:
    loss = Slow(frozen)
    with pytest.raises(UnsupportedModel, match="'mean' keeps statistics"):
        engine.per_sample(nn.Linear(2, 1), behind(kind, loss), samples())
    assert float(loss.mean) == 1.0


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["single-backward", "loop"])
@pytest.mark.parametrize("kind", ["module", "partial", "method", "closure"])
def test_what_a_loss_remembers_is_put_back(kind: str, name: str, frozen: bool) -> None:
    loss = Slow(frozen)
    loss.after = 1e16
    engine.per_sample(nn.Linear(2, 1), behind(kind, loss), (torch.ones(3, 2), torch.full((3,), HIGHER)), name)
    assert float(loss.mean) == 1.0


def test_a_variable_without_a_value_hides_no_loss() -> None:
    def made(loss: Slow) -> Callable[..., Tensor]:
        def chosen(out: Tensor, y: Tensor) -> Tensor:
            return loss(out, y) if loss is not None else later(out, y)

        found = keeping.tops(chosen)
        later = distance
        assert found == [loss]
        return chosen

    assert len(keeping.tops(made(Slow(False)))) == 1


class Meeting(nn.Module):
    """Divides by the largest number it saw."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)
        if frozen:
            self.top = nn.Parameter(torch.ones(()), requires_grad=False)
        else:
            self.register_buffer("top", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.top.copy_(torch.maximum(self.top, x.abs().max()))
        return self.inner(x) / self.top.clone()


@pytest.mark.parametrize("frozen", [False, True])
def test_samples_do_not_meet_in_the_loop(frozen: bool) -> None:
    model, x, y = Meeting(frozen), torch.randn(4, 2), torch.randn(4)
    alone = engine.per_sample(model, distance, (x[1:], y[1:]), "loop")
    x[0] = 1e3
    beside = engine.per_sample(model, distance, (x, y), "loop")
    assert torch.equal(beside.norms[1:], alone.norms)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.ones(2), requires_grad=False)


@pytest.mark.parametrize("largest", [1, keeping.MOST])
def test_work_that_changes_frozen_parameters_is_not_replayed(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    monkeypatch.setattr(keeping, "MOST", largest)
    model, loss = nn.Linear(2, 1), Remembering()
    with pytest.raises(NotReplayable), capture.refusing_what_replays_forget(model, loss):
        loss.seen.fill_(2.0)
    with capture.refusing_what_replays_forget(model, loss):
        loss.seen.sum()


def test_captured_work_leaves_frozen_parameters_as_it_found_them() -> None:
    model, loss = nn.Linear(2, 1), Remembering()
    with capture.putting_back(model, lambda out, y: loss):
        loss.seen.data.fill_(2.0)
        loss.seen = nn.Parameter(torch.zeros(2), requires_grad=False)
        loss.another = nn.Parameter(torch.zeros(2), requires_grad=False)
    assert loss.seen.tolist() == [1.0, 1.0]
    assert list(loss.state_dict()) == ["seen"]
