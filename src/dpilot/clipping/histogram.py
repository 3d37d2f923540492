"""Dynamic clipping from a released histogram of the gradient norms (DC-SGD)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping.base import State
from dpilot.clipping.binning import Binned, arange_like, quantile_bin


@dataclass(frozen=True, slots=True)
class HistogramP(Binned):
    """Set the threshold to a percentile of the norms, read from a noisy histogram of them.

    Formula::

        w = min(1, C / n)        x = bound sqrt(share) one-hot(bin of n)        bound = C / sqrt(1 - share)
        C' = the norm below which a fraction ``percentile`` of the released histogram lies, linear inside a bin

    The histogram's noise is sigma / sqrt(share) counts a bin: 5 sigma at the default share of 1/25. Its bins double in
    width when more than ``overflow`` lies in the last, and halve when less than ``vacancy`` lies in the upper half.

    Guarantee:
        (w n)^2 + |x|^2 <= C^2 + share bound^2 = bound^2 for every norm. The price is gradient noise larger by
        1 / sqrt(1 - share): 2 % at the default.

    Edge cases:
        n beyond the last bin    counts in the last bin
        n = inf or nan           weight 0, extras 0 (the null record)
        nothing but noise        the bins stay; the threshold stays inside its limits

    Example:
        >>> rule = HistogramP(percentile=0.5)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=400, dimension=10)
        >>> _, extras = rule.clip(torch.linspace(0, 8, 400), state)
        >>> round(float(rule.update(state, extras.sum(0)).threshold), 2)
        4.0

    Reference:
        Wei et al., "DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient Norm Distribution
        Estimation", IEEE TIFS 2025 (DC-SGD-P).
    """

    percentile: float = 0.3

    def __post_init__(self) -> None:
        _validate.open_unit(percentile=self.percentile)
        self.check()

    def update(self, state: State, released: Tensor) -> State:
        state, fractions = self.receive(state, released)
        index, part = quantile_bin(fractions, self.percentile)
        return self.advance(state, fractions, self.width_of(state) * (index + part))


@dataclass(frozen=True, slots=True)
class HistogramE(Binned):
    """Set the threshold where noise variance plus clipping error is least, read from a noisy histogram of the norms.

    Formula, the first two lines those of histogram-p, f_j the released fraction of bin j and m_j its middle::

        w = min(1, C / n)        x = bound sqrt(share) one-hot(bin of n)        bound = C / sqrt(1 - share)
        error(c) = sigma^2 c^2 d / ((1 - share) B^2)  +  sum_j f_j (m_j - c)+^2
        C' = the best of 0.1 C, 0.2 C, .. 2 C; then the best of 0.1 to 2 times that; ``rounds`` times in all

    Both terms are squared lengths of the mean gradient's error; the second bounds the squared bias by the mean of the
    squares. The published search goes on while the best is at an edge, which need not end: here it has ``rounds``.

    Guarantee:
        (w n)^2 + |x|^2 <= C^2 + share bound^2 = bound^2 for every norm. The price is gradient noise larger by
        1 / sqrt(1 - share): 2 % at the default.

    Edge cases:
        n beyond the last bin    counts in the last bin
        n = inf or nan           weight 0, extras 0 (the null record)
        nothing but noise        the threshold and the bins stay

    Example:
        >>> rule = HistogramE()
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=400, dimension=10)
        >>> _, extras = rule.clip(torch.full((400,), 6.2), state)
        >>> round(float(rule.update(state, extras.sum(0)).threshold), 1)  # little noise: hardly any clipping
        6.8

    Reference:
        Wei et al., "DC-SGD", IEEE TIFS 2025 (DC-SGD-E).
    """

    rounds: int = 3

    def __post_init__(self) -> None:
        _validate.count(rounds=self.rounds)
        self.check()

    def update(self, state: State, released: Tensor) -> State:
        state, fractions = self.receive(state, released)
        signal = self.above_noise(state, fractions)
        best = state.threshold
        for _ in range(self.rounds):
            candidates = best * ((arange_like(20, best) + 1) / 10)
            best = torch.take(candidates, torch.argmin(self._error(candidates, state, signal)))
        return self.advance(state, fractions, torch.where(signal.sum() > 0, best, state.threshold))

    def _error(self, candidates: Tensor, state: State, fractions: Tensor) -> Tensor:
        excess = (self.middles(state) - candidates.unsqueeze(-1)).clamp_min(0.0)  # (candidates, bins)
        return self.noise_variance(candidates, state) + (fractions * excess.square()).sum(-1)


def histogram_share(noise_multiplier: float, histogram_noise: float) -> float:
    """The share that gives each bin a noise of standard deviation ``histogram_noise``.

    Formula::

        share = (sigma / sigma_histogram)^2,    1 / sigma^2 = 1 / sigma_gradient^2 + 1 / sigma_histogram^2

    Example:
        >>> histogram_share(1.0, 4.0)
        0.0625
    """
    sigma = _validate.positive(noise_multiplier=noise_multiplier)
    share = (sigma / _validate.positive(histogram_noise=histogram_noise)) ** 2
    return _validate.open_unit("Raise histogram_noise above noise_multiplier.", share=share)
