"""One-shot clipping: the first public steps measure the norms and nothing else, then the threshold is fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping import base
from dpilot.clipping.base import Public, State
from dpilot.clipping.binning import arange_like, quantile_bin


@dataclass(frozen=True, slots=True)
class OneShot:
    """Spend the first steps on a histogram of the norms, then clip at one of its quantiles for good.

    Formula, for the first ``measure`` steps, which are public and part of the plan's steps::

        w = 0        x = one-hot(bin of n)        bound = 1

    over geometric bins between ``lowest`` and ``highest``; then, with C the norm that a fraction ``target`` of the
    released histogram lies above, inside a bin geometrically::

        w = min(1, C / n)        no extras        bound = C

    While it measures, ``state.frozen`` is True and the optimizer must not move: what is released for the gradient then
    is noise alone. Each measuring step costs what any step costs.

    Guarantee:
        |x|^2 = 1 = bound^2 and w = 0 while it measures; w n <= C = bound after. Which of the two a step is depends on
        its number alone.

    Edge cases:
        n outside the bins    counts in the first or the last
        n = inf or nan        weight 0, extras 0 (the null record)
        measure = None        1 % of the ``steps`` passed to init, at least one; one step without them
        k                     the extras are (n, bins) while it measures and (n, 0) after

    Example:
        >>> rule = OneShot(target=0.5)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=401, dimension=10, steps=100)
        >>> weights, extras = rule.clip(torch.linspace(2.0, 4.0, 401), state)
        >>> state.frozen, float(weights.sum())
        (True, 0.0)
        >>> state = rule.update(state, extras.sum(0))
        >>> state.frozen, round(float(state.threshold), 1)
        (False, 3.0)

    Reference:
        Provan, "Differentially Private Linear Regression" (AdaClip), made valid: Laplace noise on a median has no
        bounded sensitivity; a noisy histogram has sensitivity 1.
    """

    threshold: float = 1.0
    target: float = 0.5
    measure: int | None = None
    bins: int = 64
    lowest: float = 1e-4
    highest: float = 1e4
    floor: float = 0.0
    ceiling: float = math.inf

    def __post_init__(self) -> None:
        base.check_threshold(self.threshold, self.floor, self.ceiling)
        _validate.open_unit(target=self.target)
        if self.measure is not None:
            _validate.count(measure=self.measure)
        _validate.count(least=3, bins=self.bins)
        if _validate.positive(lowest=self.lowest) >= _validate.positive(highest=self.highest):
            _validate.refuse("lowest", self.lowest, f"a number below highest, {self.highest!r}")

    def init(self, **public: Unpack[Public]) -> State:
        state = base.start(self, base.first_threshold(self.threshold, self.floor, self.ceiling), 1.0, **public)
        measure = self.measure or max(1, round(0.01 * (public.get("steps") or 1)))
        return replace(state, measuring=measure, memory=state.threshold.new_zeros(self.bins))

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = base.see(self, norms, state)
        if not state.frozen:
            return seen.seal(base.clip_factor(seen.norms, seen.state.threshold))
        return seen.seal(torch.zeros_like(seen.norms), self._one_hot(seen.norms))

    def update(self, state: State, released: Tensor) -> State:
        if not state.frozen:
            return base.receive(self, state, released, extras=0)[0]
        state, released = base.receive(self, state, released, extras=self.bins)
        tally = released if state.memory is None else state.memory + released
        if state.measuring > 1:
            return replace(state, memory=tally, measuring=state.measuring - 1)
        return self._fix_threshold(state, tally)

    def _fix_threshold(self, state: State, tally: Tensor) -> State:
        """The state once the last measuring step came back: every step so far was one."""
        fractions = torch.nan_to_num(tally / (state.step * state.expected_batch_size))
        index, part = quantile_bin(fractions, 1 - self.target)
        threshold = base.within(self.lowest * self._ratio() ** (index - 1 + part), self.floor, self.ceiling)
        return replace(state, threshold=threshold, bound=threshold, measuring=0, memory=None)

    def _one_hot(self, norms: Tensor) -> Tensor:
        edges = self.lowest * self._ratio() ** arange_like(self.bins - 1, norms)
        index = torch.bucketize(norms, edges, right=True)
        hot = index.unsqueeze(-1) == arange_like(self.bins, norms)
        return hot.to(norms.dtype)

    def _ratio(self) -> float:
        """The upper over the lower edge of a bin; below the first and beyond the last edge lie one bin each."""
        return math.pow(self.highest / self.lowest, 1 / (self.bins - 2))
