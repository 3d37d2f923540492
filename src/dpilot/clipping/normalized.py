"""The normalized form of any rule: the step size and the threshold no longer pull on each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

from torch import Tensor

from dpilot.clipping.base import Clipping, Public, State, identity, inside, see, update_from_release


@dataclass(frozen=True, slots=True)
class Normalized:
    """Divide the weights, the extras and the bound of a rule by its threshold C.

    Formula::

        w = w_rule / C        x = x_rule / C        bound = bound_rule / C

    Guarantee:
        (w n)^2 + |x|^2 = ((w_rule n)^2 + |x_rule|^2) / C^2 <= bound^2, and C is public.

    Edge cases:
        C small          the weight of a small gradient is 1 / C, at most 1e12
        layer-wise form  C is the root of the sum of the squared layer thresholds

    Example:
        >>> import torch
        >>> from dpilot.clipping import Constant
        >>> rule = Normalized(Constant(threshold=4.0))
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=2, dimension=10)
        >>> float(state.threshold), float(state.bound), rule.clip(torch.tensor([1.0, 8.0]), state)[0]
        (4.0, 1.0, tensor([0.2500, 0.1250]))

    Reference:
        De et al., "Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022;
        Zhao et al. 2026, Algorithms 1 and 2.
    """

    rule: Clipping

    def init(self, **public: Unpack[Public]) -> State:
        return self._normalize(self.rule.init(**public))

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = see(self, norms, state)
        own, work = inside(self, seen.state), seen.norms.dtype
        weights, extras = self.rule.clip(norms, own)
        return seen.seal(weights.to(work) / own.threshold, extras.to(work) / own.threshold)

    @property
    def reads_length(self) -> bool:
        """Whether the rule inside learns from the length of the released gradient."""
        return getattr(self.rule, "reads_length", False)

    def update(self, state: State, released: Tensor, length: Tensor | None = None) -> State:
        own = inside(self, state.to(released.device))
        extras = released.to(own.threshold.dtype) * own.threshold
        if length is None:
            return self._normalize(self.rule.update(own, extras))
        return self._normalize(update_from_release(self.rule, own, extras, length.to(extras) * own.threshold))

    def _normalize(self, own: State) -> State:
        return replace(own, bound=own.bound / own.threshold, memory=None, inner=own, origin=identity(self))
