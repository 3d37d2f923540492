"""From weights to weighted sums of the records that one backward pass left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpilot.engine import precision
from dpilot.engine.base import accumulator
from dpilot.engine.layers.base import Use
from dpilot.engine.measure import Measured, cheap

Shape = tuple[torch.Size, torch.dtype, torch.device]


@dataclass(frozen=True, slots=True)
class WeightedSums:
    """Sum over i of w_i g_i for every parameter; null samples are zeroed before any product.

    Where records are large, zeroing rows costs more than waiting to learn whether a sample is null (``waits``). The
    numbers of the other samples are the same either way.
    """

    finite: Tensor
    measured: Measured
    shapes: Mapping[str, Shape]
    waits: bool

    @staticmethod
    def of(whole: Tensor, measured: Measured, parameters: Mapping[str, nn.Parameter]) -> WeightedSums:
        shapes = {name: (p.shape, accumulator(p), p.device) for name, p in parameters.items()}
        return WeightedSums(torch.isfinite(whole), measured, shapes, not cheap(measured))

    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.without_null_rows(weights) if self.any_null() else self.steady(weights)

    def any_null(self) -> bool:
        """Whether a sample is null, where ``steady`` has to be told."""
        return self.any_null_asked()()

    def any_null_asked(self) -> Callable[[], bool]:
        """The same, asked now and told when called: work that is launched in between is not waited for."""
        if not self.waits:
            return lambda: False
        none = self.finite.all()
        if not none.is_cuda:
            return lambda: not bool(none)
        told = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(none, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(none.device))

        def answer() -> bool:
            event.synchronize()
            return not bool(told)

        return answer

    def steady(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums without waiting; where records are large, right if no sample is null."""
        return self._summed(weights, zeroing=not self.waits)

    def without_null_rows(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums from records whose null rows are zeros."""
        return self._summed(weights, zeroing=True)

    def _summed(self, weights: Mapping[str, Tensor], *, zeroing: bool) -> dict[str, Tensor]:
        """Parameter after parameter: a copy without null rows lives no longer than its own sum takes."""
        with torch.no_grad(), precision.use_own_settings():
            sides = [side.keep(self.finite) if zeroing else side for side in self.measured.side_by_side]
            small = {name: s for side in sides for name, s in side.weighted_sums(weights).items()}
            kept = self.finite if zeroing else None
            return {
                name: small[name]
                if name in small
                else total(self.measured.uses.get(name, ()), w, kept, *self.shapes[name])
                for name, w in weights.items()
            }


def total(
    uses: Iterable[Use], weights: Tensor, finite: Tensor | None, shape: torch.Size, dtype: torch.dtype,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """The weighted sum of one parameter over all its uses, the rows of samples that are not finite zeroed."""
    mine = weights.to(dtype)
    parts = [(use if finite is None else use.keep(finite)).weighted_sum(mine) for use in uses]
    if not parts:
        return torch.zeros(shape, dtype=dtype, device=device)
    result: Tensor = sum(parts[1:], start=parts[0])
    return result.view(shape)
