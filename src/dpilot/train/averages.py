"""Averages of the iterates: every iterate was released, so their average is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpilot import _validate
from dpilot.errors import InvalidInput

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
