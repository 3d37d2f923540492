"""Work that is done many times, recorded once: on a CUDA device its kernels then start together, without Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from dpilot.engine.capture import beside

__all__ = ["record_graph"]

_WORTH_IT: Final = 10  # times: recording costs about as much as a few of them


def record_graph(
    work: Callable[[], Tensor], device: torch.device, times: int, changes: Sequence[Tensor] = ()
) -> Callable[[], Tensor]:
    """``work`` itself, or a CUDA graph of it; what it reads may be changed in place between two calls.

    ``changes`` are the tensors that the work changes in place: recording leaves them as they were.

    Edge cases:
        A graph writes its result over the one before.
    """
    if device.type != "cuda" or times < _WORTH_IT:
        return work
    before, stream = [t.clone() for t in changes], beside(_index(device))
    _warm_up(work, device, stream)
    for t, kept in zip(changes, before, strict=True):
        t.copy_(kept)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph, stream=stream):
        result = work()

    def again() -> Tensor:
        graph.replay()
        return result

    return again


def _warm_up(work: Callable[[], Tensor], device: torch.device, stream: torch.cuda.Stream) -> None:
    """Once where it will be recorded: libraries take their workspace in a first call."""
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream(device).wait_stream(stream)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
