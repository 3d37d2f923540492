"""Automatic clipping: every gradient is scaled to about the same length, so there is nothing to tune."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping.base import LOWEST, FixedThreshold, State, check_threshold, see


@dataclass(frozen=True, slots=True)
class AutoS(FixedThreshold):
    """Divide every gradient by its norm plus a small constant, which keeps small gradients small.

    Formula::

        w = C / (n + gamma)

    Guarantee:
        w n = C n / (n + gamma) <= C = bound for every norm.

    Edge cases:
        n = 0            weight C / gamma
        n = inf or nan   weight 0 (the null record)

    Example:
        >>> import torch
        >>> rule = AutoS()
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=3, dimension=10)
        >>> rule.clip(torch.tensor([0.0, 0.99]), state)[0]
        tensor([100.,   1.])

    Reference:
        Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger", NeurIPS 2023,
        Algorithm 1 (AUTO-S, gamma = 0.01).
    """

    threshold: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        _validate.positive("Use auto-v for gamma = 0.", gamma=self.gamma)
        if self.gamma < LOWEST:
            _validate.refuse("gamma", self.gamma, f"at least {LOWEST:g}", "Use auto-v for gamma = 0.")

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = see(self, norms, state)
        return seen.seal(seen.state.threshold / (seen.norms + self.gamma))


@dataclass(frozen=True, slots=True)
class AutoV(FixedThreshold):
    """Divide every gradient by its norm: only its direction is used.

    Formula::

        w = C / max(n, 1e-12),    0 at n = 0

    Guarantee:
        w n <= C = bound for every norm.

    Edge cases:
        n = 0            weight 0: there is no direction
        n < 1e-12        the weight stops growing, so w n < C
        n = inf or nan   weight 0 (the null record)

    Example:
        >>> import torch
        >>> rule = AutoV(threshold=2.0)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=3, dimension=10)
        >>> rule.clip(torch.tensor([0.0, 0.5, 4.0]), state)[0]
        tensor([0.0000, 4.0000, 0.5000])

    Reference:
        Bu et al., "Automatic Clipping", NeurIPS 2023 (AUTO-V, the case gamma = 0).
    """

    threshold: float = 1.0

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = see(self, norms, state)
        inverse = seen.state.threshold / seen.norms.clamp_min(1e-12)  # C / n of a subnormal norm is no number
        return seen.seal(torch.where(seen.norms > 0, inverse, 0.0))
