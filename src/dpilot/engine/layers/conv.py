"""Convolutions of one, two and three dimensions: strides, paddings, dilations, groups, and their transposes.

On a GPU, where a kernel moves by one, gradients are formed without unfolding (``by_entry``). Lay the padded input out
as tokens, row after row, and the output gradient on the same grid, zero where no output lies. Then a kernel entry sees,
for every output, the token a fixed number of places further on, and nothing is copied kernel-fold:

    g_i[:, :, k] = sum over tokens l of e_i[l] a_i[l + offset(k)]^T
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpilot.engine.base import NoRule, accumulator
from dpilot.engine.layers.base import (
    Apart,
    Dense,
    MakeUse,
    Operation,
    Scope,
    Use,
    cast,
    detach_unseen,
    group_rows,
    plain,
    rule,
)
from dpilot.engine.layers.linear import GramParts, gram_bound, gram_is_cheaper, parts_of
from dpilot.numerics import kernels, precision
from dpilot.numerics.devices import policy_of, tightens_bounds
from dpilot.numerics.precision import Grade

LEAST = 1 << 20
"""Numbers that a GPU unfolds at a time in any case; otherwise no more than inputs and errors have together."""
ROUNDS_INPUTS = False
"""A sum weighs, and so rounds, the errors whatever the widths are: weighted inputs would have to be unfolded."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """g_i[o, c, k] = sum over positions l of e_i[o, l] a_i[c, l stride + k dilation - padding].

    ``inputs`` (r n, C, *space) and ``errors`` (r n, O, *positions); each sample owns r consecutive rows. A transposed
    convolution is the same with inputs and errors exchanged. Norm: Gram over positions where that is smaller than the
    kernel (with its rounding added), else materialised by unfolding a few samples at a time; the sum reuses it.
    """

    inputs: Tensor
    errors: Tensor
    geometry: Geometry
    batch_size: int
    grade: Grade = precision.FULL

    def measure(self) -> tuple[Tensor, Use]:
        if self._by_gram():
            return self._gram_measure()
        if self._by_entry():
            g = self.geometry
            with precision.use_grade(self.grade):
                return by_entry(self.inputs, self.errors, g.kernel, g.padding, g.dilation).measure()
        return Dense(self.gradients(0, self.batch_size)).measure()

    def _by_gram(self) -> bool:
        channels, positions = self.inputs.shape[1] // self.geometry.groups, math.prod(self.errors.shape[2:])
        d, p = channels * math.prod(self.geometry.kernel), self.errors.shape[1]
        return self.plain and gram_is_cheaper(positions, d, p, policy_of(self.inputs.device).gram_factor)

    def _by_entry(self) -> bool:
        """On a GPU, where unfolding costs more than a product for each kernel entry and sizes suit tensor cores."""
        policy, g = policy_of(self.inputs.device), self.geometry
        even = not (self.inputs.shape[1] % policy.even_channels or self.errors.shape[1] % policy.even_channels)
        plain = all(s == 1 for s in g.stride) and g.groups == 1 and self.inputs.shape[0] == self.batch_size
        return policy.forms_by_entry and even and plain

    @property
    def defers_finish(self) -> bool:
        """Whether the norm is a Gram norm that is finished together with others, from ``gram_parts``."""
        return bool(self.grade.shave) and self._by_gram() and math.prod(self.errors.shape[2:]) > 1

    def gram_parts(self) -> GramParts:
        """What the Gram norm is made of."""
        positions = tuple(self.errors.shape[2:])
        e = self._error_columns(0, self.batch_size)[:, 0].mT
        sizes = math.prod(positions), self.inputs.shape[1] * math.prod(self.geometry.kernel), e.shape[2]
        with precision.use_grade(self.grade):
            if worth_it(self.inputs, self.geometry, positions):
                inputs, terms = patch_gram(self.inputs, self.geometry, positions), math.prod(self.geometry.kernel)
            else:
                columns = (self._columns(*few)[:, 0].mT for few in self._all_chunks())
                inputs, terms = torch.cat([precision.gram(rows) for rows in columns]), 0
            return parts_of(inputs, precision.gram(e), sizes, self.grade, ROUNDS_INPUTS, terms)

    def _gram_measure(self) -> tuple[Tensor, Use]:
        if math.prod(self.errors.shape[2:]) == 1:
            return (self.magnitude() * (1 + self.grade.shave)).square(), self
        parts, loose = [], []
        for start, stop in self._all_chunks():
            a, e = self._columns(start, stop)[:, 0].mT, self._error_columns(start, stop)[:, 0].mT
            squares, found = gram_bound(a, e, self.grade, self._part(start, stop)._few, ROUNDS_INPUTS)
            parts.append(squares)
            loose.append(torch.zeros_like(squares, dtype=torch.bool) if found is None else found)
        chosen = torch.cat(loose)
        formed = tightens_bounds(chosen.device) and bool(chosen.any())
        return torch.cat(parts), Apart.of(self, chosen, self._few(chosen)) if formed else self

    @property
    def plain(self) -> bool:
        """Whether each sample is one row, of which all channels meet."""
        return self.geometry.groups == 1 and self.inputs.shape[0] == self.batch_size

    def tokens(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Patches (m, T, d) and errors (m, T, p) of a few samples, where it is ``plain``."""
        return self._columns(start, stop)[:, 0].mT, self._error_columns(start, stop)[:, 0].mT

    def _part(self, start: int, stop: int) -> Correlation:
        ratio = self.inputs.shape[0] // self.batch_size
        rows = slice(start * ratio, stop * ratio)
        return replace(self, inputs=self.inputs[rows], errors=self.errors[rows], batch_size=stop - start)

    @property
    def terms(self) -> int:
        """From how many products an entry of a gradient is summed."""
        return self.inputs.shape[0] // self.batch_size * math.prod(self.errors.shape[2:])

    def _few(self, chosen: Tensor) -> Correlation:
        return replace(self, inputs=self.inputs[chosen], errors=self.errors[chosen], batch_size=int(chosen.sum()))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        rows = weights.repeat_interleave(self.inputs.shape[0] // self.batch_size)
        if self.grade.shave or self.inputs.is_cuda:
            return self._sum_of_products(rows)
        g = self.geometry
        like = self.inputs.new_empty(1).expand(self._shape())
        backward = torch.ops.aten.convolution_backward
        padding, none = list(g.padding), [0] * len(g.kernel)
        with precision.use_full_precision():
            _, out, _ = backward(
                precision.weight_rows(self.errors, rows), self.inputs, like, None, g.stride, padding, g.dilation, False,
                none, g.groups, [False, True, False],
            )  # fmt: skip
        result: Tensor = out
        return result

    def _sum_of_products(self, rows: Tensor) -> Tensor:
        """The sum by plain products, whose rounding is known; convolutions may choose any algorithm."""
        scaled = replace(self, errors=precision.weight_rows(self.errors, rows))
        total: Any = 0
        for start, stop in self._all_chunks():
            left = scaled._error_columns(start, stop).permute(1, 2, 0, 3).flatten(2)  # (groups, width, all positions)
            with precision.use_grade(self.grade):
                total = total + precision.bmm(left, self._together(start, stop).mT)
        return torch.as_tensor(total).reshape(self._shape())

    def _shape(self) -> tuple[int, ...]:
        return (self.errors.shape[1], self.inputs.shape[1] // self.geometry.groups, *self.geometry.kernel)

    def _all_chunks(self) -> list[tuple[int, int]]:
        return self._chunks(0, self.batch_size)

    def _chunks(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Ranges of samples whose unfolded inputs fit."""
        ratio = self.inputs.shape[0] // self.batch_size
        row = self.inputs.shape[1] * math.prod(self.geometry.kernel) * math.prod(self.errors.shape[2:])
        most = policy_of(self.inputs.device).unfolded
        if self.inputs.is_cuda:
            most = min(most, max(LEAST, self.inputs.numel() + self.errors.numel()))
        return even_parts(start, stop, row * ratio, most)

    def gradients(self, start: int, stop: int) -> Tensor:
        kind = accumulator(self.inputs)
        result = self.inputs.new_empty(stop - start, *self._shape(), dtype=kind)
        for at, end in self._chunks(start, stop):
            with precision.use_grade(self.grade):
                self._product(at, end, result[at - start : end - start])
        return result

    def _product(self, start: int, stop: int, into: Tensor) -> None:
        """Write the gradients of a few samples."""
        e, columns = self._error_columns(start, stop), self._columns(start, stop).mT
        if e.shape[1] == 1 and e.shape[0] == into.shape[0]:
            out = into.view(into.shape[0], into.shape[1], -1)
            if e.dtype == out.dtype:
                torch.bmm(e[:, 0], columns[:, 0], out=out)
            else:
                out.copy_(precision.bmm(e[:, 0], columns[:, 0]))
        else:
            found = precision.bmm(e.flatten(0, 1), columns.flatten(0, 1))
            into.copy_(found.view(into.shape[0], -1, *into.shape[1:]).sum(1))

    def magnitude(self) -> Tensor:
        return torch.cat([self._magnitudes(*few) for few in self._all_chunks()])

    def _magnitudes(self, start: int, stop: int) -> Tensor:
        both = self._columns(start, stop), self._error_columns(start, stop)
        inputs, errors = (precision.lengths(t.flatten(1, 2).mT) for t in both)
        return torch.sum(inputs * errors, 1).view(stop - start, -1).sum(1)

    def keep(self, finite: Tensor) -> Correlation:
        rows = finite.repeat_interleave(self.inputs.shape[0] // self.batch_size)
        rows = rows.view(-1, *[1] * (self.inputs.dim() - 1))
        return replace(self, inputs=torch.where(rows, self.inputs, 0.0), errors=torch.where(rows, self.errors, 0.0))

    def _columns(self, start: int, stop: int) -> Tensor:
        """(rows, groups, C/groups * kernel, positions)."""
        ratio = self.inputs.shape[0] // self.batch_size
        a = self.inputs[start * ratio : stop * ratio]
        columns = unfold(a, self.geometry, tuple(self.errors.shape[2:]))
        return columns.reshape(a.shape[0], self.geometry.groups, -1, math.prod(self.errors.shape[2:]))

    def _together(self, start: int, stop: int) -> Tensor:
        """(groups, C/groups * kernel, rows * positions), in one copy."""
        ratio, g = self.inputs.shape[0] // self.batch_size, self.geometry
        seen = unfold(self.inputs[start * ratio : stop * ratio], g, tuple(self.errors.shape[2:]))
        seen = seen.view(seen.shape[0], g.groups, -1, *seen.shape[2:])
        inner = 3 + len(g.kernel)
        order = 1, *range(2, inner), 0, *range(inner, seen.dim())
        width = math.prod(seen.shape[2:inner])
        return seen.permute(*order).reshape(g.groups, width, -1)

    def _error_columns(self, start: int, stop: int) -> Tensor:
        """(rows, groups, O/groups, positions)."""
        ratio = self.inputs.shape[0] // self.batch_size
        e = self.errors[start * ratio : stop * ratio]
        return e.reshape(e.shape[0], self.geometry.groups, -1, math.prod(e.shape[2:]))


def convolution_use(geometry: Geometry, n: int, transposed: bool) -> MakeUse:
    """The use a kernel leaves; a transposed convolution exchanges inputs and errors."""

    def make(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        use = exchange_roles(saved[0], e, geometry, n) if transposed else Correlation(saved[0], e, geometry, n)
        a, e, grade = precision.grade_pair(use.inputs, use.errors, convolution=True, formed=not use._by_gram())
        return replace(use, inputs=a, errors=e, grade=grade)

    return make


def exchange_roles(x: Tensor, e: Tensor, g: Geometry, n: int) -> Correlation:
    """A transposed convolution's use; what output_padding adds beyond the kernel's last step is cut off."""
    sizes = zip(x.shape[2:], g.stride, g.dilation, g.kernel, strict=True)
    reach = [(length - 1) * s + d * (k - 1) + 1 for length, s, d, k in sizes]
    beyond = [width + 2 * p - r for width, p, r in zip(e.shape[2:], g.padding, reach, strict=True)]
    if any(extra >= s for extra, s in zip(beyond, g.stride, strict=True)):
        e = F.pad(
            e, [w for p, extra in zip(reversed(g.padding), reversed(beyond), strict=True) for w in (p, p - extra)]
        )
        g = Geometry(g.kernel, g.stride, (0,) * len(reach), g.dilation, g.groups)
    return Correlation(e, x, g, n)


def channel_bias_use(n: int) -> MakeUse:
    """The output gradient summed over positions."""

    def make(_: tuple[Tensor, ...], e: Tensor) -> Use:
        rows = group_rows(e, n)
        return Dense(rows.sum((1, *range(3, rows.dim())), dtype=accumulator(e)))

    return make


def record(
    scope: Scope, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, transposed: bool
) -> Tensor:
    """Tap the output of a convolution."""
    uses: list[tuple[Tensor, MakeUse]] = []
    if scope.is_weight(weight):
        uses.append((weight, convolution_use(geometry, scope.batch_size, transposed)))
    if bias is not None and scope.is_weight(bias):
        uses.append((bias, channel_bias_use(scope.batch_size)))
    return scope.tap(out, (detach_unseen(x),) if scope.is_weight(weight) else (), uses)


@rule("conv1d", "conv2d", "conv3d")
def _conv(
    scope: Scope, operation: Operation, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    space, kernel = spatial_dims(input, weight), tuple(weight.shape[2:])
    input = cast(input)
    steps, spread = tuple_of(stride, space), tuple_of(dilation, space)
    if padding == "same":
        input, padding = pad_same(input, kernel, spread), 0
    width = tuple_of(0 if padding == "valid" else padding, space)
    out = operation(input, plain(scope, weight), plain(scope, bias), steps, width, spread, groups)
    return record(scope, out, input, weight, bias, Geometry(kernel, steps, width, spread, groups), False)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    scope: Scope, operation: Operation, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
    padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    space = spatial_dims(input, weight)
    input = cast(input)
    steps, width, spread, beyond = (tuple_of(v, space) for v in (stride, padding, dilation, output_padding))
    out = operation(input, plain(scope, weight), plain(scope, bias), steps, width, beyond, groups, spread)
    geometry = Geometry(tuple(weight.shape[2:]), steps, width, spread, groups)
    return record(scope, out, input, weight, bias, geometry, True)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a kernel moves over its input; padding is already applied when ``padding`` is zero."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def unfold(a: Tensor, geometry: Geometry, positions: tuple[int, ...]) -> Tensor:
    """A view (rows, C, *kernel, *positions) of the padded input: what each kernel entry sees at each position."""
    if any(geometry.padding):
        a = F.pad(a, [width for side in reversed(geometry.padding) for width in (side, side)])
    a = a.contiguous()
    space = a.stride()[2:]
    steps = [s * d for s, d in zip(space, geometry.dilation, strict=True)]
    moves = [s * m for s, m in zip(space, geometry.stride, strict=True)]
    return a.as_strided((*a.shape[:2], *geometry.kernel, *positions), (*a.stride()[:2], *steps, *moves))


def even_parts(start: int, stop: int, each: int, most: int) -> list[tuple[int, int]]:
    """Ranges of samples of ``each`` numbers, as few as hold ``most`` numbers at a time, of about equal size.

    Example:
        >>> even_parts(0, 10, each=3, most=12)
        [(0, 4), (4, 8), (8, 10)]
    """
    fitting = max(1, most // max(1, each))
    count = -(-(stop - start) // fitting)
    step = -(-(stop - start) // max(1, count))
    return [(at, min(at + step, stop)) for at in range(start, stop, max(1, step))]


def spatial_dims(x: Tensor, weight: Tensor) -> int:
    """The number of spatial dimensions; an input without a batch dimension is refused."""
    if x.dim() != weight.dim():
        raise NoRule(
            f"a convolution of an input of shape {tuple(x.shape)} without samples first. Add a batch dimension."
        )
    return weight.dim() - 2


def tuple_of(value: Any, length: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(int(v) for v in values) * (length if len(values) == 1 else 1)


def pad_same(x: Tensor, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """The zeros padding="same" asks for; the odd one goes to the right."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return F.pad(x, [width for total in reversed(totals) for width in (total // 2, total - total // 2)])


LAID = 1 << 26
"""Numbers laid out as tokens at a time."""


@dataclass(frozen=True, slots=True)
class ByEntry:
    """Gradients of a kernel with its entries first: dense values (n, entries, O, C), summed into (O, C, *kernel)."""

    values: Dense
    kernel: tuple[int, ...]

    def measure(self) -> tuple[Tensor, Use]:
        return self.values.measure()[0], self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._to_kernel_layout(self.values.weighted_sum(weights).unsqueeze(0))[0]

    def gradients(self, start: int, stop: int) -> Tensor:
        return self._to_kernel_layout(self.values.gradients(start, stop))

    def magnitude(self) -> Tensor:
        return self.values.magnitude()

    def keep(self, finite: Tensor) -> ByEntry:
        return ByEntry(self.values.keep(finite), self.kernel)

    def _to_kernel_layout(self, values: Tensor) -> Tensor:
        """(n, entries, O, C) -> (n, O, C, *kernel)."""
        return values.permute(0, 2, 3, 1).reshape(values.shape[0], *values.shape[2:], *self.kernel)


def by_entry(
    inputs: Tensor, errors: Tensor, kernel: tuple[int, ...], padding: Sequence[int], dilation: Sequence[int]
) -> ByEntry:
    """Every sample's gradient, from inputs (n, C, *space) and errors (n, O, *positions)."""
    grid = [size + 2 * side for size, side in zip(inputs.shape[2:], padding, strict=True)]
    steps = [d * math.prod(grid[j + 1 :]) for j, d in enumerate(dilation)]
    offsets = [sum(i * s for i, s in zip(at, steps, strict=True)) for at in product(*map(range, kernel))]
    n, channels, width = inputs.shape[0], inputs.shape[1], errors.shape[1]
    values = inputs.new_empty(n, len(offsets), width, channels, dtype=accumulator(inputs))
    for start, stop in even_parts(0, n, math.prod(grid) * (channels + width), LAID):
        rows = slice(start, stop)
        a, e = on_grid(inputs[rows], grid, padding), on_grid(errors[rows], grid, [0] * len(grid))
        for j, offset in enumerate(offsets):
            left, right = e[:, : e.shape[1] - offset].mT, a[:, offset:]
            if a.dtype == torch.bfloat16:
                values[rows, j] = precision.bmm(left, right)
            else:
                torch.bmm(left, right, out=values[rows, j])
    return ByEntry(Dense(values), kernel)


def on_grid(values: Tensor, grid: Sequence[int], start: Sequence[int]) -> Tensor:
    """(n, C, *size) laid into zeros of the grid's size, as tokens (n, places, C)."""
    made = kernels.on_grid(values, grid, start)
    if made is not None:
        return made
    n, channels, *size = values.shape
    laid = values.new_zeros(n, *grid, channels)
    inside = tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))
    laid[:, *inside] = values.movedim(1, -1)
    return laid.flatten(1, -2)


def worth_it(inputs: Tensor, geometry: Geometry, positions: tuple[int, ...]) -> bool:
    """Whether the pixels have fewer inner products to form than the patches have products: places^2 <= K T^2."""
    places = math.prod(pad_sizes(inputs, geometry))
    return places * places <= math.prod(geometry.kernel) * math.prod(positions) ** 2


def pad_sizes(inputs: Tensor, geometry: Geometry) -> list[int]:
    """The size of the padded image."""
    return [size + 2 * side for size, side in zip(inputs.shape[2:], geometry.padding, strict=True)]


def patch_gram(inputs: Tensor, geometry: Geometry, positions: tuple[int, ...]) -> Tensor:
    """Gram matrices (n, T, T) of the patches of images (n, C, *space), for a kernel without groups."""
    grid = pad_sizes(inputs, geometry)
    pixels = precision.gram(on_grid(inputs, grid, geometry.padding))
    across = [math.prod(grid[j + 1 :]) for j in range(len(grid))]
    down, right = pixels.stride(1), pixels.stride(2)
    entries = [d * a * (down + right) for d, a in zip(geometry.dilation, across, strict=True)]
    moves = [s * a for s, a in zip(geometry.stride, across, strict=True)]
    steps = [m * down for m in moves] + [m * right for m in moves]
    seen = pixels.as_strided(
        (pixels.shape[0], *geometry.kernel, *positions, *positions), (pixels.stride(0), *entries, *steps)
    )
    # <patch_s, patch_t> = sum over kernel entries k of <pixel at s + k, pixel at t + k>: a sum of entries of ``pixels``
    # (tests/engine/test_tensor_cores.py::test_inner_products_of_patches_are_sums_of_those_of_pixels)
    tokens = math.prod(positions)
    return seen.sum(tuple(range(1, 1 + len(grid)))).view(-1, tokens, tokens)
