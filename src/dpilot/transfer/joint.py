"""One release for several heads: independent Gaussians on the same records are one Gaussian on all of them.

Head j's sum, divided by its threshold and its noise multiplier, moves by at most 1 / sigma_j, so all of them together
by at most bound = sqrt(sum_j 1 / sigma_j^2), and one Gaussian of standard deviation 1 covers them::

    mu^2 = bound^2 = sum_j 1 / sigma_j^2            exactly what the heads' own receipts add up to

Each head's own release is drawn from its own receipt, so the ledger sees what it would see of heads fitted one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpilot.errors import InternalError
from dpilot.mechanism import SYSTEM, Draws, Noise, release
from dpilot.privacy.events import Event, Gaussian

__all__ = ["Joint"]

_UP: Final = 1 + 2.0**-40  # so that noise_multiplier * bound cannot round to less than 1


@dataclass(frozen=True, slots=True)
class Joint:
    """The heads that step together: noise multiplier and receipt of each, and its noise source if it has its own.

    Guarantee:
        If part j moves by at most 1 / multipliers[j] when a record is added or removed, the release is for each j a
        Gaussian mechanism of multipliers[j], with noise that is independent between parts, and Gaussian(multipliers[j])
        was drawn from receipts[j] before any noise was made.
    """

    multipliers: tuple[float, ...]
    receipts: tuple[Draws, ...]
    noises: tuple[Noise, ...] | None = None

    def release(self, parts: Tensor) -> Tensor:
        """``parts`` (heads, classes, d) plus standard normal noise in every entry."""
        bound = math.hypot(*(1 / sigma for sigma in self.multipliers))
        noise = SYSTEM if self.noises is None else _Each(self.noises)
        return release(parts, bound=bound, noise_multiplier=_UP / bound, receipt=self, noise=noise)

    def draw(self, event: Event) -> None:
        """Take one release of every head, in place of the one Gaussian they come to."""
        del event
        for sigma, receipt in zip(self.multipliers, self.receipts, strict=True):
            receipt.draw(Gaussian(sigma))


@dataclass(frozen=True, slots=True)
class _Each:
    """A noise source made of one a head."""

    noises: tuple[Noise, ...]

    @property
    def stamp(self) -> str:
        return "; ".join(dict.fromkeys(noise.stamp for noise in self.noises))

    def gaussian(self, values: Sequence[Any], *, bound: float, noise_multiplier: float) -> list[Any]:
        (parts,) = values
        options = {"bound": bound, "noise_multiplier": noise_multiplier}
        pairs = zip(self.noises, parts, strict=True)
        return [torch.stack([noise.gaussian([part], **options)[0] for noise, part in pairs])]

    def choice(self, log_weights: NDArray[np.float64]) -> NoReturn:
        raise InternalError(f"a head's noise was asked to choose among {log_weights.size}: it only adds Gaussians.")
