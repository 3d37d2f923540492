"""The layer-wise form of a rule: each group of parameters has its own threshold, all of them one bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Unpack, cast

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping.automatic import AutoS, AutoV
from dpilot.clipping.base import Clipping, Public, State, identity, inside, see
from dpilot.clipping.constant import Constant
from dpilot.clipping.psac import Psac
from dpilot.clipping.quantile import Quantile
from dpilot.clipping.slack import Slack

_KINDS: Final = (Constant, AutoS, AutoV, Psac, Quantile, Slack)


@dataclass(frozen=True, slots=True)
class LayerWise:
    """Run a rule on each of ``groups`` groups of parameters, with its own threshold and signal.

    Norms come in as (n, groups) and weights go out as (n, groups); the extras of the groups stand side by side.

    Formula, with C_g and bound_g those of the rule in group g, first C / sqrt(groups) each::

        bound^2 = sum over g of bound_g^2        threshold^2 = sum over g of C_g^2

    Guarantee:
        sum over g of ((w_g n_g)^2 + |x_g|^2) <= sum over g of bound_g^2 = bound^2.

    Edge cases:
        one norm not finite     the whole record is null: all its weights and extras are 0
        floor, ceiling          hold for the threshold of each group
        noise                   the signal of a group has noise of sigma bound, sqrt(groups) times its own: the rule
                                starts from that multiplier, and slack takes fewer slots

    Example:
        >>> rule = LayerWise(Constant(threshold=5.0), groups=2)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=2, dimension=10)
        >>> float(state.bound), state.inner.threshold
        (5.0, tensor([3.5355, 3.5355], dtype=torch.float64))
        >>> rule.clip(torch.tensor([[1.0, 7.0711], [1.0, float("nan")]]), state)[0]
        tensor([[1.0000, 0.5000],
                [0.0000, 0.0000]])

    Reference:
        McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018 (per-layer clipping);
        Zou et al. 2026, section 6 (layer-wise slack).
    """

    rule: Clipping
    groups: int

    def __post_init__(self) -> None:
        _validate.count(groups=self.groups)
        if not isinstance(self.rule, _KINDS):
            known = ", ".join(kind.__name__ for kind in _KINDS)
            _validate.refuse("the rule of a layer-wise form", self.rule, f"one of {known}")

    def init(self, **public: Unpack[Public]) -> State:
        parts = math.sqrt(self.groups)
        inner_public = cast(Public, {**public, "noise_multiplier": public["noise_multiplier"] * parts})
        one = replace(cast(Any, self.rule), threshold=cast(Any, self.rule).threshold / parts).init(**inner_public)
        own = replace(
            one,
            threshold=one.threshold.repeat(self.groups),
            bound=one.bound.repeat(self.groups),
            origin=identity(self.rule),
        )
        return self._combine(own, public["noise_multiplier"])

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        if norms.ndim != 2 or norms.shape[1] != self.groups:
            _validate.refuse("the shape of the norms", tuple(norms.shape), f"(n, {self.groups}), one norm a group")
        seen = see(self, norms, state)
        weights, extras = self.rule.clip(norms, inside(self, seen.state))  # (n, groups), (n, groups, k)
        return seen.seal(weights.to(seen.norms.dtype), extras.flatten(1).to(seen.norms.dtype))

    def update(self, state: State, released: Tensor) -> State:
        own = inside(self, state)
        return self._combine(self.rule.update(own, released.reshape(self.groups, -1)), state.noise_multiplier)

    def _combine(self, own: State, noise_multiplier: float) -> State:
        """The state of the whole from the states of its groups: squares add."""
        total = torch.linalg.vector_norm
        return replace(
            own,
            threshold=total(own.threshold),
            bound=total(own.bound),
            noise_multiplier=noise_multiplier,
            inner=own,
            origin=identity(self),
        )
