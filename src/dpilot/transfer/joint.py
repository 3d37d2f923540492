"""The clipping rule of several heads that step together, and the one release that they come to.

The gradients of head j are clipped at its threshold C_j, and its sum is released in units of its noise, C_j sigma_j. So
all heads together move by at most bound, and one Gaussian of standard deviation 1 covers them::

    w_j = min(1, C_j / n_j)          sum_j (w_j n_j / (C_j sigma_j))^2 <= bound^2 = sum_j 1 / sigma_j^2 = mu^2

which is exactly what the heads' own receipts add up to. Each head's own release is drawn from its own receipt, so the
ledger sees what it would see of heads fitted one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpilot.errors import InternalError
from dpilot.mechanism import SYSTEM, Draws, Noise
from dpilot.privacy.events import Event, Gaussian

__all__ = ["JointHeads", "clip_heads"]


_ROOM: Final = torch.tensor(1 - 2.0**-22)


def clip_heads(norms: Tensor, state: object) -> tuple[Tensor, Tensor]:
    """Weights min(1, 1 / n_j) for norms (n, heads) in thresholds, 0 where a norm is not finite; no extras.

    Guarantee:
        w_j n_j <= 1 (``tests/contracts/test_private_sum.py``): 1 - 2^-22 has room for the two roundings of a weight. No
        head's weights depend on another's.
    """
    del state  # norms are in thresholds already
    return torch.div(_ROOM, norms).clamp_(0.0, 1.0).nan_to_num_(nan=0.0), norms[:, :0]


@final
@dataclass(frozen=True, slots=True)
class JointHeads:
    """The public state of ``clip_heads``, and what pays: noise multiplier, receipt and, if it has one, noise of each.

    Guarantee:
        If part j moves by at most 1 / multipliers[j] when a record is added or removed, the release is for each j a
        Gaussian mechanism of multipliers[j], with noise that is independent between parts, and Gaussian(multipliers[j])
        was drawn from receipts[j] before any noise was made.
    """

    multipliers: tuple[float, ...]  # sigma_j
    thresholds: tuple[float, ...]  # C_j
    receipts: tuple[Draws, ...]
    noises: tuple[Noise, ...] | None = None

    @property
    def units(self) -> list[float]:
        """C_j sigma_j, the standard deviations of the heads' noise: what their sums are divided by."""
        return [sigma * threshold for sigma, threshold in zip(self.multipliers, self.thresholds, strict=True)]

    @property
    def bound(self) -> float:
        return math.hypot(*(1 / sigma for sigma in self.multipliers))

    @property
    def noise_multiplier(self) -> float:
        """What makes noise of standard deviation 1, rounded up."""
        return (1 + 2.0**-40) / self.bound

    @property
    def noise(self) -> Noise:
        return SYSTEM if self.noises is None else _NoiseByHead(self.noises, self.multipliers)

    def draw(self, event: Event) -> None:
        """Take one release of every head, in place of the one Gaussian they come to."""
        del event
        for sigma, receipt in zip(self.multipliers, self.receipts, strict=True):
            receipt.draw(Gaussian(sigma))


@dataclass(frozen=True, slots=True)
class _NoiseByHead:
    """A noise source made of one a head, each of which is told the head's own bound: hardened ones round by it.

    Rounding moves head j by g sqrt(d_j) / 2 at most. Were its noise to grow by a part of the joint bound that covers
    this, it would grow by less than head j, whose own bound is smaller.
    """

    noises: tuple[Noise, ...]
    multipliers: tuple[float, ...]

    @property
    def stamp(self) -> str:
        return "; ".join(dict.fromkeys(noise.stamp for noise in self.noises))

    def gaussian(self, values: Sequence[Any], *, bound: float, noise_multiplier: float) -> list[Any]:
        (parts,) = values
        scale = bound * noise_multiplier
        each = zip(self.noises, parts, self.multipliers, strict=True)
        noisy = (n.gaussian([part], bound=scale / sigma, noise_multiplier=sigma) for n, part, sigma in each)
        return [torch.stack([part for (part,) in noisy])]

    def choice(self, log_weights: NDArray[np.float64]) -> NoReturn:
        raise InternalError(f"a head's noise was asked to choose among {log_weights.size}: it only adds Gaussians.")
