"""How far float rounding can move a norm, and how the engine stays on the safe side of it.

With u the unit roundoff (2^-24 in float32) and S = sum_t |a_t| |e_t|. A record can be built so that what is lost in an
inner product is all that its gradient is: tokens (1, v, v, ..) and (1, -v, -v, ..) with v^2 < u / 2, whose errors are
opposite. So every product counts with the most it may lose, and chains of products are short.

A sum that is rounded loses at most u of itself with each product. Tensor cores cut products off where the largest
number they meet ends, one bit further or two (Hopper), and cut the sum of four or eight off again (Fasi et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpilot.numerics import kernels
from dpilot.numerics.devices import policy_of

LOOSE = 0.02
"""A Gram norm whose slack exceeds this part of the squared norm is replaced by the materialised one (on the CPU)."""
KEPT_BITS = -8192
"""Mask of the 19 bits of a float32 that TF32 keeps: sign, exponent, 10 bits of the fraction."""
WIDE_OUTPUT = hasattr(torch.ops.aten.bmm, "dtype")
"""Whether this torch can multiply bfloat16 into float32."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What the products of a record are made of.

    The recorded numbers fit the grade exactly, so products of records are exact but for their float32 accumulation.
    Only the weighted operand of a sum is rounded anew: each entry by at most the part ``shave`` of itself.
    """

    name: str
    shave: float
    tensor_cores: bool


FULL = Grade("float32", 0.0, False)
TF32 = Grade("tf32", 2**-10 * (1 + 2**-4), True)
UNCUT = Grade("tf32 of whole float32 numbers", 2**-8, True)
"""Products of numbers that do not fit: two ways to compute one may differ by as much. For gradients formed once."""
BFLOAT16 = Grade("bfloat16", 2**-8 * (1 + 2**-4), True)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def gram_slack(
    d: int, p: int, dtype: torch.dtype, grade: Grade = FULL, device: torch.device | None = None, *, fused: bool = False
) -> float:
    """k u: the computed Gram norm is within k u S^2 of the true square, k = chain(d) + chain(p) + 64.

    The kernel that forms Gram norms in one reading has one chain (``fused``).
    """
    # <a_s, a_t> is off by chain(d) u |a_s| |a_t|, <e_s, e_t> by chain(p) u |e_s| |e_t|, and the sum over s and t of
    # |a_s| |a_t| |e_s| |e_t| is S^2 (tests/engine/test_grades.py::test_gram_errors_stay_within_half_their_slack)
    each = rounding_loss(grade, device)
    k = each * (d + p) if fused else chain(d, each) + chain(p, each)
    return (k + 64) * unit_roundoff(dtype)


def chain(width: int, each: float) -> float:
    """Units by which an inner product may be off: what ``each`` of a stretch loses, and one a further stretch."""
    stretch = stretch_of(width)
    return each * min(width, stretch) + (width - 1) // stretch


def rounding_loss(grade: Grade, device: torch.device | None = None) -> float:
    """Units of a sum that one product more may cost.

    On a Hopper GPU half a unit for each of nine numbers that are cut, and two for their sum, by eight products.
    """
    if not grade.tensor_cores:
        return 1.0
    return 0.875 if device is not None and kernels.is_hopper(device) else 2.0


def product_slack(tokens: int, dtype: torch.dtype, grade: Grade = FULL) -> float:
    """c u + shave: a summed product of T tokens is within that times S of the true gradient, c = T + 2, or twice it."""
    return rounding_loss(grade) * (tokens + 2) * unit_roundoff(dtype) + grade.shave


def grade_pair(
    a: Tensor, e: Tensor, *, convolution: bool = False, formed: bool = False
) -> tuple[Tensor, Tensor, Grade]:
    """A record in the precision its products will have: that of the user's own products, made exact.

    A gradient that is ``formed`` once, measured and summed as it is, need not be made of exact numbers.

    float32 on a GPU where TF32 is allowed    cut to TF32
    bfloat16 on a GPU                         as it is
    everything else                           float32, or float64
    """
    grade, kind = grade_of(a, e, convolution=convolution, formed=formed)
    return fit_to_grade(a, grade, kind), fit_to_grade(e, grade, kind), grade


def grade_of(a: Tensor, e: Tensor, *, convolution: bool = False, formed: bool = False) -> tuple[Grade, torch.dtype]:
    """The grade of a record, and the type its numbers are held in."""
    if a.is_cuda and a.dtype == e.dtype == torch.bfloat16 and WIDE_OUTPUT:
        return BFLOAT16, torch.bfloat16
    wide = torch.float64 if torch.float64 in (a.dtype, e.dtype) else torch.float32
    if wide == torch.float32 and tf32_allowed(a.device, convolution=convolution):
        return UNCUT if formed else TF32, wide
    return FULL, wide


def fit_to_grade(values: Tensor, grade: Grade, kind: torch.dtype) -> Tensor:
    """Numbers that fit a grade."""
    return truncate_tf32(values.to(kind)) if grade is TF32 else values.to(kind)


def truncate_tf32(values: Tensor) -> Tensor:
    """The nearest TF32 numbers towards zero; what is not finite stays not finite."""
    bits, kept = values.contiguous().view(torch.int32), room_for(values)
    return torch.bitwise_and(bits, KEPT_BITS, out=kept).view(torch.float32)


def truncate_and_sum(values: Tensor) -> tuple[Tensor, Tensor] | None:
    """The same of tokens (n, T, d), and their sums over T before they were cut; None where no kernel runs."""
    kept = room_for(values)
    sums = kernels.truncate_and_sum(values, kept, KEPT_BITS) if kept.is_contiguous() else None
    return None if sums is None else (kept.view(torch.float32), sums)


def room_for(values: Tensor) -> Tensor:
    """Memory for the bits of values.

    Room is left behind tokens whose number tensor cores do not like, for ``gram``, and behind each of wide tokens that
    would not begin where sixteen bytes do. Where it is not needed, a tensor larger than those it replaces would not fit
    where they were.
    """
    if values.dim() != 3:
        return torch.empty(values.shape, dtype=torch.int32, device=values.device)
    n, tokens, width = values.shape
    step = -(-width // VECTOR) * VECTOR if width > WIDE else width
    behind = STEP if tokens % STEP else 0
    numbers = torch.empty((n * tokens + behind) * step, dtype=torch.int32, device=values.device)
    return numbers[: n * tokens * step].view(n, tokens, step)[..., :width]


STEP = 8
"""Tensor cores like sizes that are multiples of this."""
WIDE = 4096
"""Numbers of a token from which on it is wide: a vocabulary."""
VECTOR = 4
"""Numbers that wide tokens lie apart by multiples of."""


def stretch_of(width: int) -> int:
    """Numbers of a token whose products are summed in one chain; wide ones are added up less often."""
    return 256 if width <= WIDE else 1024


def gram(rows: Tensor) -> Tensor:
    """Inner products of each sample's tokens, (n, T, d) -> (n, T, T), those of wide tokens stretch by stretch.

    A number of tokens that tensor cores do not like is rounded up by reading on into the next sample (and into room
    left behind the last); those inner products are dropped again.
    """
    n, tokens, d = rows.shape
    wide = -(-tokens // STEP) * STEP
    if wide == tokens or not rows.is_cuda:
        return inner_products(rows)
    step = rows.stride(1)
    end = rows.storage_offset() + (n * tokens + wide - tokens) * step
    together = rows.stride() == (tokens * step, step, 1)
    if not together or rows.untyped_storage().nbytes() < end * rows.element_size():
        step = d
        roomy = rows.new_empty(rows.numel() + (wide - tokens) * d)[: rows.numel()].view(rows.shape)
        rows = roomy.copy_(rows)
    return inner_products(rows.as_strided((n, wide, d), (tokens * step, step, 1)))[:, :tokens, :tokens]


def inner_products(rows: Tensor) -> Tensor:
    """Inner products: what is lost grows with the length of a chain, so no chain is long."""
    width = rows.shape[2]
    stretch = stretch_of(width)
    found = bmm(rows[..., :stretch], rows[..., :stretch].mT)
    for start in range(stretch, width, stretch):
        part = rows[..., start : start + stretch]
        found += bmm(part, part.mT)
    return found


def tf32_allowed(device: torch.device, *, convolution: bool = False) -> bool:
    """Whether the user lets products (or convolutions) on this device use TF32."""
    if (chosen := policy_of(device).tf32) is not None:
        return chosen
    if device.type != "cuda":
        return False
    try:
        return bool(torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # torch 2.9 and later, set through the newer names
        backend: Any = torch.backends.cudnn if convolution else torch.backends.cuda
        return bool((backend.conv if convolution else backend.matmul).fp32_precision == "tf32")


def bmm(left: Tensor, right: Tensor) -> Tensor:
    """Products of matrices, accumulated and given in float32 or better."""
    half = left.dtype == torch.bfloat16
    return torch.bmm(left, right, out_dtype=torch.float32) if half else torch.bmm(left, right)


def mm(left: Tensor, right: Tensor) -> Tensor:
    """A product of two matrices, accumulated and given in float32 or better."""
    half = left.dtype == torch.bfloat16
    return torch.mm(left, right, out_dtype=torch.float32) if half else torch.mm(left, right)


def weight_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """w_i times every number of sample i, rounded once to the rows' own type."""
    made = kernels.weighted(rows, weights)
    if made is not None:
        return made
    factors = weights.view(-1, *[1] * (rows.dim() - 1))
    if rows.dtype != torch.bfloat16:
        return rows * factors
    return torch.mul(rows, factors, out=torch.empty_like(rows))


def use_grade(grade: Grade) -> AbstractContextManager[None]:
    """Run products the way a grade needs: in TF32 where its numbers are made for that, else in full float32."""
    if grade is FULL:
        return use_full_precision()
    if grade is not BFLOAT16 and not tf32_allowed(torch.device("cuda")):
        return change_settings(products="high")
    return use_own_settings()


def use_own_settings() -> AbstractContextManager[None]:
    """Run a backward pass as plain training runs it: in the precision that is set, outside autocast."""
    return change_settings() if is_autocasting() else NOTHING


def use_full_precision() -> AbstractContextManager[None]:
    """Run products in full float32: no autocast, no TF32, no bfloat16 passes; restores what was set."""
    convolutions = torch.cuda.is_available() and tf32_allowed(torch.device("cuda"), convolution=True)
    try:
        products = torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # older and newer names were mixed: only the newer can be read
        products = True
    if not (convolutions or products or is_autocasting()):
        return NOTHING
    return change_settings(products="highest", convolutions=convolutions)


NOTHING: AbstractContextManager[None] = nullcontext()


def is_autocasting() -> bool:
    """Whether autocast is on anywhere."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


@contextmanager
def change_settings(*, products: str = "", convolutions: bool = False) -> Iterator[None]:
    """Autocast off and settings changed, put back at the end."""
    with ExitStack() as settings:
        if products:
            set_products(products, settings)
        if convolutions:
            set_convolutions(settings)
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                settings.enter_context(torch.autocast(device, enabled=False))
        yield


def set_products(wanted: str, settings: ExitStack) -> None:
    """Set the precision of float32 products, put back when the stack closes."""
    try:
        if (before := torch.get_float32_matmul_precision()) != wanted:
            torch.set_float32_matmul_precision(wanted)
            settings.callback(torch.set_float32_matmul_precision, before)
    except RuntimeError:  # older and newer names were mixed: only the newer can be read
        backends: Any = torch.backends
        change(backends.cuda.matmul, "ieee" if wanted == "highest" else "tf32", settings)
        change(backends.mkldnn.matmul, "ieee", settings)


def set_convolutions(settings: ExitStack) -> None:
    """Convolutions in full float32 until the stack closes."""
    try:
        before = torch.backends.cudnn.allow_tf32
    except RuntimeError:
        backends: Any = torch.backends
        change(backends.cudnn.conv, "ieee", settings)
        return
    torch.backends.cudnn.allow_tf32 = False
    settings.callback(setattr, torch.backends.cudnn, "allow_tf32", before)


def change(backend: Any, wanted: str, settings: ExitStack) -> None:
    """Set the newer name's value, put back when the stack closes."""
    settings.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
    backend.fp32_precision = wanted


def lengths(rows: Tensor) -> Tensor:
    """Upper bounds of Euclidean lengths along the last dimension, in float32 or better.

    What vanished when numbers were squared is added: |x| <= computed + underflow_length(m).
    """
    found = norms(rows)
    return found + underflow_length(rows.shape[-1], found.dtype)


def norms(rows: Tensor) -> Tensor:
    """Euclidean lengths along the last dimension, in float32 or better, of long rows block by block.

    Long chains of float32 sums lean to one side: the norm of 2^24 equal numbers came out 1 % short.
    """
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()  # else they are added one after the other
    width, wide = rows.shape[-1], torch.float32 if rows.dtype == torch.bfloat16 else None
    if width <= BLOCK:
        short: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=wide)
        return short
    even = width - width % BLOCK
    blocks: Tensor = torch.linalg.vector_norm(torch.unflatten(rows[..., :even], -1, (-1, BLOCK)), dim=-1, dtype=wide)
    last: Tensor = torch.linalg.vector_norm(rows[..., even:], dim=-1, keepdim=True, dtype=wide)
    return norms(torch.cat([blocks, last], dim=-1))


BLOCK = 256
"""Numbers whose squares are summed at a time."""


def underflow_length(width: int, dtype: torch.dtype) -> float:
    """The longest row of so many numbers that may vanish when its squares are added: sqrt(2 m tiny).

    A product below the smallest normal float may be flushed to zero, and so may a sum when it is read again.
    """
    return math.sqrt(2 * width * torch.finfo(dtype).tiny)
