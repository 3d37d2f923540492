"""Per-sample adaptive clipping: small gradients keep more of their length than under normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpilot import _validate
from dpilot.clipping.base import FixedThreshold, State, check_threshold, see


@dataclass(frozen=True, slots=True)
class Psac(FixedThreshold):
    """Weigh every gradient by a curve that is nearly C / n for large norms and does not explode for small ones.

    Formula::

        w = C / (n + r / (n + r))

    Guarantee:
        w n = C n / (n + r / (n + r)) <= C = bound for every norm.

    Edge cases:
        n = 0            weight C: the weight of a vanishing gradient is not C / r, as it would be under auto-s
        n = inf or nan   weight 0 (the null record)

    Example:
        >>> import torch
        >>> rule = Psac(threshold=2.0, softening=0.1)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=3, dimension=10)
        >>> rule.clip(torch.tensor([0.0, 0.1, 0.9, 100.0]), state)[0]
        tensor([2.0000, 3.3333, 2.0000, 0.0200])

    Reference:
        Xia et al., "Differentially Private Learning with Per-Sample Adaptive Clipping", AAAI 2023 (DP-PSAC).
    """

    threshold: float = 1.0
    softening: float = 0.1

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        _validate.positive(softening=self.softening)

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        seen = see(self, norms, state)
        padding = self.softening / (seen.norms + self.softening)
        return seen.seal(seen.state.threshold / (seen.norms + padding))
