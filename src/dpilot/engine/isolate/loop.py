"""One sample at a time: slow, obvious, and the oracle of every other engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.engine.base import (
    LossFunction,
    PerSample,
    accumulator,
    add_squares,
    make_handle,
    refill_squares,
    trainable,
    zero_gradients,
    zero_null_rows,
)
from dpilot.engine.generators import keep_draws, seeds, sow
from dpilot.engine.state import StateSnapshot, preserve
from dpilot.numerics import precision


def run(model: nn.Module, loss_fn: LossFunction, batch: Any, *, n: int, per_batch: bool, reason: str) -> PerSample:
    """Differentiate each sample's loss alone, as a batch of one.

    Edge cases: whatever draws random numbers (torch, Python, numpy, generators that model and loss hold) does so with a
    seed for each sample.
    """
    parameters = trainable(model)
    each = gradients(model, loss_fn, batch, n, per_batch)
    stacked = {name: torch.stack([g[name] for g in each]) for name in parameters}
    return hold_gradients("loop", reason, stacked)


def gradients(
    model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool, chosen: Iterable[int] | None = None
) -> list[dict[str, Tensor]]:
    """The gradient of each (chosen) sample, with everything as it was before the first: they could meet in state.

    Guarantee:
        A gradient is a function of its sample and its seed. Seeds are drawn before the first sample is computed, so one
        that seeds a generator, or draws more than others, moves none of them.
    """
    before, found = StateSnapshot.of(model, loss_fn, batch), list[dict[str, Tensor]]()
    own = seeds(n)
    with keep_draws(before.generators):
        for i in range(n) if chosen is None else chosen:
            sow(own[i], before.generators)
            with preserve(before), torch.enable_grad():  # a sample before it may have switched gradients off
                found.append(
                    gradient(model, loss_fn, batches.copy_tensors(batches.rows(batch, n, i, i + 1)), per_batch)
                )
    return found


def gradient(model: nn.Module, loss_fn: LossFunction, sample: Any, per_batch: bool) -> dict[str, Tensor]:
    """The gradient of a batch of one, by name, zeros where the loss does not reach."""
    parameters = trainable(model)
    loss = batches.check_losses(batches.losses(model, loss_fn, sample, per_batch), 1)
    if not loss.requires_grad:
        return zero_gradients(parameters)
    found = gradients_reached(loss.sum(), list(parameters.values()))
    return {
        name: torch.zeros_like(p, dtype=accumulator(p)) if g is None else g.to(accumulator(p))
        for (name, p), g in zip(parameters.items(), found, strict=True)
    }


def gradients_reached(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor | None]:
    """Gradients of the parameters, None where there is none; .grad is put back.

    Through .grad, not torch.autograd.grad: reentrant checkpoints allow nothing else.
    """
    before = [p.grad for p in parameters]
    try:
        for p in parameters:
            p.grad = None
        torch.autograd.backward(loss)  # not loss.backward(), in which no function mode would watch the hooks
        return [p.grad for p in parameters]
    finally:
        for p, grad in zip(parameters, before, strict=True):
            p.grad = grad


def hold_gradients(engine: str, reason: str, gradients: Mapping[str, Tensor]) -> PerSample:
    """A PerSample that holds every per-sample gradient, (n, *shape) by name."""
    plain = {name: torch.view_as_real(g) if g.is_complex() else g for name, g in gradients.items()}
    squares = {name: precision.norms(g.reshape(g.shape[0], -1)).square() for name, g in plain.items()}
    squares = refill_squares(squares, {name: g[0] for name, g in plain.items()})
    finite = torch.isfinite(add_squares(squares))
    safe = dict(gradients) if bool(finite.all()) else {name: zero_null_rows(g, finite) for name, g in gradients.items()}

    def sum_with(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with precision.use_full_precision():
            return {name: torch.tensordot(w.to(safe[name]), safe[name], 1) for name, w in weights.items()}

    return make_handle(engine, reason, squares, sum_with)
