"""Group-specific clipping: one threshold for each value of a declared attribute, such as a protected one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping.base import Public, State, adjust_threshold, check_threshold, clip_factor, receive, see, start


@dataclass(frozen=True, slots=True)
class Group:
    """Clip the records of each declared group at the group's own threshold, fixed or adapted to its norms.

    Formula, for a record of group a with norm n::

        w = min(1, C_a / n)        x_a = s (1[n > tau C_a] - target), 0 in the coordinates of the other groups
        C_a' = clamp(C_a exp(rate clip(released_a / (s B p_a), -1, 1)), floor, ceiling)

    where max(target, 1 - target) s = bound sqrt(share), bound = max over a of C_a / sqrt(1 - share), B is the expected
    batch size and p_a the declared proportion of group a. With ``rate`` = 0 thresholds are fixed, nothing extra is sent
    and bound = max over a of C_a. Centring by the target makes the sum 0 exactly when a fraction ``target`` of the
    group's norms lies above tau C_a, however many records the group has, so no group is counted.

    Guarantee:
        w is a function of the record's own norm and own group: (w n)^2 + |x|^2 <= max C_a^2 + share bound^2 = bound^2.

    Edge cases:
        group outside the declared ones    weight 0, extras 0 (the null record)
        n = inf or nan                     weight 0, extras 0 (the null record)
        noise                              all groups share noise of sigma bound: a smaller threshold gets no smaller
                                           noise, unlike in FairDP, where each group trains a model of its own

    Example:
        >>> rule = Group(thresholds=(1.0, 4.0))
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=3, dimension=10)
        >>> rule.clip(torch.tensor([2.0, 2.0, 8.0]), state, torch.tensor([0, 1, 1]))[0]
        tensor([0.5000, 1.0000, 0.5000])

    Reference:
        Tran et al., "FairDP", SaTML 2025, and Xu et al., "Removing Disparate Impact on Model Accuracy in Differentially
        Private Stochastic Gradient Descent", KDD 2021 (group-specific thresholds).
    """

    thresholds: tuple[float, ...]
    proportions: tuple[float, ...] | None = None
    target: float = 0.5
    tau: float = 1.0
    rate: float = 0.0
    share: float = 1 / 401
    floor: float = 0.0
    ceiling: float = math.inf

    def __post_init__(self) -> None:
        for threshold in self.thresholds:
            check_threshold(threshold, self.floor, self.ceiling)
            if not self.floor <= threshold <= self.ceiling:
                _validate.refuse("thresholds", threshold, f"in [{self.floor!r}, {self.ceiling!r}]")
        _validate.count(thresholds=len(self.thresholds))
        if len(self._proportions()) != len(self.thresholds):
            _validate.refuse("proportions", self.proportions, f"{len(self.thresholds)} numbers, one a group")
        for proportion in self._proportions():
            _validate.rate(proportions=proportion)
        _validate.open_unit(target=self.target)
        _validate.positive(tau=self.tau)
        _validate.non_negative(rate=self.rate)
        _validate.open_unit(share=self.share)

    def init(self, **public: Unpack[Public]) -> State:
        largest = max(self.thresholds)
        state = start(self, largest, largest * self._inflation(), **public)
        return replace(state, memory=state.threshold.new_tensor(self.thresholds + self._proportions()))

    def clip(self, norms: Tensor, state: State, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (n,) and extras (n, k) of records with norms (n,) and group numbers (n,)."""
        hot = groups.unsqueeze(-1) == torch.arange(len(self.thresholds), device=groups.device)  # (n, groups)
        seen = see(self, torch.where(hot.any(-1), norms, torch.nan), state)
        each = (hot * self._memory(seen.state)[0]).sum(-1).clamp_min(torch.finfo(seen.norms.dtype).tiny)  # (n,)
        weights = clip_factor(seen.norms, each)
        if not self.rate:
            return seen.seal(weights)
        centred = (seen.norms > self.tau * each).to(seen.norms.dtype) - self.target
        return seen.seal(weights, hot * (self._bit(seen.state) * centred).unsqueeze(-1))

    def update(self, state: State, released: Tensor) -> State:
        if not self.rate:
            return receive(self, state, released, extras=0)[0]
        state, released = receive(self, state, released, extras=len(self.thresholds))
        thresholds, proportions = self._memory(state)
        surplus = (released / (self._bit(state) * state.expected_batch_size * proportions)).clamp(-1.0, 1.0)
        thresholds = adjust_threshold(thresholds, self.rate * surplus, self.floor, self.ceiling)
        largest, memory = thresholds.amax(), torch.cat([thresholds, proportions])
        return replace(state, threshold=largest, bound=largest * self._inflation(), memory=memory)

    def _memory(self, state: State) -> tuple[Tensor, Tensor]:
        """The thresholds and the proportions of the groups, both on the state's device."""
        if state.memory is None or state.memory.shape != (2 * len(self.thresholds),):
            _validate.refuse("the clip state's memory", state.memory, "the thresholds and proportions of the groups")
        return state.memory[: len(self.thresholds)], state.memory[len(self.thresholds) :]

    def _proportions(self) -> tuple[float, ...]:
        return self.proportions or (1 / len(self.thresholds),) * len(self.thresholds)

    def _inflation(self) -> float:
        return 1 / math.sqrt(1 - self.share) if self.rate else 1.0

    def _bit(self, state: State) -> Tensor:
        """The distance s between the two values of the bit."""
        return math.sqrt(self.share) / max(self.target, 1 - self.target) * state.bound
