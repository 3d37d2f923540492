"""Work that is done many times, recorded once: on a CUDA device its kernels then start together, without Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["recorded"]

_WORTH_IT: Final = 10  # times: recording costs about as much as a few of them


def recorded(
    work: Callable[[], Tensor], device: torch.device, times: int, changes: Sequence[Tensor] = ()
) -> Callable[[], Tensor]:
    """``work`` itself, or a CUDA graph of it; what it reads may be changed in place between two calls.

    ``changes`` are the tensors that the work changes in place: recording leaves them as they were.

    Edge cases:
        A graph writes its result over the one before.
    """
    if device.type != "cuda" or times < _WORTH_IT:
        return work
    before = [t.clone() for t in changes]
    _warm_up(work, device)
    for t, kept in zip(changes, before, strict=True):
        t.copy_(kept)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        result = work()

    def again() -> Tensor:
        graph.replay()
        return result

    return again


def _warm_up(work: Callable[[], Tensor], device: torch.device) -> None:
    """Once beside the main stream, as recording asks: libraries take their workspace in a first call."""
    cuda: Any = torch.cuda
    side = cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream(device).wait_stream(side)
