"""Normalisations with a trained scale and shift: layer, group, instance, root mean square, frozen batch statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpilot.engine.base import NoRule, accumulator
from dpilot.engine.layers.base import (
    Dense,
    MakeUse,
    Operation,
    Scope,
    Use,
    detach_unseen,
    per_sample_rows,
    plain,
    rule,
)
from dpilot.numerics import kernels

Normalise = Callable[[Tensor], Tensor]


def affine(
    scope: Scope, out: Tensor, x: Tensor, normalise: Normalise, weight: Tensor | None, bias: Tensor | None, channel: int
) -> Tensor:
    """Tap out = normalise(x) * weight + bias; the trained values live on dimension ``channel`` and after it if last.

    g_weight = sum of e * normalise(x), g_bias = sum of e, over everything but the samples and the trained dimensions.
    """
    uses: list[tuple[Tensor, MakeUse]] = []
    if weight is not None and scope.is_weight(weight):
        uses.append((weight, scale_use(scope.batch_size, normalise, weight.dim(), channel)))
    if bias is not None and scope.is_weight(bias):
        uses.append((bias, shift_use(scope.batch_size, bias.dim(), channel)))
    return scope.tap(out, (detach_unseen(x),) if uses else (), uses)


def scale_use(n: int, normalise: Normalise, kept: int, channel: int) -> MakeUse:
    """Per-sample gradients of the scale."""

    def make(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        rows = per_sample_rows(e, n)
        return Dense(reduce(rows * per_sample_rows(normalise(saved[0].to(rows.dtype)), n), kept, channel))

    return make


def shift_use(n: int, kept: int, channel: int) -> MakeUse:
    """Per-sample gradients of the shift."""

    def make(_: tuple[Tensor, ...], e: Tensor) -> Use:
        return Dense(reduce(per_sample_rows(e, n), kept, channel))

    return make


def reduce(rows: Tensor, kept: int, channel: int) -> Tensor:
    """Sum (n, r, ...) over everything but the samples and the trained dimensions (1: channels; -1: last)."""
    if channel == 1:
        return rows.sum((1, *range(3, rows.dim())))
    between = tuple(range(1, rows.dim() - kept))
    return rows.sum(between)


@rule("layer_norm")
def _layer(
    scope: Scope, _: Operation, input: Tensor, normalized_shape: Any, weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    shape = tuple(normalized_shape)
    scale, shift = plain(scope, weight), plain(scope, bias)
    both = weight is not None and bias is not None and scope.is_weight(weight) and scope.is_weight(bias)
    float32 = all(t is not None and t.is_cuda and t.dtype == torch.float32 for t in (input, weight, bias))
    if not (both and float32 and len(shape) == 1):
        out = F.layer_norm(input, shape, scale, shift, eps)
        return affine(scope, out, input, lambda x: F.layer_norm(x, shape, None, None, eps), weight, bias, -1)
    x = input.contiguous()
    out, mean, rate = torch.native_layer_norm(x, shape, scale, shift, eps)
    uses = layer_uses(scope.batch_size, lambda x: F.layer_norm(x, shape, None, None, eps))
    tapped: list[tuple[Any, MakeUse]] = list(zip((weight, bias), uses, strict=True))
    return scope.tap(out, (detach_unseen(x), detach_unseen(mean), detach_unseen(rate)), tapped)


def layer_uses(n: int, normalise: Normalise) -> tuple[MakeUse, MakeUse]:
    """Scale and shift of a layer normalisation: both gradients in one reading, where a kernel runs."""
    shifts: list[Tensor] = []  # filled and emptied between two uses of one tap
    plain = scale_use(n, normalise, 1, -1), shift_use(n, 1, -1)

    def scale(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        x, mean, rate = saved
        found = kernels.norm_sums(x, e.contiguous(), mean, rate, n)
        if found is None:
            return plain[0](saved, e)
        shifts.append(found[1])
        return Dense(found[0])

    def shift(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        return Dense(shifts.pop()) if shifts else plain[1](saved, e)

    return scale, shift


@rule("rms_norm")
def _root_mean_square(
    scope: Scope, _: Operation, input: Tensor, normalized_shape: Any, weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:  # fmt: skip
    shape = list(normalized_shape)
    out = F.rms_norm(input, shape, plain(scope, weight), eps)
    return affine(scope, out, input, lambda x: F.rms_norm(x, shape, None, eps), weight, None, -1)


@rule("group_norm")
def _group(
    scope: Scope, _: Operation, input: Tensor, num_groups: int, weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    scale, shift = plain(scope, weight), plain(scope, bias)
    if torch.is_autocast_enabled(input.device.type) or scale is None:
        out = F.group_norm(input, num_groups, scale, shift, eps)
        return affine(scope, out, input, lambda x: F.group_norm(x, num_groups, None, None, eps), weight, bias, 1)
    x = input.contiguous()
    rows, channels = x.shape[:2]
    sizes = rows, channels, x.numel() // max(1, rows * channels), num_groups, eps
    out, mean, rate = torch.native_group_norm(x, scale, shift, *sizes)
    trained = [w for w in (weight, bias) if w is not None and scope.is_weight(w)]
    made = group_uses(scope.batch_size)
    uses = [(w, made[0] if w is weight else made[1]) for w in trained]
    return scope.tap(out, (detach_unseen(x), detach_unseen(mean), detach_unseen(rate)) if uses else (), uses)


def group_uses(n: int) -> tuple[MakeUse, MakeUse]:
    """Scale and shift of a group normalisation, from the means and rates m, r that it has found already.

    sum of e (x - m) r over positions = (sum e x - m sum e) r, as torch itself has it.
    """
    shifts: list[Tensor] = []  # sums of e, filled and emptied between two uses of one tap

    def scale(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        x, mean, rate = (t.to(accumulator(e)) for t in saved)
        rows, channels = e.shape[:2]
        e = e.to(x.dtype).reshape(rows, channels, -1)
        found = kernels.row_sums(x.reshape(e.shape), e)
        both, sums = found or ((e * x.reshape(e.shape)).sum(2), e.sum(2))
        each = channels // mean.shape[1]
        mean, rate = (t.repeat_interleave(each, 1) for t in (mean, rate))
        shifts[:] = [sums]
        return Dense(per_sample_rows((both - mean * sums) * rate, n).sum(1))

    def shift(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        return Dense(per_sample_rows(shifts.pop(), n).sum(1)) if shifts else shift_use(n, 1, 1)(saved, e)

    return scale, shift


@rule("instance_norm")
def _instance(
    scope: Scope, _: Operation, input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if running_mean is not None and use_input_stats:
        raise NoRule("instance_norm keeps running statistics of the batch. Use track_running_stats=False.")

    def normalise(x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        return F.instance_norm(x, running_mean, running_var, scale, shift, use_input_stats, momentum, eps)

    out = normalise(input, plain(scope, weight), plain(scope, bias))
    return affine(scope, out, input, normalise, weight, bias, 1)


@rule("batch_norm")
def _batch(
    scope: Scope, _: Operation, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if training:
        raise NoRule("batch_norm mixes samples. Use dpilot.engine.replace_batch_norm(model).")

    def normalise(x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        return F.batch_norm(x, running_mean, running_var, scale, shift, False, momentum, eps)

    out = normalise(input, plain(scope, weight), plain(scope, bias))
    return affine(scope, out, input, normalise, weight, bias, 1)
