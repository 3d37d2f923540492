"""How a plan is carried out: everything about a run that does not touch its privacy, frozen and storable.

Step sizes are pure functions of how far a run has come: nothing to store, nothing to resume. Averages of iterates are
free, as every iterate was released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn

from dpilot import _validate, clipping, engine
from dpilot.clipping import Clipping
from dpilot.errors import InvalidInput
from dpilot.train.batches.unit_chunk import MEAN, SUM
from dpilot.train.optimizers import OWN, names

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The step size times a factor: up from 0 over the share ``warmup`` of the steps, then flat or down a cosine.

    ::

        t < warmup      t / warmup
        after           final + (1 - final) (1 + cos(pi s)) / 2,   s = (t - warmup) / (1 - warmup);   flat: 1

    Example:
        >>> cosine = Schedule("cosine", warmup=0.5)
        >>> [round(cosine.factor(step, 4), 2) for step in range(4)]
        [0.5, 1.0, 1.0, 0.5]
        >>> Schedule().factor(7, 10)
        1.0
    """

    name: str = "constant"
    warmup: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        _validate.one_of(("constant", "cosine"), 'Warm-up is Schedule("constant", warmup=0.1).', name=self.name)
        _validate.share(warmup=self.warmup)
        _validate.non_negative(final=self.final)

    def factor(self, step: int, steps: int) -> float:
        """What step number ``step`` (from 0) of ``steps`` multiplies the step size by."""
        rising = round(self.warmup * steps)
        if step < rising:
            return (step + 1) / rising
        if self.name == "constant":
            return 1.0
        passed = (step - rising) / max(steps - rising, 1)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * passed)) / 2

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def schedule(chosen: str | Schedule) -> Schedule:
    """By name: "constant", "cosine", or "warm-up" (a tenth of the steps, then constant)."""
    if isinstance(chosen, Schedule):
        return chosen
    known = {"constant": Schedule(), "cosine": Schedule("cosine"), "warm-up": Schedule(warmup=0.1)}
    if chosen not in known:
        raise InvalidInput(f"schedule is {chosen!r}: expected one of {', '.join(known)}, or a Schedule.")
    return known[chosen]


Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Average:
    """A running mean of the trained parameters, as a pure function of the mean so far and the new iterate.

    ::

        ema    mean <- d mean + (1 - d) w,   d = min(decay, (1 + k) / (10 + k))     k iterates so far
        swa    mean <- mean + (w - mean) / (k + 1)                                  over the last 1 - start of the steps

    Example:
        >>> swa = Average("swa", start=0.5)
        >>> [swa.counts(step, 4) for step in range(4)]
        [False, False, True, True]

    Reference:
        ema: De et al. 2022 (the warm-up of the decay as in their code); swa: Izmailov et al. 2018.
    """

    name: str
    decay: float = 0.999
    start: float = 0.75

    def __post_init__(self) -> None:
        _validate.one_of(("ema", "swa"), name=self.name)
        _validate.open_unit(decay=self.decay)
        _validate.share(start=self.start)

    def counts(self, step: int, steps: int) -> bool:
        """Whether the iterate after step number ``step`` (from 0) enters."""
        return self.name == "ema" or step >= self.start * steps

    def keep(self, taken: int) -> float:
        """How much of the mean of ``taken`` iterates stays when the next one comes."""
        if self.name == "swa":
            return taken / (taken + 1)
        return min(self.decay, (1 + taken) / (10 + taken)) if taken else 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def average(chosen: str | Average | None) -> Average | None:
    """By name: "ema" or "swa"; None is none."""
    if chosen is None or isinstance(chosen, Average):
        return chosen
    if not isinstance(chosen, str):
        raise InvalidInput(f"average is {chosen!r}: expected 'ema', 'swa', an Average or None.")
    return Average(chosen)


@torch.no_grad()
def mix(mean: Mapping[str, Tensor], model: nn.Module, keep: float) -> Weights:
    """The mean with the model's trained parameters mixed in; of an empty mean, those parameters."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not mean:
        return {name: p.clone() for name, p in trained.items()}
    return {name: mean[name] * keep + p * (1 - keep) for name, p in trained.items()}


@torch.no_grad()
def write_average(mean: Mapping[str, Tensor], model: nn.Module) -> None:
    """Write the mean into the model."""
    for name, parameter in model.named_parameters():
        if name in mean:
            parameter.copy_(mean[name])


FLOAT: Final = "float"
GRID: Final = "hardened"


@dataclass(frozen=True, slots=True)
class Options:
    """Optimizer, schedule, averaging, engine and chunks of a run; ``exact_sums`` are those of ranks (``train.sums``).

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
    groups: Sequence[Sequence[str]] | None = None
    unit_gradient: str = MEAN
    exact_sums: bool = False
    noise: str = FLOAT

    def __post_init__(self) -> None:
        _validate.one_of((*names(), OWN), "A callable that takes the parameters works too.", optimizer=self.optimizer)
        _validate.positive("It is the step size.", lr=self.lr)
        object.__setattr__(self, "schedule", schedule(self.schedule))
        object.__setattr__(self, "average", average(self.average))
        object.__setattr__(self, "optimizer_options", dict(self.optimizer_options))
        _validate.one_of(("auto", *engine.names()), engine=self.engine)
        _validate.one_of((MEAN, SUM), "It is taken over the rows of a unit.", unit_gradient=self.unit_gradient)
        _validate.one_of((FLOAT, GRID), noise=self.noise)
        if self.hardened:
            self._harden()
        if self.chunk_size is not None:
            object.__setattr__(self, "chunk_size", _validate.count(chunk_size=self.chunk_size))
        if self.groups is not None:
            object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))

    @property
    def hardened(self) -> bool:
        """Whether each record's gradient is rounded to the grid of the noise."""
        return self.noise == GRID

    def _harden(self) -> None:
        """What each record adds is formed, or its factors are, to be rounded by itself."""
        if self.amp or self.low_memory:
            raise InvalidInput(
                'noise is "hardened", for which each record is rounded by itself, in float32 or better, from one '
                "backward pass: expected neither amp nor low_memory. Leave them out, or leave out noise."
            )
        if self.exact_sums:
            raise InvalidInput(
                'noise is "hardened" on several ranks, whose sums are on a grid of their own: expected one process. '
                "Start it without torchrun, or leave out noise."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain["schedule"] = self.schedule.to_dict()
        plain["average"] = self.average and self.average.to_dict()
        plain["groups"] = self.groups and [list(group) for group in self.groups]
        if self.unit_gradient == MEAN:  # as stored by those who knew of no units
            del plain["unit_gradient"]
        if not self.exact_sums:  # as stored by those who knew of one process
            del plain["exact_sums"]
        if self.noise == FLOAT:  # or of no other noise
            del plain["noise"]
        return plain

    @classmethod
    def from_dict(cls, data: object) -> Options:
        """The inverse of to_dict; nothing in the data is executed."""
        expected = {each.name for each in fields(cls)}
        if not isinstance(data, dict) or {*data, "unit_gradient", "exact_sums", "noise"} != expected:
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
