"""Kernels of our own, for GPUs where Triton runs: each reads its numbers once where plain operations read them often.

Everything works without them. A function gives None where its kernel does not run; the caller then does it plainly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dpilot.numerics.devices import policy_of

FiveSums = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Roots = tuple[float, float]
ROWS = 16
"""Rows of a Gram matrix that one program sums."""
WIDTH = 128
"""Columns read at a time."""
LONG = 2048
"""Numbers of a sample that one program weighs."""
TILE = 64
"""Places and channels that one program turns."""
TOKENS = 32
"""Tokens that one program reads at a time."""
COLUMNS = 64
"""Columns of a sample that one program sums over its tokens."""
WIDE = 1024
"""Numbers of a row that one program reads at a time; of shorter rows it reads several."""
KINDS = frozenset({torch.float32, torch.bfloat16})
"""Types of numbers that the kernels take."""
MOST = 3
"""Errors whose Gram norms with one input are formed together."""
SHORT, LONGER = 64, 128
"""Tokens of a stretch: where a sample has no more than the first, and where it has more."""


def gram_sums(inputs: Tensor, errors: Tensor, rounds_inputs: bool, roots: Roots) -> FiveSums | None:
    """Five sums a sample of Gram matrices A = inputs, E = errors, each (n, T, T); None where no kernel runs.

    sum A E; sum of A^2, or of E^2 if the inputs are what is rounded; with lengths a_t = sqrt(A_tt) + roots[0] and
    e_t = sqrt(E_tt) + roots[1]: sum_t a_t e_t; sum_t e_t^2, or a_t^2; sum_t roots[0] e_t + roots[1] a_t.
    """
    fits = inputs.dtype == errors.dtype == torch.float32 and runs_on(inputs)
    return five_sums(inputs, errors, rounds_inputs, roots) if fits else None


def gram_products(
    inputs: Tensor, errors: Sequence[Tensor], rounds_inputs: bool, roots: Sequence[Roots]
) -> list[FiveSums] | None:
    """The same five sums for up to ``MOST`` errors (n, T, p) beside one input (n, T, d), their Gram matrices unwritten.

    Of each pair of stretches of tokens both tiles are formed and meet where they are; a pair off the diagonal counts
    twice. None where no kernel runs, or where products and ``gram_sums`` take less time (on an H200).
    """
    if not (forms_products(inputs) and all(even(e) and e.dtype == inputs.dtype for e in errors)):
        return None
    return five_sums_by_products(inputs, errors, rounds_inputs, roots)


def forms_products(inputs: Tensor) -> bool:
    """Whether ``gram_products`` runs for such inputs; on other GPUs nobody has measured whether it is worth it."""
    if not (runs_on(inputs) and even(inputs)):
        return False
    programs = inputs.shape[0] * stretches(inputs.shape[1])[1]
    return programs >= policy_of(inputs.device).gram_programs and multiplies(inputs.device)


def stretches(tokens: int) -> tuple[int, int]:
    """The tokens of a stretch, and the pairs of stretches of so many tokens."""
    side = SHORT if tokens <= SHORT else LONGER
    down = -(-tokens // side)
    return side, down * (down + 1) // 2


def even(rows: Tensor) -> bool:
    """Whether these are tokens (n, T, width) that a kernel can read sixteen bytes at a time."""
    whole = rows.dtype in KINDS and rows.dim() == 3 and rows.is_contiguous()
    return whole and rows.shape[2] % 16 == 0 and rows.data_ptr() % 16 == 0


def weighted(rows: Tensor, weights: Tensor) -> Tensor | None:
    """w_i times every number of sample i, computed in float32 and rounded once; None where no kernel runs."""
    if not (rows.dtype in KINDS and weights.dtype == torch.float32 and rows.is_contiguous() and runs_on(rows)):
        return None
    out, each = torch.empty_like(rows), rows[0].numel()
    compile_kernels().weighted[(rows.shape[0], -(-each // LONG))](rows, weights.contiguous(), out, each, LONG)
    return out


def on_grid(values: Tensor, grid: Sequence[int], start: Sequence[int]) -> Tensor | None:
    """Images (n, C, H, W) laid into zeros as tokens (n, places, C); None where no kernel runs."""
    if not (values.dtype in KINDS and values.dim() == 4 and values.is_contiguous() and runs_on(values)):
        return None
    n, channels, *size = values.shape
    places = grid[0] * grid[1]
    laid = values.new_empty(n, places, channels)
    blocks = (n, -(-places // TILE), -(-channels // TILE))
    compile_kernels().on_grid[blocks](values, laid, channels, *size, places, grid[1], *start, TILE)
    return laid


def norm_sums(x: Tensor, e: Tensor, mean: Tensor, rate: Tensor, n: int) -> tuple[Tensor, Tensor] | None:
    """Per-sample sums over tokens of e (x - mean) rate and of e, (n, width) each; None where no kernel runs.

    ``x`` and ``e`` are (n r, ..., width), ``mean`` and ``rate`` have one number a token.
    """
    whole = all(t.dtype == torch.float32 and t.is_contiguous() for t in (x, e, mean, rate))
    if not (whole and x.shape == e.shape and runs_on(x)):
        return None
    width = x.shape[-1]
    tokens = x.numel() // (n * width)
    scale, shift = x.new_empty(2, n, width).unbind(0)
    blocks = (n, -(-width // COLUMNS))
    compile_kernels().norm_sums[blocks](x, e, mean, rate, scale, shift, tokens, width, TOKENS, COLUMNS)
    return scale, shift


def row_sums(x: Tensor, e: Tensor) -> tuple[Tensor, Tensor] | None:
    """Sums over the last dimension of e x and of e, for rows (.., length); None where no kernel runs."""
    whole = all(t.dtype == torch.float32 and t.is_contiguous() for t in (x, e))
    if not (whole and x.shape == e.shape and runs_on(x)):
        return None
    length = x.shape[-1]
    rows = x.numel() // length
    long = min(WIDE, 1 << (length - 1).bit_length())
    both, sums = x.new_empty(2, *x.shape[:-1]).unbind(0)
    compile_kernels().row_sums[(-(-rows // (WIDE * 4 // long)),)](
        x, e, both, sums, rows, length, WIDE * 4 // long, long
    )
    return both, sums


def truncate_and_sum(values: Tensor, into: Tensor, kept: int) -> Tensor | None:
    """Write (n, T, width) into ``into`` with the bits ``kept``, both as whole numbers; the sums over T of the floats.

    None where no kernel runs.
    """
    if not (values.dtype == torch.float32 and values.is_contiguous() and runs_on(values)):
        return None
    n, tokens, width = values.shape
    sums = values.new_empty(n, width)
    blocks = (n, -(-width // COLUMNS))
    compile_kernels().truncate_and_sum[blocks](
        values.view(torch.int32), into, sums, tokens, width, kept, TOKENS, COLUMNS
    )
    return sums


def runs_on(values: Tensor) -> bool:
    """Whether kernels run where these numbers lie."""
    here = values.is_cuda and values.device.index == torch.cuda.current_device()
    return here and values.numel() > 0 and usable(values.device)


@cache
def usable(device: torch.device) -> bool:
    """Whether Triton compiles and runs here, tried once on made-up numbers."""
    try:
        ones = torch.ones(1, 2, 2, device=device)
        return [float(s) for s in five_sums(ones, ones, False, (1.0, 2.0))] == [4.0, 4.0, 12.0, 18.0, 14.0]
    except Exception:  # no Triton, no compiler for it, another kind of GPU
        return False


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether this is a GPU like the one measured."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def multiplies(device: torch.device) -> bool:
    """Whether this is a GPU like the one measured, and the products of made-up numbers are right there."""
    if not is_hopper(device):
        return False
    try:
        ones = torch.ones(1, 2, 16, device=device)
        found = five_sums_by_products(ones, [ones, 2 * ones], False, [(1.0, 2.0), (1.0, 1.0)])
        return [[float(s) for s in sums] for sums in found] == [
            [1024.0, 1024.0, 60.0, 72.0, 32.0],
            [4096.0, 1024.0, 90.0, 162.0, 28.0],
        ]
    except Exception:  # another Triton
        return False


def five_sums_by_products(
    inputs: Tensor, errors: Sequence[Tensor], rounds_inputs: bool, roots: Sequence[Roots]
) -> list[FiveSums]:
    """The five sums for each of the errors, by the kernel; the sizes are the fastest of those tried on an H200."""
    (n, tokens, d), count = inputs.shape, len(errors)
    side, pairs = stretches(tokens)
    step, warps, stages = (256, 4, 3) if side == SHORT else (128, 8, 4)  # bytes of a token at a time
    parts = torch.empty(count, 5, n, pairs, dtype=torch.float32, device=inputs.device)
    all_errors, all_roots = ([*given, *[given[0]] * (MOST - count)] for given in (errors, roots))
    compile_kernels().gram_products[(n * pairs,)](
        inputs, *all_errors, parts, n, tokens, d, *(e.shape[2] for e in all_errors), roots[0][0],
        *(root for _, root in all_roots), count, rounds_inputs, side, step // inputs.element_size(), pairs == 1,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    sums = parts[..., 0] if pairs == 1 else parts.sum(3)
    return [(both, kept, scale, mass, vanished) for both, kept, scale, mass, vanished in (s.unbind(0) for s in sums)]


def five_sums(inputs: Tensor, errors: Tensor, rounds_inputs: bool, roots: Roots) -> FiveSums:
    """The five sums, by the kernel."""
    n, tokens = inputs.shape[:2]
    blocks = -(-tokens // ROWS)
    parts = inputs.new_empty(5, n, blocks)
    strides = inputs.stride(0), inputs.stride(1), errors.stride(0), errors.stride(1)
    compile_kernels().gram_sums[(n, blocks)](
        inputs, errors, parts, tokens, *strides, *roots, rounds_inputs, ROWS, WIDTH
    )
    both, kept, scale, mass, vanished = parts.sum(2).unbind(0)
    return both, kept, scale, mass, vanished


@cache
def compile_kernels() -> Any:
    """The kernels, made when first needed: importing dpilot does not load Triton."""
    import triton

    from dpilot.numerics import triton_gram, triton_kernels

    names = "gram_sums", "weighted", "on_grid", "norm_sums", "row_sums", "truncate_and_sum"
    products = triton.jit(triton_gram.gram_products, do_not_specialize=["samples", "tokens"])
    others = {name: triton.jit(getattr(triton_kernels, name)) for name in names}
    return SimpleNamespace(gram_products=products, **others)
