"""Norms and clipped sums from one backward pass.

Trained weights take part in the forward pass detached, so autograd never forms their gradients. Each operation in which
a weight meets the samples is tapped (recorder.py); the backward pass leaves (input, output gradient) there, from which
a layer rule knows the squared norms and, once the weights are chosen, the weighted sum. The tracker (record/) knows
where the samples lie in every tensor on the way; what it does not know is not computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from dpilot.engine.measure import Measured, WeightedSums
from dpilot.engine.record import Answers, Pass
from dpilot.engine.recorder import FoundUse, Recorder
from dpilot.engine.settle import own_name, settle, used_once
from dpilot.engine.two_pass import two_passes
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
        watched.require_apart(losses)
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
