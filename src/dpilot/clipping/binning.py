"""A released histogram of norms: how a record enters it, how it is read, and how its bins follow the norms."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping import base
from dpilot.clipping.base import HIGHEST, LOWEST, Public, State


@dataclass(frozen=True, slots=True)
class Binned:
    """What the rules that release a histogram share. Abstract: a rule adds parameters of its own and ``update``.

    Equal bins [j width, (j + 1) width); the last one also holds everything beyond it. The state's memory is the width.
    """

    threshold: float = 1.0
    _: KW_ONLY
    bins: int = 20
    width: float = 1.0
    share: float = 1 / 25
    overflow: float = 0.5
    vacancy: float = 0.05
    floor: float = 0.0
    ceiling: float = math.inf

    def check(self) -> None:
        """Refuse parameters that no run could start from."""
        base.check_threshold(self.threshold, self.floor, self.ceiling)
        _validate.count(least=2, bins=self.bins)
        _validate.positive(width=self.width)
        _validate.open_unit("The histogram needs a part of the bound, and so does the gradient.", share=self.share)
        _validate.open_unit(overflow=self.overflow)
        _validate.open_unit(vacancy=self.vacancy)

    def init(self, **public: Unpack[Public]) -> State:
        threshold = base.first_threshold(self.threshold, self.floor, self.ceiling)
        state = base.start(self, threshold, threshold * self.inflation(), **public)
        return replace(state, memory=torch.full_like(state.threshold, self.width))

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = base.see(self, norms, state)
        return seen.seal(base.clip_factor(seen.norms, seen.state.threshold), self.one_hot(seen.norms, seen.state))

    def one_hot(self, norms: Tensor, state: State) -> Tensor:
        """bound sqrt(share) in the bin of each norm, 0 elsewhere: (n,) -> (n, bins)."""
        index = (norms / self.width_of(state)).clamp(max=self.bins - 1).floor()
        hot = index.unsqueeze(-1) == arange_like(self.bins, norms)
        return self.scale(state) * hot

    def scale(self, state: State) -> Tensor:
        """What a record puts into its bin: bound sqrt(share)."""
        return math.sqrt(self.share / (1 - self.share)) * state.threshold

    def inflation(self) -> float:
        """bound / C, the price of the histogram in gradient noise: 1 / sqrt(1 - share)."""
        return 1 / math.sqrt(1 - self.share)

    def noise(self, state: State) -> float:
        """The standard deviation of the noise of a released fraction: sigma / (sqrt(share) B)."""
        return state.noise_multiplier / (math.sqrt(self.share) * state.expected_batch_size)

    def receive(self, state: State, released: Tensor) -> tuple[State, Tensor]:
        """The state one step later, and the released sum as unbiased fractions of the expected batch."""
        state, released = base.receive(self, state, released, extras=self.bins)
        return state, torch.nan_to_num(released / (self.scale(state) * state.expected_batch_size))

    def above_noise(self, state: State, fractions: Tensor) -> Tensor:
        """The fractions with those within two standard deviations of 0 set to 0, or noise in the far bins, which the
        squared distance multiplies, decides the threshold."""
        return torch.where(fractions > 2 * self.noise(state), fractions, 0.0)

    def middles(self, state: State) -> Tensor:
        """The norm that stands for each bin."""
        width = self.width_of(state)
        return width * (arange_like(self.bins, width) + 0.5)

    def noise_variance(self, thresholds: Tensor, state: State) -> Tensor:
        """The squared length of the noise on the mean gradient: sigma^2 bound^2 d / B^2."""
        per_coordinate = state.noise_multiplier**2 / ((1 - self.share) * state.expected_batch_size**2)
        return thresholds.square() * (per_coordinate * state.dimension)

    def width_of(self, state: State) -> Tensor:
        """The current width: public, it follows earlier releases."""
        if state.memory is None:
            _validate.refuse("the clip state's memory", None, "the width of its bins", "Start from this rule's init.")
        return state.memory

    def advance(self, state: State, fractions: Tensor, threshold: Tensor) -> State:
        """The state with a new threshold, inside its limits, and with bins that follow the released fractions."""
        threshold = base.within(threshold, self.floor, self.ceiling)
        width = self._adapt_width(state, fractions)
        return replace(state, threshold=threshold, bound=threshold * self.inflation(), memory=width)

    def _adapt_width(self, state: State, fractions: Tensor) -> Tensor:
        """Twice the width when too much lies in the last bin, half when too little lies in the upper half."""
        total, upper = fractions.sum(), fractions[self.bins // 2 :].sum()
        signal = total > 2 * self.noise(state) * math.sqrt(self.bins)
        grow = (signal & (fractions[-1] > self.overflow * total)).to(fractions.dtype)
        shrink = (signal & (upper < self.vacancy * total)).to(fractions.dtype)
        return (self.width_of(state) * (1 + grow) / (1 + shrink)).clamp(LOWEST, HIGHEST)


def arange_like(count: int, like: Tensor) -> Tensor:
    """0, 1, .. count - 1 in the precision and on the device of ``like``, whatever the default dtype is."""
    return torch.arange(count, dtype=like.dtype, device=like.device)


def quantile_bin(fractions: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The first bin at whose end the cumulative fraction reaches ``level`` (else the last), and how far into it.

    Example:
        >>> bin, part = quantile_bin(torch.tensor([0.2, 0.2, 0.4, 0.2]), 0.6)
        >>> int(bin), round(float(part), 3)
        (2, 0.5)
    """
    bins = len(fractions)
    ends = (fractions * fractions.new_ones(bins, bins).tril()).sum(-1)  # cumsum, deterministic
    last = arange_like(bins, fractions) == bins - 1
    index = torch.argmax(((ends >= level) | last).to(torch.uint8))
    missing = level - (torch.take(ends, index) - torch.take(fractions, index))
    part = missing / torch.take(fractions, index).clamp_min(torch.finfo(fractions.dtype).tiny)
    return index, part.clamp(0.0, 1.0)
