"""Norms and clipped sums from one backward pass.

Trained weights take part in the forward pass detached, so autograd never forms their gradients. Each operation in which
a weight meets the samples is tapped (recorder.py); the backward pass leaves (input, output gradient) there, from which
a layer rule knows the squared norms and, once the weights are chosen, the weighted sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.engine import precision
from dpilot.engine.base import LossFunction, PerSample, accumulator, added, handle, refilled, trainable
from dpilot.engine.measure import Measured
from dpilot.engine.recorder import MARK, Found, Recorder
from dpilot.engine.settle import own_name, settle, used_once
from dpilot.engine.sums import Sums
from dpilot.engine.two_pass import two_passes


def run(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    n: int,
    per_batch: bool,
    reason: str,
    low_memory: bool = False,
) -> PerSample:
    """Record one forward and backward pass; measure every parameter; sum when asked.

    Edge cases: random layers draw as in plain training, so every sample has its own mask.
    """
    parameters = trainable(model)
    recorder = Recorder(parameters, n)
    losses = forward(recorder, model, loss_fn, batch, per_batch)
    return (two_passes if low_memory else finish)(recorder, losses, parameters, reason)


def finish(
    recorder: Recorder, losses: Tensor, parameters: Mapping[str, nn.Parameter], reason: str, *,
    scale: Tensor | None = None, retain: bool = False,
) -> PerSample:  # fmt: skip
    """The backward pass, the norms, and what it takes to sum.

    A parameter that is used once is measured as soon as its record is there, which is then dropped or made smaller.
    """
    measured, late, once = Measured(), list[Found](), used_once(recorder)

    def receive(item: Found) -> None:
        name = own_name(recorder, once, item)
        if name is None:
            late.append(item)
        else:
            measured.add(name, (item.use,))

    recorder.backward(losses, receive, scale=scale, retain=retain)
    with torch.no_grad(), precision.own():
        for name, found in settle(recorder, late).items():
            measured.add(name, found)
        measured.finish()
    n = recorder.batch_size
    squares = {
        name: measured.squares[name] if name in measured.squares else p.detach().new_zeros(n, dtype=accumulator(p))
        for name, p in parameters.items()
    }
    squares = refilled(squares, parameters)
    whole = added(squares)
    return handle("single-backward", reason, squares, Sums.of(whole, measured, parameters), whole)


def forward(recorder: Recorder, model: nn.Module, loss_fn: LossFunction, batch: Any, per_batch: bool) -> Tensor:
    """The losses (n,), with every meeting of weights and samples tapped."""
    with torch.enable_grad(), marked(batch, recorder), recorder:
        return batches.check_losses(batches.losses(model, loss_fn, batch, per_batch), recorder.batch_size)


@contextmanager
def marked(batch: Any, recorder: Recorder) -> Iterator[None]:
    """Mark the batch's tensors as samples for a while."""
    chosen = [t for t in batches.tensors(batch) if t.dim() and t.shape[0] == recorder.batch_size]
    for tensor in chosen:
        setattr(tensor, MARK, True)
    try:
        yield
    finally:
        for tensor in (*chosen, *recorder.overwritten):
            if hasattr(tensor, MARK):  # the same tensor may come twice
                delattr(tensor, MARK)
