"""The low-memory form of single-backward: one backward pass for the norms, a second one for the sum.

Each parameter's record is measured as soon as the backward pass leaves it and dropped again, so that no more than one
layer's records live at a time; the sum repeats the backward pass over the kept graph. Time grows by about that. Small
gradients (biases, scales) are kept; where all are small there is nothing to repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine.base import PerSample, accumulator, add_squares, make_handle, refill_squares
from dpilot.engine.layers.base import Dense
from dpilot.engine.measure import SMALL, combine
from dpilot.engine.recorder import FoundUse, Recorder
from dpilot.engine.settle import own_name, settle, used_once
from dpilot.numerics import precision


def two_passes(recorder: Recorder, losses: Tensor, parameters: Mapping[str, nn.Parameter], reason: str) -> PerSample:
    """Norms now, sums by another backward pass whenever they are asked for."""
    n = recorder.batch_size
    squares = {name: p.detach().new_zeros(n, dtype=accumulator(p)) for name, p in parameters.items()}
    once, late, kept, formed = used_once(recorder), list[FoundUse](), dict[str, Dense](), set[str]()

    def measure(item: FoundUse) -> None:
        name = own_name(recorder, once, item)
        if name is None:
            late.append(item)
            return
        squares[name], (use,) = combine([item.use])
        if isinstance(use, Dense) and use.values[0].numel() <= SMALL:
            kept[name] = use
        elif use is not item.use:
            formed.add(name)

    recorder.backward(losses, measure, retain=True)
    with torch.no_grad(), precision.use_own_settings():
        for name, uses in settle(recorder, late).items():
            squares[name] = combine(uses)[0]
    late.clear()
    squares = refill_squares(squares, parameters)
    again = Again(once, kept, formed)
    return make_handle(
        "single-backward", reason, squares, second_pass_sums(recorder, losses, parameters, squares, again)
    )


@dataclass(frozen=True, slots=True)
class Again:
    """What the first pass knows: parameters used once, small gradients kept, and gradients that were formed.

    A norm bounds one way of summing: what was measured formed must be summed formed.
    """

    once: set[int]
    kept: Mapping[str, Dense]
    formed: set[str]


def second_pass_sums(
    recorder: Recorder, losses: Tensor, parameters: Mapping[str, nn.Parameter], squares: Mapping[str, Tensor],
    again: Again,
) -> Any:  # fmt: skip
    """The function from weights to weighted sums, each call one backward pass unless all that is needed was kept."""
    finite = torch.isfinite(add_squares(squares))
    null = not bool(finite.all())

    def sum_with(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        totals = {
            name: torch.zeros_like(p, dtype=accumulator(p), requires_grad=False) for name, p in parameters.items()
        }
        late: list[FoundUse] = []

        def add(name: str, use: Any) -> None:
            safe = use.keep(finite) if null else use
            mine = weights[name].to(totals[name].dtype)
            totals[name] += safe.weighted_sum(mine).view(totals[name].shape)

        def receive(item: FoundUse) -> None:
            name = own_name(recorder, again.once, item)
            if name is None:
                late.append(item)
            elif name not in again.kept:
                add(name, combine([item.use])[1][0] if name in again.formed else item.use)

        with torch.no_grad(), precision.use_own_settings():
            for name, dense in again.kept.items():
                add(name, dense)
        if len(again.kept) < len(parameters):
            recorder.backward(losses, receive, retain=True)
        with torch.no_grad(), precision.use_own_settings():
            for name, uses in settle(recorder, late).items():
                for use in combine(uses)[1]:
                    add(name, use)
        return totals

    return sum_with
