"""What a graph was captured for: shapes, settings, and the state of the model."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import is_
from typing import Any, final

import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.engine.base import LossFunction
from dpilot.engine.replay import capture
from dpilot.engine.state import modules_of, tops
from dpilot.numerics import precision

FEW = 3
"""Made-up samples that a graph is captured with, repeated; shorter chunks are filled up with the first."""


def obstacle(batch: Any, n: int, rows: int) -> str:
    """Why chunks of this form are not replayed, or nothing."""
    held = batches.tensors(batch)
    if elsewhere := {t.device.type for t in held if not capture.can_replay(t.device)}:
        return f"on a {' and a '.join(sorted(elsewhere))}"
    if any(t.is_cuda and t.device.index != torch.cuda.current_device() for t in held):
        return "on another GPU than the current one"
    if not only_tensors(batch):
        return "parts of the chunk are not tensors"
    if n > rows:
        return f"more than {rows} samples"
    if n != rows and any(batches.holds_samples(t, rows) for t in held):
        return "a tensor that all samples share has as many rows as a chunk"
    return ""


def only_tensors(tree: Any) -> bool:
    """Whether every leaf is a plain tensor: other values, also those beside the items, would be the capture's."""
    if isinstance(tree, Mapping):
        items = {id(value) for value in tree.values()}
        beside = (value for value in getattr(tree, "__dict__", {}).values() if isinstance(value, Tensor))
        return all(id(value) in items for value in beside) and all(only_tensors(value) for value in tree.values())
    if isinstance(tree, tuple | list):
        return all(only_tensors(value) for value in tree)
    return type(tree) in (Tensor, nn.Parameter) and tree.layout == torch.strided


def form_of(tree: Any, n: int) -> Any:
    """What a graph takes for granted of a chunk: containers, keys in their order; shapes without n, types, devices.

    Chunks of one form have their tensors in the same places, so they may be told apart by where they come in a walk.
    """
    if isinstance(tree, Mapping):
        beside = tuple((name, v) for name, v in getattr(tree, "__dict__", {}).items() if type(v) in PLAIN)
        return type(tree), beside, tuple((key, form_of(value, n)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        return type(tree), tuple(form_of(value, n) for value in tree)
    rows = batches.holds_samples(tree, n)
    return tree.dtype, tree.device, rows, tuple(tree.shape[1:] if rows else tree.shape)


def settings() -> Any:
    """Settings that change what is computed."""
    cuda = torch.device("cuda")
    casts = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    tf32 = precision.tf32_allowed(cuda), precision.tf32_allowed(cuda, convolution=True)
    return casts, tf32, torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.enabled


def place_of(t: Tensor) -> Any:
    """Where and how a tensor lies; what is not laid out in one stretch is known as itself."""
    return (t.data_ptr(), t.numel(), t.stride()) if t.layout is torch.strided else id(t)


State = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]


def state_of(model: nn.Module, loss_fn: LossFunction) -> State:
    """Modes and what is trained; where parameters and buffers lie; and Python values, which a graph keeps as well."""
    modes: list[Any] = []
    places: list[Any] = []
    values: list[Any] = []
    for module in modules_of(model, loss_fn):
        modes += (type(module), module.training)
        values += [v for v in module.__dict__.values() if type(v) in PLAIN]
        for p in module._parameters.values():
            if p is not None:
                modes.append(p.requires_grad)
                places.append(place_of(p))
        places += [place_of(b) for b in module._buffers.values() if b is not None]
    return tuple(modes), tuple(places), tuple(values)


@final
class ModelState:
    """``state_of`` as it was found, and whether it still holds: asked before every chunk, while the GPU has no work.

    It holds if every module holds the very objects that it held, and tensors lie where they lay. Then the state is the
    same: what it is made of cannot change within an object. If it does not hold, the state may still be the same.
    """

    __slots__ = ("_held", "_kinds", "_modes", "_modules", "_objects", "_own", "_tensors", "_tops", "state")

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        self.state = state_of(model, loss_fn)
        self._tops, self._modules = tops(model, loss_fn), modules_of(model, loss_fn)
        self._kinds = [type(m) for m in self._modules]
        self._modes = [m.training for m in self._modules]
        self._own = [m.__dict__ for m in self._modules]
        self._held = [d for m in self._modules for d in (m.__dict__, m._parameters, m._buffers, m._modules)]
        self._objects = [value for held in self._held for value in held.values()]
        tensors = [t for m in self._modules for d in (m._parameters, m._buffers) for t in d.values() if t is not None]
        self._tensors = [(t, place_of(t), t.requires_grad) for t in tensors]

    def holds(self, model: nn.Module, loss_fn: LossFunction) -> bool:
        now = chain.from_iterable(held.values() for held in self._held)
        return (
            same_objects(tops(model, loss_fn), self._tops)
            and all(map(is_, map(type, self._modules), self._kinds))
            and [m.training for m in self._modules] == self._modes
            and all(map(is_, [m.__dict__ for m in self._modules], self._own))
            and sum(map(len, self._held)) == len(self._objects)
            and all(map(is_, now, self._objects))
            and all(place_of(t) == place and t.requires_grad is grad for t, place, grad in self._tensors)
        )


def same_objects(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists hold the same objects in the same order."""
    return len(one) == len(other) and all(map(is_, one, other))


PLAIN = frozenset({int, float, bool, str})
"""Types of the attributes, of a module or of a chunk, that a graph would keep."""


def static(batch: Any, n: int, rows: int) -> Any:
    """A made-up chunk of ``rows`` samples in memory of its own."""
    few = min(FEW, rows)
    made_up = batches.synthetic(batch, n, few, torch.Generator().manual_seed(0))
    wanted = iter(batches.tensors(batch))

    def own(t: Tensor) -> Tensor:
        if batches.holds_samples(next(wanted), n):
            return t[torch.arange(rows, device=t.device) % few]
        return t.clone()

    return batches.rebuild(made_up, own)
