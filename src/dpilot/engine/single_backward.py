"""Norms and clipped sums from one backward pass.

Trained weights take part in the forward pass detached, so autograd never forms their gradients. Each operation in which
a weight meets the samples is tapped (recorder.py); the backward pass leaves (input, output gradient) there, from which
a layer rule knows the squared norms and, once the weights are chosen, the weighted sum. The tracker (record/) knows
where the samples lie in every tensor on the way; what it does not know is not computed here.

The low-memory form takes one backward pass for the norms and a second one for the sum: each parameter's record is
measured as soon as the backward pass leaves it and dropped again, so that no more than one layer's records live at a
time. Small gradients (biases, scales) are kept; where all are small there is nothing to repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.engine.base import (
    LossFunction,
    NoRule,
    PerSample,
    accumulator,
    add_squares,
    make_handle,
    refill_squares,
    trainable,
)
from dpilot.engine.layers.base import Dense
from dpilot.engine.measure import SMALL, Measured, WeightedSums, combine
from dpilot.engine.record import Answers, Pass
from dpilot.engine.recorder import TAPPED, FoundUse, Recorder, own_name, settle, used_once
from dpilot.numerics import precision


def run(
    model: nn.Module, loss_fn: LossFunction, batch: Any, *, n: int, per_batch: bool, reason: str,
    low_memory: bool = False, answers: Answers | None = None,
) -> PerSample:  # fmt: skip
    """Record one forward and backward pass; measure every parameter; sum when asked.

    Raises NoRule where it is not known which rows belong to which sample, or where samples meet. ``answers`` are for a
    pass that is captured as a graph.

    Edge cases: random layers draw as in plain training, so every sample has its own mask.
    """
    parameters = trainable(model)
    if any(p.is_complex() for p in parameters.values()):
        raise NoRule("a trained parameter is complex.")
    with Pass.over(model, loss_fn, batch, n, answers) as watched:
        recorder = Recorder(parameters, watched.tracker, watched.exits)
        losses = forward(recorder, model, loss_fn, batch, per_batch)
        watched.require_apart(losses, TAPPED)
        # what was written is restored, and what a checkpoint computes again may differ: one pass for norms and sums
        twice = low_memory and not watched.guard.written and not recorder.recomputes
        return (two_passes if twice else finish)(recorder, losses, parameters, reason)


def finish(recorder: Recorder, losses: Tensor, parameters: Mapping[str, nn.Parameter], reason: str) -> PerSample:
    """The backward pass, the norms, and what it takes to sum.

    A parameter that is used once is measured as soon as its record is there, which is then dropped or made smaller.
    """
    measured, late, once = Measured(), list[FoundUse](), used_once(recorder)

    def receive(item: FoundUse) -> None:
        name = own_name(recorder, once, item)
        if name is None:
            late.append(item)
        else:
            measured.add(name, (item.use,))

    recorder.backward(losses, receive)
    with torch.no_grad(), precision.use_own_settings():
        for name, found in settle(recorder, late).items():
            measured.add(name, found)
        measured.finish()
    n = recorder.batch_size
    squares = {
        name: measured.squares[name] if name in measured.squares else p.detach().new_zeros(n, dtype=accumulator(p))
        for name, p in parameters.items()
    }
    squares = refill_squares(squares, parameters)
    whole = add_squares(squares)
    return make_handle("single-backward", reason, squares, WeightedSums.of(whole, measured, parameters), whole)


def forward(recorder: Recorder, model: nn.Module, loss_fn: LossFunction, batch: Any, per_batch: bool) -> Tensor:
    """The losses (n,), with every meeting of weights and samples tapped."""
    with torch.enable_grad(), recorder.tracker, recorder:
        return batches.check_losses(batches.losses(model, loss_fn, batch, per_batch), recorder.batch_size)


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
