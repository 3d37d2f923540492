"""How a plan is carried out: everything about a run that does not touch its privacy, frozen and storable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dpilot import _validate, engine
from dpilot.errors import InvalidInput
from dpilot.train import averages, schedules
from dpilot.train.averages import Average
from dpilot.train.groups import Groups
from dpilot.train.optimizers import OWN, names
from dpilot.train.schedules import Schedule


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
