"""A released histogram of norms: how a record enters it, how it is read, and how its bins follow the norms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, Unpack

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping.base import HIGHEST, LOWEST, Public, State, check_threshold, first_threshold, start, within


class Binned(Protocol):
    """What the rules that release a histogram have in common: their parameters for it."""

    @property
    def threshold(self) -> float: ...
    @property
    def bins(self) -> int: ...
    @property
    def width(self) -> float: ...
    @property
    def share(self) -> float: ...
    @property
    def overflow(self) -> float: ...
    @property
    def vacancy(self) -> float: ...
    @property
    def floor(self) -> float: ...
    @property
    def ceiling(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal bins [j width, (j + 1) width); the last one also holds everything beyond it."""

    count: int
    width: float
    share: float
    overflow: float
    vacancy: float

    def check(self) -> None:
        """Refuse bins that no run could use."""
        _validate.count(least=2, bins=self.count)
        _validate.positive(width=self.width)
        _validate.open_unit("The histogram needs a part of the bound, and so does the gradient.", share=self.share)
        _validate.open_unit(overflow=self.overflow)
        _validate.open_unit(vacancy=self.vacancy)

    def one_hot(self, norms: Tensor, state: State) -> Tensor:
        """bound sqrt(share) in the bin of each norm, 0 elsewhere: (n,) -> (n, bins)."""
        index = (norms / self.width_of(state)).clamp(max=self.count - 1).floor()
        hot = index.unsqueeze(-1) == arange_like(self.count, norms)
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

    def fractions(self, state: State, released: Tensor) -> Tensor:
        """The released sum as unbiased fractions of the expected batch."""
        return released / (self.scale(state) * state.expected_batch_size)

    def above_noise(self, state: State, fractions: Tensor) -> Tensor:
        """The fractions with those within two standard deviations of 0 set to 0, or noise in the far bins, which the
        squared distance multiplies, decides the threshold."""
        return torch.where(fractions > 2 * self.noise(state), fractions, 0.0)

    def middles(self, state: State) -> Tensor:
        """The norm that stands for each bin."""
        width = self.width_of(state)
        return width * (arange_like(self.count, width) + 0.5)

    def width_of(self, state: State) -> Tensor:
        """The current width: public, it follows earlier releases."""
        if state.memory is None:
            _validate.refuse("the clip state's memory", None, "the width of its bins", "Start from this rule's init.")
        return state.memory

    def adapt_width(self, state: State, fractions: Tensor) -> Tensor:
        """Twice the width when too much lies in the last bin, half when too little lies in the upper half."""
        total, upper = fractions.sum(), fractions[self.count // 2 :].sum()
        signal = total > 2 * self.noise(state) * math.sqrt(self.count)
        grow = (signal & (fractions[-1] > self.overflow * total)).to(fractions.dtype)
        shrink = (signal & (upper < self.vacancy * total)).to(fractions.dtype)
        return (self.width_of(state) * (1 + grow) / (1 + shrink)).clamp(LOWEST, HIGHEST)


def bins_of(rule: Binned) -> Bins:
    """The bins that a rule declares."""
    return Bins(rule.bins, rule.width, rule.share, rule.overflow, rule.vacancy)


def check_binned(rule: Binned) -> None:
    """Refuse parameters that no run could start from."""
    check_threshold(rule.threshold, rule.floor, rule.ceiling)
    bins_of(rule).check()


def first_state(rule: Binned, **public: Unpack[Public]) -> State:
    """The state before the first step, with the declared width."""
    threshold = first_threshold(rule.threshold, rule.floor, rule.ceiling)
    state = start(rule, threshold, threshold * bins_of(rule).inflation(), **public)
    return replace(state, memory=torch.full_like(state.threshold, rule.width))


def next_state(rule: Binned, state: State, fractions: Tensor, threshold: Tensor) -> State:
    """The state with a new threshold, inside its limits, and with bins that follow the released fractions."""
    bins = bins_of(rule)
    threshold = within(threshold, rule.floor, rule.ceiling)
    return replace(
        state, threshold=threshold, bound=threshold * bins.inflation(), memory=bins.adapt_width(state, fractions)
    )


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
