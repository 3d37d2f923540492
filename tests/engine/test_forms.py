"""Whatever a graph would keep of model and loss is looked at before every chunk, and a change is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpilot.engine.replay.forms import ModelState, state_of


class Elsewhere(nn.Module):
    """A module whose mode is no attribute of its own, as that of a scripted one."""

    modes: list[bool] = []  # noqa: RUF012

    @property
    def training(self) -> bool:
        return self.modes[-1]

    @training.setter
    def training(self, mode: bool) -> None:
        self.modes.append(mode)


class Scaled(nn.Module):
    """Numbers, buffers, frozen and trained parameters, and modules inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("shift", torch.zeros(2))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("nothing", None)
        self.square = nn.Parameter(torch.rand(3, 3))
        self.elsewhere = Elsewhere()
        self.factor, self.name = 1.5, "one"


class Other(Scaled):
    """The same attributes, another forward pass perhaps."""


def closure(module: nn.Module) -> Any:
    inside = module

    def loss(out: Tensor, _: Tensor) -> Tensor:
        result: Tensor = inside(out)
        return result

    def change(other: nn.Module) -> None:
        nonlocal inside
        inside = other

    loss.change = change  # type: ignore[attr-defined]
    return loss


def moved(model: Any, _: Any) -> None:
    model.inside[0].weight.data = model.inside[0].weight.data.clone()


def buffer_moved(model: Any, _: Any) -> None:
    model.shift.data = model.shift.clone()


def replaced(model: Any, _: Any) -> None:
    model.inside[1].bias = nn.Parameter(model.inside[1].bias.detach().clone())


def another_class(model: Any, _: Any) -> None:
    model.__class__ = Other


def one_for_another(model: Any, _: Any) -> None:
    del model.name
    model.label = "two"


def turned(model: Any, _: Any) -> None:
    model.square.data = model.square.data.T


def other_attributes(model: Any, _: Any) -> None:
    model.inside[0].__dict__ = {**model.inside[0].__dict__, "in_features": 9}


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "mode": lambda model, _: model.eval(),
    "mode inside": lambda model, _: model.inside[1].eval(),
    "trained": lambda model, _: model.frozen.requires_grad_(True),
    "frozen": lambda model, _: model.inside[0].bias.requires_grad_(False),
    "memory of a parameter": moved,
    "memory of a buffer": buffer_moved,
    "a parameter": replaced,
    "a buffer": lambda model, _: setattr(model, "shift", torch.zeros(2)),
    "a buffer where none was": lambda model, _: setattr(model, "nothing", torch.zeros(2)),
    "a number": lambda model, _: setattr(model, "factor", 1.25),
    "a name": lambda model, _: setattr(model, "name", "other"),
    "a number more": lambda model, _: setattr(model, "further", 2),
    "one value for another": one_for_another,
    "a module": lambda model, _: setattr(model, "inside", nn.Sequential(nn.Linear(2, 1))),
    "a module inside": lambda model, _: model.inside.__setitem__(0, nn.Linear(2, 3)),
    "a module more": lambda model, _: model.inside.append(nn.Tanh()),
    "a number of a module inside": lambda model, _: setattr(model.inside[0], "in_features", 7),
    "the class": another_class,
    "the order of memory": turned,
    "all attributes": other_attributes,
    "mode kept elsewhere": lambda model, _: model.elsewhere.eval(),
    "the loss's module": lambda _, loss: loss.change(nn.Linear(1, 1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(name: str) -> None:
    model, loss = Scaled(), closure(nn.Linear(1, 1))
    found, before = ModelState(model, loss), state_of(model, loss)
    assert found.state == before
    assert found.holds(model, loss)
    CHANGES[name](model, loss)
    assert state_of(model, loss) != before
    assert not found.holds(model, loss)


def test_training_changes_nothing_that_a_graph_keeps() -> None:
    model, loss = Scaled(), closure(nn.Linear(1, 1))
    found = ModelState(model, loss)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for p in trained:
        p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert found.holds(model, loss)
    assert found.state == state_of(model, loss)
