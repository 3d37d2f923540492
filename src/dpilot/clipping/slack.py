"""Slack clipping: the length a gradient does not use carries a histogram of the norms, for free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping import base
from dpilot.clipping.base import Public, State


@dataclass(frozen=True, slots=True)
class Slack:
    """Send the unused length C - n of each gradient in K slots, and steer by the profile that comes back.

    Formula, with lambda = C / sqrt(K) the size of a slot and B the expected batch size::

        w = min(1, C / n)        x_k = clip(sqrt(K) (C - n)+ - (k - 1) lambda, 0, lambda),   k = 1 .. K
        s = released / (lambda B)                  the CDF of the norms, averaged over bins of width C / K
        C' = clamp(C exp(rate (gamma - s_1)), floor, ceiling)
        gamma = clip(1 - (1 - target) (1 - z), 0, 1)

    with z, the mass of the norms near 0, which should not pull the threshold down: s_K / C ("hat", Algorithm 1 and the
    authors' code), s_K / sqrt(K) ("tilde", Appendix C: unchanged when the loss is rescaled), or 0 ("quantile",
    SlaClip-Q).

    Guarantee:
        |x|^2 <= lambda sum x = C (C - n), so (w n)^2 + |x|^2 <= n^2 + C (C - n) <= C^2 = bound^2: the signal is free.

    Edge cases:
        n >= C           all slots empty
        n = 0            all slots full
        n = inf or nan   weight 0, extras 0 (the null record)
        slots = None     K = max(1, floor((B / (2 * 2.576 sigma))^(2/3))), Eq. 14: the noise keeps the slots in order
        floor, ceiling   none by default; the authors' code clamps to [0.1, 50], which the paper does not say

    Example:
        >>> rule = Slack(threshold=2.0, slots=4)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=4, dimension=10)
        >>> rule.clip(torch.tensor([0.5, 0.5, 1.0, 1.0]), state)[1].sum(0)
        tensor([4., 4., 2., 0.])

    Reference:
        Zou et al., "SlaClip", ICML 2026: Eq. 7 and 8, Lemma 3.2, Eq. 11 to 14, Algorithm 1, Appendix C.
    """

    threshold: float = 1.0
    slots: int | None = None
    variant: str = "hat"
    target: float = 0.5
    rate: float = 0.2
    floor: float = 0.0
    ceiling: float = math.inf

    def __post_init__(self) -> None:
        base.check_threshold(self.threshold, self.floor, self.ceiling)
        if self.slots is not None:
            _validate.count(slots=self.slots)
        _validate.one_of(("hat", "tilde", "quantile"), variant=self.variant)
        _validate.open_unit(target=self.target)
        _validate.positive(rate=self.rate)

    def init(self, **public: Unpack[Public]) -> State:
        threshold = base.first_threshold(self.threshold, self.floor, self.ceiling)
        state = base.start(self, threshold, threshold, **public)
        self._slots(state)
        return state

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = base.see(self, norms, state)
        slots, threshold = self._slots(state), seen.state.threshold
        slot = (threshold / math.sqrt(slots)).unsqueeze(-1)
        total = math.sqrt(slots) * (threshold - seen.norms).clamp_min(0.0)
        before = slot * torch.arange(slots, dtype=slot.dtype, device=slot.device)
        # sum x = min(sqrt(K) (C - n), K slot) and 0 <= x_k <= slot, so |x|^2 <= slot sum x = C (C - n).
        # tests/contracts/test_clipping.py::test_joint_norm_never_exceeds_bound_over_an_adaptive_run.
        extras = torch.minimum((total.unsqueeze(-1) - before).clamp_min(0.0), slot)
        return seen.seal(base.clip_factor(seen.norms, threshold), extras)

    def update(self, state: State, released: Tensor) -> State:
        state, released = base.receive(self, state, released, extras=self._slots(state))
        profile = self.profile(state, released)
        gamma = (1 - (1 - self.target) * (1 - self._near_zero(profile, state))).clamp(0.0, 1.0)
        exponent = self.rate * (gamma - profile[..., 0])
        threshold = base.adjust_threshold(state.threshold, exponent, self.floor, self.ceiling)
        return replace(state, threshold=threshold, bound=threshold)

    def profile(self, state: State, released: Tensor) -> Tensor:
        """The released slots as fractions: slot k estimates the CDF of the norms averaged over
        [C - k C/K, C - (k-1) C/K], with noise of standard deviation sigma sqrt(K) / B (Eq. 11)."""
        slot = state.threshold.unsqueeze(-1) / math.sqrt(self._slots(state))
        return released / (slot * state.expected_batch_size)

    def _slots(self, state: State) -> int:
        return self.slots or slots_for(state.noise_multiplier, state.expected_batch_size)

    def _near_zero(self, profile: Tensor, state: State) -> Tensor:
        last = profile[..., -1]
        if self.variant == "quantile":
            return torch.zeros_like(last)
        return last / (state.threshold if self.variant == "hat" else math.sqrt(profile.shape[-1]))


def slots_for(noise_multiplier: float, expected_batch_size: float) -> int:
    """The most slots whose noise does not hide their order, with 99 % confidence.

    Formula::

        K = max(1, floor((B / (2 * 2.576 sigma))^(2/3)))

    Example:
        >>> [slots_for(1.0, size) for size in (128, 256, 512, 1024, 2048)]
        [8, 13, 21, 34, 54]

    Reference:
        Zou et al. 2026, Eq. 14 and Appendix E. Their Table 3 rounds to 8, 10, 20, 30, 50.
    """
    if noise_multiplier == 0:
        _validate.refuse("noise_multiplier", 0.0, "a number > 0 to choose the slots by", "Give slots=.")
    z = 2.576  # the normal quantile at 0.995, to the digits of the paper
    return max(1, math.floor(math.pow(expected_batch_size / (2 * z * noise_multiplier), 2 / 3)))


def slack_q(variant: str = "quantile", **parameters: Any) -> Slack:
    """SlaClip-Q: the threshold follows a fixed quantile, read from the first slot (Eq. 12)."""
    return Slack(variant=variant, **parameters)


def slack_with_floor(floor: float = 0.1, **parameters: Any) -> Slack:
    """Slack clipping with the floor of bounded adaptive clipping."""
    return Slack(floor=floor, **parameters)
