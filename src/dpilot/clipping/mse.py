"""The threshold that makes the released gradient most accurate: noise variance against the worst clipping bias."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping.base import State, adjust_threshold
from dpilot.clipping.binning import Binned, arange_like


@dataclass(frozen=True, slots=True)
class MeanSquaredError(Binned):
    """Follow the threshold of least mean squared error, with the bias bounded as if all gradients were aligned.

    Formula, with f_j the released fraction of histogram bin j and m_j its middle::

        w = min(1, C / n)        x = bound sqrt(share) one-hot(bin of n)        bound = C / sqrt(1 - share)
        error(c) = sigma^2 c^2 d / ((1 - share) B^2)  +  (sum_j f_j (m_j - c)+)^2
        C' = clamp(C (best c / C)^rate, floor, ceiling),  the best of a geometric grid over the histogram's range

    Both terms are squared lengths of the mean gradient's error. The first is the noise; the second is the clipping bias
    |mean of (1 - c/n)+ g|^2 at its largest, when all clipped gradients point one way. It is never larger than the mean
    of the squares that histogram-e uses, and like it can only overstate the bias: thresholds err on the large side.

    Guarantee:
        (w n)^2 + |x|^2 <= C^2 + share bound^2 = bound^2 for every norm. The price is gradient noise larger by
        1 / sqrt(1 - share): 2 % at the default.

    Edge cases:
        n beyond the last bin    counts in the last bin, whose width doubles until less than ``overflow`` is there
        n = inf or nan           weight 0, extras 0 (the null record)
        nothing but noise        the threshold and the bins stay

    Example:
        >>> rule = MeanSquaredError(rate=1.0)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=400, dimension=160_000)
        >>> _, extras = rule.clip(torch.full((400,), 6.5), state)
        >>> round(float(rule.update(state, extras.sum(0)).threshold), 1)  # 6.5 / (1 + sigma^2 d / ((1 - share) B^2))
        3.2

    Reference:
        Rehn et al. 2026, Theorem 5.2 and Eq. 5, made private: the alignment, which needs raw gradients, is replaced by
        its upper bound and the norms by a released histogram. Wei et al. 2025 (DC-SGD-E) is the known instance.
    """

    rate: float = 0.2
    overflow: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        _validate.rate(rate=self.rate)
        self.check()

    def update(self, state: State, released: Tensor) -> State:
        state, fractions = self.receive(state, released)
        signal = self.above_noise(state, fractions)
        pull = torch.log(self._best(state, signal) / state.threshold) * (signal.sum() > 0)
        threshold = adjust_threshold(state.threshold, self.rate * pull, self.floor, self.ceiling)
        return self.advance(state, fractions, threshold)

    def _best(self, state: State, fractions: Tensor) -> Tensor:
        """The candidate of least error, from the end of the histogram down 20 halvings in steps of 2^(1/8)."""
        halvings = arange_like(20 * 8 + 1, fractions) / 8
        candidates = self.width_of(state) * self.bins * torch.exp2(-halvings)
        excess = (self.middles(state) - candidates.unsqueeze(-1)).clamp_min(0.0)  # (candidates, bins)
        bias = (fractions * excess).sum(-1)
        error = self.noise_variance(candidates, state) + bias.square()
        return torch.take(candidates, torch.argmin(error))
