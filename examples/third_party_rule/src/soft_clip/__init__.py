"""A clipping rule without a corner: C tanh(n / C) in place of min(n, C)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpilot.clipping.base import FixedThreshold, State, check_threshold, see

__all__ = ["Soft"]


@dataclass(frozen=True, slots=True)
class Soft(FixedThreshold):
    """Bring every gradient below a declared length, smoothly.

    Formula::

        w = C tanh(n / C) / n,   1 at n = 0

    Guarantee:
        w n = C tanh(n / C) <= C = bound for every norm.
    """

    threshold: float = 1.0

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = see(self, norms, state)
        ratio = seen.norms / seen.state.threshold
        tiny = ratio < 1e-3
        weights = torch.where(tiny, 1.0, torch.tanh(ratio) / torch.where(tiny, 1.0, ratio))
        return seen.seal(weights)
