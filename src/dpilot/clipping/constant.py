"""Clipping at one declared threshold: plain DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpilot.clipping.base import FixedThreshold, State, check_threshold, clip_factor, see


@dataclass(frozen=True, slots=True)
class Constant(FixedThreshold):
    """Clip every gradient to the same declared length.

    Formula::

        w = min(1, C / n)

    Guarantee:
        w n <= C = bound for every norm.

    Edge cases:
        n = 0            weight 1
        n = inf or nan   weight 0 (the null record)

    Example:
        >>> import torch
        >>> rule = Constant(threshold=1.0)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=3, dimension=10)
        >>> weights, extras = rule.clip(torch.tensor([0.0, 0.5, 4.0, float("nan")]), state)
        >>> weights, tuple(extras.shape)
        (tensor([1.0000, 1.0000, 0.2500, 0.0000]), (4, 0))

    Reference:
        Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1.
    """

    threshold: float = 1.0

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = see(self, norms, state)
        return seen.seal(clip_factor(seen.norms, seen.state.threshold))
