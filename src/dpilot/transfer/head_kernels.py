"""Kernels of linear heads, for GPUs where Triton runs: residuals in one reading, and sums that go over to float64;
and the steps of a fit as one CUDA graph, whose kernels start together, without Python.

Everything works without them. A function gives None where its kernel does not run; the caller then does it plainly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from dpilot.engine.replay.capture import beside
from dpilot.numerics.kernels import runs_on
from dpilot.numerics.precision import KEPT_BITS

__all__ = ["clip_residuals", "deep_product", "record_graph"]

_NUMBERS: Final = 4096  # of a head that one program clips
_MOST_CLASSES: Final = 128
_COLUMNS: Final = 64  # of a product that one program sums
_TILES: Final = ((16, 0), (32, 0), (32, 16), (64, 0), (64, 16))  # rows of a product that one program sums
_PIECES: Final = 16  # that one program adds up, at most
_PROGRAMS: Final = 264  # that keep a large GPU busy
_STAGES: Final = (3, 2, 1)  # pieces on their way from memory: as many as there is room for


def clip_residuals(scores: Tensor, labels: Tensor, limits: Tensor) -> Tensor | None:
    """Residuals (heads, classes, b) none longer than its limit (heads, b), cut to TF32; None where no kernel runs."""
    heads, classes, records = scores.shape
    fits = scores.dtype == limits.dtype == torch.float32 and scores.is_contiguous() and limits.stride(-1) == 1
    if not (fits and classes <= _MOST_CLASSES and runs_on(scores)):
        return None
    made, wide = torch.empty_like(scores), max(16, 1 << (classes - 1).bit_length())
    blocks = (-(-records // (_NUMBERS // wide)), heads)
    compile_kernels().clip_residuals[blocks](
        scores, labels, limits, made, classes, records, limits.stride(0), KEPT_BITS, wide, _NUMBERS // wide
    )
    return made


def deep_product(left: Tensor, right: Tensor, depth: int) -> Tensor | None:
    """left (m, b) times right (b, d) in float64, ``depth`` numbers at a time in float32; None where no kernel runs.

    Guarantee:
        Right for numbers that fit TF32; which numbers are added together depends on shapes alone.
    """
    fits = left.dtype == right.dtype == torch.float32 and left.stride(1) == right.stride(0) == 1
    if not (fits and depth == 128 and left.shape[1] % depth == 0 and runs_on(left)):
        return None
    tiles = tiles_of(len(left))
    stages = stages_that_run(right.device, tiles)
    return None if stages is None else _sum_pieces(left, right, tiles, stages, depth)


def tiles_of(rows: int) -> tuple[int, int]:
    """Two tiles that hold the rows of a product, or of each of as many equal shares as it takes.

    Example:
        >>> tiles_of(10), tiles_of(70), tiles_of(100), tiles_of(200)
        ((16, 0), (64, 16), (64, 0), (64, 16))
    """
    share = math.ceil(rows / math.ceil(rows / sum(_TILES[-1])))
    return next(tiles for tiles in _TILES if sum(tiles) >= share)


def pieces_of(pieces: int, programs: int) -> int:
    """How many pieces one program adds up: a power of 2 that divides them, smaller where programs would be few.

    Example:
        >>> pieces_of(416, 20), pieces_of(416, 1), pieces_of(3, 20)
        (16, 1, 1)
    """
    each = _PIECES
    while each > 1 and (pieces % each or pieces // each * programs < _PROGRAMS):
        each //= 2
    return each


@cache
def stages_that_run(device: torch.device, tiles: tuple[int, int]) -> int | None:
    """The most stages that this GPU has room for, tried once on made-up numbers; None if none runs."""
    left, right = torch.ones(sum(tiles), 256, device=device), torch.ones(_COLUMNS, 256, device=device).T
    for stages in _STAGES:
        try:
            if bool((_sum_pieces(left, right, tiles, stages, 128) == 256.0).all()):
                return stages
        except Exception:  # no room, or another kind of GPU
            continue
    return None


def _sum_pieces(left: Tensor, right: Tensor, tiles: tuple[int, int], stages: int, depth: int) -> Tensor:
    (rows, length), width = left.shape, right.shape[1]
    columns, groups = -(-width // _COLUMNS), -(-rows // sum(tiles))
    pieces = pieces_of(length // depth, columns * groups)
    parts = torch.empty(length // depth // pieces, width, rows, dtype=torch.float64, device=left.device)
    compile_kernels().deep_product[(columns, len(parts), groups)](
        left, right, parts, rows, width, left.stride(0), right.stride(1), -(-rows // groups),
        pieces, depth, *tiles, _COLUMNS, num_warps=4, num_stages=stages,
    )  # fmt: skip
    return parts.sum(0).T


@cache
def compile_kernels() -> Any:
    """The kernels, made when first needed: importing dpilot does not load Triton."""
    import triton

    from dpilot.transfer.triton_heads import clip_residuals, deep_product

    return SimpleNamespace(clip_residuals=triton.jit(clip_residuals), deep_product=triton.jit(deep_product))


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
