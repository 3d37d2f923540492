"""One sample at a time: slow, obvious, and the oracle of every other engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from dpilot.engine.base import (
    PerSample,
    accumulator,
    add_squares,
    make_handle,
    refill_squares,
    trainable,
    zero_gradients,
    zero_null_rows,
)
from dpilot.engine.batch import Chunk, check_losses
from dpilot.engine.generators import keep_draws, seeds, sow
from dpilot.engine.state import StateSnapshot, preserve
from dpilot.numerics import precision
from dpilot.numerics.grid import Grid, sum_rows


def run(chunk: Chunk, *, reason: str) -> PerSample:
    """Differentiate each sample's loss alone, as a batch of one.

    Edge cases: whatever draws random numbers (torch, Python, numpy, generators that model and loss hold) does so with a
    seed for each sample.
    """
    each = gradients(chunk)
    stacked = {name: torch.stack([g[name] for g in each]) for name in trainable(chunk.model)}
    return hold_gradients("loop", reason, stacked)


def gradients(chunk: Chunk, chosen: Iterable[int] | None = None) -> list[dict[str, Tensor]]:
    """The gradient of each (chosen) sample, with everything as it was before the first: they could meet in state.

    Guarantee:
        A gradient is a function of its sample and its seed. Seeds are drawn before the first sample is computed, so one
        that seeds a generator, or draws more than others, moves none of them.
    """
    before, found = StateSnapshot.of(chunk.model, chunk.loss_fn, chunk.batch), list[dict[str, Tensor]]()
    own = seeds(chunk.n)
    with keep_draws(before.generators):
        for i in range(chunk.n) if chosen is None else chosen:
            sow(own[i], before.generators)
            with preserve(before), torch.enable_grad():  # a sample before it may have switched gradients off
                found.append(gradient(chunk.sample(i)))
    return found


def gradient(sample: Chunk) -> dict[str, Tensor]:
    """The gradient of a batch of one, by name, zeros where the loss does not reach."""
    parameters = trainable(sample.model)
    loss = check_losses(sample.losses(), 1)
    if not loss.requires_grad:
        return zero_gradients(parameters)
    found = gradients_reached(loss.sum(), list(parameters.values()))
    return {
        name: torch.zeros_like(p, dtype=accumulator(p)) if g is None else g.to_dense().to(accumulator(p))
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

    def sum_with(weights: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, Tensor]:
        if grid is not None:
            return {name: sum_on_grid(safe[name], w, grid) for name, w in weights.items()}
        with precision.use_full_precision():
            return {name: torch.tensordot(w.to(safe[name]), safe[name], 1) for name, w in weights.items()}

    return make_handle(engine, reason, squares, sum_with)


def sum_on_grid(values: Tensor, weights: Tensor, grid: Grid) -> Tensor:
    """The sum of formed gradients, each rounded to the grid; of complex ones their real and imaginary parts."""
    if not values.is_complex():
        return sum_rows(values, weights, grid)
    return torch.view_as_complex(sum_rows(torch.view_as_real(values.resolve_conj()), weights, grid))
