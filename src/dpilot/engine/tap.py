"""A tap on the graph: the identity forward, and a look at the gradient on the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Sink = Callable[[tuple[Tensor, ...], Tensor], None]


class Tap(torch.autograd.Function):
    """Return ``out`` itself and call ``sink(saved, gradient)`` during the backward pass.

    The output is the same tensor marked as modified in place, not a view: an in-place activation may follow. What the
    rule needs later is saved through autograd, so gradient checkpointing drops and recomputes it, and writing over it
    in place is an error instead of a wrong gradient. ``token`` keeps the graph alive where nothing else does.
    ``fresh`` false gives a view instead, for repeated weights, whose memory cannot be written anyway.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, token: Tensor, sink: Sink, fresh: bool, *saved: Tensor) -> Tensor:
        del token
        ctx.sink = sink
        ctx.save_for_backward(*saved)
        if not fresh:
            return out.view_as(out)
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved = ctx.saved_tensors
        ctx.sink(saved, gradients[0])
        return gradients[0], None, None, None, *(None for _ in saved)
