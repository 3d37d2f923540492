"""Adaptive clipping at a private quantile of the gradient norms, with or without a floor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Unpack

from torch import Tensor

from dpilot import _validate
from dpilot.clipping import base
from dpilot.clipping.base import Public, State


@dataclass(frozen=True, slots=True)
class Quantile:
    """Move the threshold until a fraction ``target`` of the norms lies above ``tau`` times it.

    Each record sends its clipped gradient and one centred bit through the same Gaussian release::

        w = min(1, C / n)        x = s (1[n > tau C] - 1/2)
        C' = clamp(C exp(rate (fraction - target)), floor, ceiling)
        fraction = clamp(released / (s B) + 1/2, 0, 1),    B the expected batch size

    where ``s / 2 = bound sqrt(share)`` and ``bound = C / sqrt(1 - share)``.

    Guarantee:
        (w n)^2 + x^2 <= C^2 + share bound^2 = bound^2 for every norm, so the receipt is that of plain DP-SGD. The price
        is gradient noise larger by 1 / sqrt(1 - share): 0.12 % at the default.

    Edge cases:
        n = 0            weight 1, counts as not above
        n = inf or nan   weight 0, extras 0 (the null record)
        empty batch      the update sees noise alone; the limits keep the threshold usable
        floor = 0        the threshold may shrink without end, down to the technical limit 1e-12

    Example:
        >>> import torch
        >>> rule = Quantile(threshold=1.0, rate=0.5)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=4, dimension=10)
        >>> weights, extras = rule.clip(torch.tensor([0.5, 2.0, 4.0, 8.0]), state)
        >>> float(rule.update(state, extras.sum(0)).threshold)  # three of four above: exp(0.5 * (0.75 - 0.5))
        1.1331...

    Reference:
        Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021 (tau = 1, Theorem 1);
        Esipova et al., "Disparate Impact in Differential Privacy from Gradient Misalignment", ICLR 2023 (tau);
        Zhao et al. 2026, Algorithm 2 (target counts the norms above tau C; floor).
    """

    threshold: float = 1.0
    target: float = 0.5
    tau: float = 1.0
    rate: float = 0.2
    share: float = 1 / 401
    floor: float = 0.0
    ceiling: float = math.inf

    def __post_init__(self) -> None:
        base.check_threshold(self.threshold, self.floor, self.ceiling)
        _validate.open_unit(target=self.target)
        _validate.positive(tau=self.tau)
        _validate.positive(rate=self.rate)
        _validate.open_unit("The bit needs a part of the bound, and so does the gradient.", share=self.share)

    def init(self, **public: Unpack[Public]) -> State:
        threshold = base.first_threshold(self.threshold, self.floor, self.ceiling)
        return base.start(self, threshold, threshold / math.sqrt(1 - self.share), **public)

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = base.see(self, norms, state)
        threshold = seen.state.threshold
        above = (seen.norms > self.tau * threshold).to(seen.norms.dtype) - 0.5
        return seen.seal(base.clip_factor(seen.norms, threshold), (self._bit(threshold) * above).unsqueeze(-1))

    def update(self, state: State, released: Tensor) -> State:
        state, released = base.receive(self, state, released, extras=1)
        mean_bit = released[..., 0] / (self._bit(state.threshold) * state.expected_batch_size)
        fraction = (mean_bit + 0.5).clamp(0.0, 1.0)
        threshold = base.adjust_threshold(
            state.threshold, self.rate * (fraction - self.target), self.floor, self.ceiling
        )
        return replace(state, threshold=threshold, bound=threshold / math.sqrt(1 - self.share))

    def _bit(self, threshold: Tensor) -> Tensor:
        """The distance s between the two values of the bit: 2 bound sqrt(share)."""
        return 2 * math.sqrt(self.share / (1 - self.share)) * threshold


def zhao(floor: float = 0.1, tau: float = 2.5, **parameters: Any) -> Quantile:
    """Zhao et al.'s bounded adaptive clipping: the quantile rule with a floor, at their defaults."""
    return Quantile(floor=floor, tau=tau, **parameters)


def esipova(target: float = 0.1, rate: float = 1.0, **parameters: Any) -> Quantile:
    """Esipova et al.'s rule C' = C exp(fraction - 0.1); they use it in the normalized form."""
    return Quantile(target=target, rate=rate, **parameters)


def bit_share(noise_multiplier: float, count_noise: float) -> float:
    """The share that gives the count a noise of standard deviation ``count_noise``, bits centred by 1/2.

    Formula::

        share = (sigma / (2 sigma_count))^2,    sigma_gradient = sigma / sqrt(1 - share)
                                                              = (sigma^-2 - (2 sigma_count)^-2)^(-1/2)

    Example:
        >>> round(1 / math.sqrt(1 - bit_share(1.0, 512 / 20)), 6)
        1.000191

    Reference:
        Andrew et al. 2021, Theorem 1.
    """
    share = (
        _validate.positive(noise_multiplier=noise_multiplier) / (2 * _validate.positive(count_noise=count_noise))
    ) ** 2
    return _validate.open_unit("Raise count_noise above noise_multiplier / 2.", share=share)
