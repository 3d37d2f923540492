"""From weights to weighted sums of the records that one backward pass left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpilot.engine import precision
from dpilot.engine.base import accumulator
from dpilot.engine.layers.base import Use
from dpilot.engine.measure import Measured, cheap

Shape = tuple[torch.Size, torch.dtype, torch.device]


@dataclass(frozen=True, slots=True)
class Sums:
    """Sum over i of w_i g_i for every parameter; null samples are zeroed before any product.

    Where records are large, zeroing rows costs more than waiting to learn whether a sample is null (``waits``). The
    numbers of the other samples are the same either way.
    """

    finite: Tensor
    measured: Measured
    shapes: Mapping[str, Shape]
    waits: bool

    @staticmethod
    def of(whole: Tensor, measured: Measured, parameters: Mapping[str, nn.Parameter]) -> Sums:
        shapes = {name: (p.shape, accumulator(p), p.device) for name, p in parameters.items()}
        return Sums(torch.isfinite(whole), measured, shapes, not cheap(measured))

    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.zeroed(weights) if self.any_null() else self.steady(weights)

    def any_null(self) -> bool:
        """Whether a sample is null, where ``steady`` has to be told."""
        return self.waits and not bool(self.finite.all())

    def steady(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums without waiting; where records are large, right if no sample is null."""
        return self._summed(weights, self.measured) if self.waits else self.zeroed(weights)

    def zeroed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums from records whose null rows are zeros."""
        with torch.no_grad():
            return self._summed(weights, self.measured.keep(self.finite))

    def _summed(self, weights: Mapping[str, Tensor], measured: Measured) -> dict[str, Tensor]:
        with torch.no_grad(), precision.own():
            small = {name: s for side in measured.side_by_side for name, s in side.weighted_sums(weights).items()}
            return {
                name: small[name] if name in small else total(measured.uses.get(name, ()), w, *self.shapes[name])
                for name, w in weights.items()
            }


def total(uses: Iterable[Use], weights: Tensor, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The weighted sum of one parameter over all its uses."""
    parts = [use.weighted_sum(weights) for use in uses]
    if not parts:
        return torch.zeros(shape, dtype=dtype, device=device)
    result: Tensor = sum(parts[1:], start=parts[0])
    return result.view(shape)
