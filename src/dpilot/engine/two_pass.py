"""The low-memory form of single-backward: one backward pass for the norms, a second one for the sum.

Each parameter's record is measured as soon as the backward pass leaves it and dropped again, so that no more than one
layer's records live at a time; the sum repeats the backward pass over the kept graph. Time grows by about that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine import precision
from dpilot.engine.base import PerSample, accumulator, added, handle
from dpilot.engine.combine import combine
from dpilot.engine.recorder import Found, Recorder
from dpilot.engine.settle import own_name, settle, used_once


def two_passes(recorder: Recorder, losses: Tensor, parameters: Mapping[str, nn.Parameter], reason: str) -> PerSample:
    """Norms now, sums by another backward pass whenever they are asked for."""
    n = recorder.batch_size
    squares = {name: p.detach().new_zeros(n, dtype=accumulator(p)) for name, p in parameters.items()}
    once = used_once(recorder)
    late: list[Found] = []

    def measure(item: Found) -> None:
        name = own_name(recorder, once, item)
        if name is None:
            late.append(item)
        else:
            squares[name] = combine([item.use])[0]

    recorder.backward(losses, measure, retain=True)
    with torch.no_grad(), precision.own():
        for name, uses in settle(recorder, late).items():
            squares[name] = combine(uses)[0]
    late.clear()
    return handle("single-backward", reason, squares, summing_again(recorder, losses, parameters, squares))


def summing_again(
    recorder: Recorder, losses: Tensor, parameters: Mapping[str, nn.Parameter], squares: Mapping[str, Tensor]
) -> Any:
    """The function from weights to weighted sums, each call one backward pass."""
    finite = torch.isfinite(added(squares))
    null = not bool(finite.all())

    def sum_with(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        totals = {
            name: torch.zeros_like(p, dtype=accumulator(p), requires_grad=False) for name, p in parameters.items()
        }
        late: list[Found] = []

        def add(name: str, use: Any) -> None:
            safe = use.keep(finite) if null else use
            totals[name] += safe.weighted_sum(weights[name]).view(totals[name].shape)

        def receive(item: Found) -> None:
            name = recorder.names.get(id(item.weight))
            if name is None or item.by_row:
                late.append(item)
            else:
                add(name, item.use)

        recorder.backward(losses, receive, retain=True)
        with torch.no_grad(), precision.own():
            for name, uses in settle(recorder, late).items():
                for use in uses:
                    add(name, use)
        return totals

    return sum_with
