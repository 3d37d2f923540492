"""How a plan is carried out: everything about a run that does not touch its privacy, frozen and storable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from torch import nn

from dpilot import _validate, clipping, engine
from dpilot.clipping import Clipping
from dpilot.errors import InvalidInput
from dpilot.train import averages, schedules
from dpilot.train.averages import Average
from dpilot.train.optimizers import OWN, names
from dpilot.train.schedules import Schedule

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Options:
    """Optimizer, schedule, averaging, engine and chunks of a run.

    Example:
        >>> options = Options(optimizer="adam", lr=0.01, schedule="cosine", average="ema")
        >>> Options.from_dict(options.to_dict()) == options
        True
    """

    optimizer: str = "sgd"
    lr: float = 0.1
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)
    average: Average | None = None
    free_step: bool = False
    engine: str = "auto"
    per_batch: bool = False
    low_memory: bool = False
    chunk_size: int | None = None
    amp: bool = False
    device: str | None = None
    groups: Groups | None = None

    def __post_init__(self) -> None:
        _validate.one_of((*names(), OWN), "A callable that takes the parameters works too.", optimizer=self.optimizer)
        _validate.positive("It is the step size.", lr=self.lr)
        object.__setattr__(self, "schedule", schedules.schedule(self.schedule))
        object.__setattr__(self, "average", averages.average(self.average))
        object.__setattr__(self, "optimizer_options", dict(self.optimizer_options))
        _validate.one_of(("auto", *engine.names()), engine=self.engine)
        if self.chunk_size is not None:
            object.__setattr__(self, "chunk_size", _validate.count(chunk_size=self.chunk_size))
        if self.groups is not None:
            object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain["schedule"] = self.schedule.to_dict()
        plain["average"] = self.average and self.average.to_dict()
        plain["groups"] = self.groups and [list(group) for group in self.groups]
        return plain

    @classmethod
    def from_dict(cls, data: object) -> Options:
        """The inverse of to_dict; nothing in the data is executed."""
        if not isinstance(data, dict) or set(data) != {each.name for each in fields(cls)}:
            raise InvalidInput(
                "the options of the run are not what to_dict wrote: another dpilot may have stored them."
            )
        known = dict(data)
        known["schedule"] = Schedule(**data["schedule"])
        known["average"] = Average(**data["average"]) if data["average"] else None
        return cls(**known)


def groups_for(rule: Clipping, model: nn.Module, given: Sequence[Sequence[str]] | None) -> Groups | None:
    """The groups a rule asks for: those given, or consecutive layers shared out evenly; None if it asks for none.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
        >>> groups_for(clipping.get("constant", groups=2), model, None)
        (('0.weight', '0.bias'), ('1.weight', '1.bias', '2.weight', '2.bias'))
    """
    count = clipping.to_dict(rule).get("groups")
    if count is None:
        if given is not None:
            raise InvalidInput("groups are given, but the rule is not layer-wise: use clipping.get(name, groups=k).")
        return None
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    found = _split_layers(names, count) if given is None else tuple(tuple(group) for group in given)
    if len(found) != count or not all(found) or sorted(n for group in found for n in group) != sorted(names):
        raise InvalidInput(
            f"groups are {[list(group) for group in found]}: expected {count} groups with every trained parameter in "
            f"exactly one, of {names}."
        )
    return found


def _split_layers(names: Sequence[str], count: int) -> Groups:
    """Whole layers in their order, cut into ``count`` runs; parameters one by one when there are fewer layers."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    pieces = list(layers.values()) if len(layers) >= count else [[name] for name in names]
    edges = [place * len(pieces) // count for place in range(count + 1)]
    return tuple(tuple(n for piece in pieces[low:high] for n in piece) for low, high in pairwise(edges))
