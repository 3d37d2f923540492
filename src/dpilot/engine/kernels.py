"""One kernel of our own, for GPUs where Triton runs: the sums of two Gram matrices in one reading.

Everything works without it; plain operations read the matrices seven times instead of once.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

FourSums = tuple[Tensor, Tensor, Tensor, Tensor]
ROWS = 16
"""Rows of a Gram matrix that one program sums."""
WIDTH = 128
"""Columns read at a time."""


def gram_sums(inputs: Tensor, errors: Tensor, rounds_inputs: bool) -> FourSums | None:
    """Four sums a sample of Gram matrices A = inputs, E = errors, each (n, T, T); None where no kernel runs.

    sum A E; sum of A^2, or of E^2 if the inputs are what is rounded; sum_t sqrt(A_tt E_tt); the trace of the other.
    """
    if not (inputs.is_cuda and inputs.dtype == errors.dtype == torch.float32 and usable(inputs.device)):
        return None
    return summed(inputs, errors, rounds_inputs)


@cache
def usable(device: torch.device) -> bool:
    """Whether Triton compiles and runs here, tried once on made-up numbers."""
    try:
        ones = torch.ones(1, 2, 2, device=device)
        return [float(s) for s in summed(ones, ones, False)] == [4.0, 4.0, 2.0, 2.0]
    except Exception:  # no Triton, no compiler for it, another kind of GPU
        return False


def summed(inputs: Tensor, errors: Tensor, rounds_inputs: bool) -> FourSums:
    """The four sums, by the kernel."""
    n, tokens = inputs.shape[:2]
    blocks = -(-tokens // ROWS)
    parts = inputs.new_empty(4, n, blocks)
    strides = inputs.stride(0), inputs.stride(1), errors.stride(0), errors.stride(1)
    compiled()[(n, blocks)](inputs, errors, parts, tokens, *strides, rounds_inputs, ROWS, WIDTH)
    both, kept, scale, mass = parts.sum(2).unbind(0)
    return both, kept, scale, mass


@cache
def compiled() -> Any:
    """The kernel, made when it is first needed: importing dpilot does not load Triton."""
    triton, tl = import_module("triton"), import_module("triton.language")

    def gram_sums_kernel(  # type: ignore[no-untyped-def]
        a_ptr, e_ptr, out_ptr, tokens, a_sample, a_row, e_sample, e_row,
        ROUNDS_INPUTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,  # type: ignore[name-defined]
    ):  # fmt: skip
        sample, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
        rows = block * ROWS + tl.arange(0, ROWS)
        a_ptr += sample * a_sample
        e_ptr += sample * e_sample
        both = tl.zeros((ROWS, WIDTH), tl.float32)
        kept = tl.zeros((ROWS, WIDTH), tl.float32)
        for start in range(0, tokens, WIDTH):
            columns = start + tl.arange(0, WIDTH)
            inside = (rows[:, None] < tokens) & (columns[None, :] < tokens)
            a = tl.load(a_ptr + rows[:, None] * a_row + columns[None, :], mask=inside, other=0.0)
            e = tl.load(e_ptr + rows[:, None] * e_row + columns[None, :], mask=inside, other=0.0)
            both += a * e
            kept += e * e if ROUNDS_INPUTS else a * a
        a_own = tl.load(a_ptr + rows * (a_row + 1), mask=rows < tokens, other=0.0)
        e_own = tl.load(e_ptr + rows * (e_row + 1), mask=rows < tokens, other=0.0)
        out_ptr += sample * tl.num_programs(1) + block
        step = tl.num_programs(0) * tl.num_programs(1)
        tl.store(out_ptr, tl.sum(tl.sum(both, 1), 0))
        tl.store(out_ptr + step, tl.sum(tl.sum(kept, 1), 0))
        tl.store(out_ptr + 2 * step, tl.sum(tl.sqrt(a_own) * tl.sqrt(e_own), 0))
        tl.store(out_ptr + 3 * step, tl.sum(a_own if ROUNDS_INPUTS else e_own, 0))

    return triton.jit(gram_sums_kernel)
