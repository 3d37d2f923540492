"""The truth about per-record gradients: a plain float64 loop over records, each alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpilot import engine
from tests.attacks.judge import losses_of

Gradients = dict[str, Tensor]


def alone(
    model: nn.Module, loss: Callable[..., Tensor], batch: Any, per_batch: bool, dtype: torch.dtype = torch.float64
) -> list[Gradients]:
    """Gradients of every record, each from a copy of the model and a batch of that record only."""
    records = [tuple(in_precision(t[i : i + 1].clone(), dtype) for t in batch) for i in range(len(batch[0]))]
    return [gradients(in_precision_of(model, dtype), loss, record, per_batch) for record in records]


def gradients(model: nn.Module, loss: Callable[..., Tensor], record: Any, per_batch: bool) -> Gradients:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    (value,) = losses_of(model, loss, record, per_batch)
    if not value.requires_grad:
        return {name: torch.zeros_like(p) for name, p in parameters.items()}
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    pairs = zip(parameters.items(), found, strict=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}


def together(model: nn.Module, loss: Callable[..., Tensor], batch: Any, per_batch: bool) -> list[Gradients]:
    """Gradients of every record's loss in one batched pass: what an engine that trusts the batch would compute."""
    model = copy.deepcopy(model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    values = losses_of(model, loss, tuple(t.clone() for t in batch), per_batch)
    found = []
    for value in values:
        got = torch.autograd.grad(value, list(parameters.values()), retain_graph=True, allow_unused=True)
        pairs = zip(parameters.items(), got, strict=True)
        found.append({name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs})
    return found


def in_precision(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats and complex numbers in another precision."""
    if t.is_complex():
        return t.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
    return t.to(dtype) if t.is_floating_point() else t


def in_precision_of(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the model in another precision."""
    return copy.deepcopy(model)._apply(lambda t: in_precision(t, dtype))


def norm(found: Gradients) -> float:
    return float(torch.stack([g.abs().square().sum() for g in found.values()]).sum().sqrt())


def wrong(ours: engine.PerSample, truth: list[Gradients], *, excess: float = 1.2, tolerance: float = 2e-4) -> str:
    """What is wrong with norms or with one record's part of the sum; nothing if all agree.

    A norm may be above the truth by the factor ``excess``, never below it by more than rounding.
    """
    most = max(norm(one) for one in truth) + 1e-6
    for i, one in enumerate(truth):
        mine, true = float(ours.norms[i]), norm(one)
        if not true * (1 - tolerance) - 1e-6 * most <= mine <= true * excess + 1e-3 * most:
            return f"record {i}: norm {mine:.6g}, alone {true:.6g} ({ours.engine}: {ours.reason})"
        weights = torch.zeros_like(ours.norms)
        weights[i] = 1.0
        part = ours.weighted_sum(weights)
        apart = norm({name: part[name].to(g.dtype) - g for name, g in one.items()})
        if apart > tolerance * (true + 0.01 * most):
            return f"record {i}: its gradient is off by {apart:.6g} of {true:.6g} ({ours.engine}: {ours.reason})"
    return ""
