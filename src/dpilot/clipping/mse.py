"""The threshold that makes the released gradient most accurate: noise variance against a bound of the clipping bias."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch
from torch import Tensor

from dpilot import _validate
from dpilot.clipping.base import HIGHEST, State, adjust_threshold
from dpilot.clipping.binning import Binned, arange_like

BOUNDED: Final = "bounded"
ESTIMATED: Final = "estimated"


@dataclass(frozen=True, slots=True)
class MeanSquaredError(Binned):
    """Follow the threshold of least mean squared error, with the clipping bias bounded from what was released.

    Formula, with f_j the released fraction of histogram bin j, m_j its middle and l the length of the clipped mean::

        w = min(1, C / n)        x = bound sqrt(share) one-hot(bin of n)        bound = C / sqrt(1 - share)
        error(c) = sigma^2 c^2 d / ((1 - share) B^2)  +  bias(c)^2
        bounded      bias(c) = min over a >= 0 of  a l + sum_j f_j |(m_j - c)+ - a min(m_j, C)|
        estimated    bias(c) = l / (sum_j f_j min(m_j, C))  sum_j f_j (m_j - c)+
        C' = clamp(C (best c / C)^rate, floor, ceiling),  the best of a geometric grid over the histogram's range

    Both terms are squared lengths of the mean gradient's error: its noise, and the bias |mean of (1 - c/n)+ g|. With
    h = min(1, C/n) g, what is clipped off is (n - c)+ / min(n, C) h. For any a its mean is that of a h, whose length is
    a l, and a rest that is longest when all gradients point one way: ``bounded``. At a = 0 that is all of it, the bound
    used where no length is told. l^2 is the squared length of the released mean less that of its noise, and two
    standard deviations. ``estimated`` takes what is clipped off for as aligned as what is kept: closer to the optimum,
    but no bound, and too low where few records have long gradients that all point one way (a rare class).

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
        Rehn et al. 2026, Theorem 5.2 and Eq. 5, made private: the alignment, which needs raw gradients, is bounded from
        the length of the released gradient, the norms are those of a released histogram. Wei et al. 2025 (DC-SGD-E) is
        the known instance.
    """

    rate: float = 0.2
    overflow: float = field(default=0.1, kw_only=True)
    bias: str = field(default=BOUNDED, kw_only=True)

    reads_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.rate(rate=self.rate)
        _validate.one_of((BOUNDED, ESTIMATED), bias=self.bias)
        self.check()

    def update(self, state: State, released: Tensor, length: Tensor | None = None) -> State:
        """The next state; ``length`` is that of the released (noisy) sum of the gradients."""
        clipped = None if length is None else self._clipped_length(state, length)
        state, fractions = self.receive(state, released)
        signal = self.above_noise(state, fractions)
        pull = torch.log(self._best(state, signal, clipped) / state.threshold) * (signal.sum() > 0)
        threshold = adjust_threshold(state.threshold, self.rate * pull, self.floor, self.ceiling)
        return self.advance(state, fractions, threshold)

    def _clipped_length(self, state: State, length: Tensor) -> Tensor:
        """The length of the clipped mean without its noise: at most, but for two standard deviations.

        |m + z|^2 has mean |m|^2 + d s^2 and variance 2 d s^4 + 4 |m|^2 s^2, z of d coordinates of variance s^2.
        """
        state = state.to(length.device)
        coordinate = (state.noise_multiplier * state.bound / state.expected_batch_size).square()
        mean = (length.to(state.threshold.dtype) / state.expected_batch_size).square() - state.dimension * coordinate
        mean = torch.nan_to_num(mean, nan=HIGHEST).clamp(0.0, HIGHEST)
        deviation = (2 * state.dimension * coordinate.square() + 4 * mean * coordinate).sqrt()
        return (mean + 2 * deviation).sqrt()

    def _best(self, state: State, fractions: Tensor, clipped: Tensor | None) -> Tensor:
        """The candidate of least error, from the end of the histogram down 20 halvings in steps of 2^(1/8)."""
        halvings = arange_like(20 * 8 + 1, fractions) / 8
        candidates = self.width_of(state) * self.bins * torch.exp2(-halvings)
        excess = (self.middles(state) - candidates.unsqueeze(-1)).clamp_min(0.0)  # (candidates, bins)
        error = self.noise_variance(candidates, state) + self._bias(state, fractions, excess, clipped).square()
        return torch.take(candidates, torch.argmin(error))

    def _bias(self, state: State, fractions: Tensor, excess: Tensor, clipped: Tensor | None) -> Tensor:
        aligned = (fractions * excess).sum(-1)
        if clipped is None:
            return aligned
        kept = torch.minimum(self.middles(state), state.threshold)
        if self.bias == ESTIMATED:
            longest = (fractions * kept).sum().clamp_min(torch.finfo(kept.dtype).tiny)
            return aligned * (clipped / longest).clamp_max(1.0)
        # Convex and piecewise linear in a, with corners where a bin's rest is 0: the least is at a corner, or at a = 0.
        corners = (excess / kept).unsqueeze(-1)  # (candidates, bins, 1)
        rest = (fractions * (excess.unsqueeze(1) - corners * kept).abs()).sum(-1)
        return torch.minimum(aligned, (corners.squeeze(-1) * clipped + rest).min(-1).values)
