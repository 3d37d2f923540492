"""Gradients of linear heads on cached features, for all heads at once, in one pass over the features.

With p = softmax(x W) and y the one-hot class, the gradient of the cross-entropy is the product x (p - y)^T, so its
norm is |x| |p - y|, and weighing it is weighing the residual p - y::

    norm = |x| |p - y|          sum of weighted gradients = X^T (w (p - y))

Each head is a group of parameters. Norms are in units of its threshold C, so the rule of heads (``joint``) clips them
at 1; what is released is the sum over C sigma, so that one Gaussian of standard deviation 1 covers all heads.

Both products of a step, X W and X^T R, are taken block by block, so that a block of X comes from memory once; and
transposed (heads and classes first, records last), which narrow products like and in which records lie side by side.

Precision: |x| is taken once in float64; |p - y| and the weighed residual R are float32, off by at most
(classes / 2 + 12) roundings, which ``_shave`` takes off the threshold. So |x| |R| <= C holds for the very numbers that
are multiplied (``test_no_record_sends_more_than_the_threshold``). On a GPU features and weighed residuals are cut to
TF32 first (which shortens them), so their products are exact and run on tensor cores, whatever is set for others.

A sum in float32 rounds by its own length. Here float32 adds up at most k = 128 records, and those sums are added in
float64. A record that is there, or null in its place, changes the roundings of its own 128 only: each of k additions
rounds by at most 2^-24 of a sum no longer than k C, with the record and without it, so by k^2 2^-24 C = 2^-10 C in all,
in whatever order they are added. In a secret order (``shuffled``) one record more takes a place, and who was there goes
to the end: two sums of 128 change, so twice that is taken off the threshold. Tensor cores cut off by twice what others
round, each product and each sum of four of them or more: 2.5 times as much at most, and three times is taken off
(``test_a_record_moves_a_sum_on_tensor_cores_by_no_more_than_the_threshold``).

Class weights multiply the loss, so the residual, before norms are taken: R = clip(w (p - y)) with w that of the
record's own class, a declared or released number. Its norm is that of the very numbers w (p - y), rounded, so all of
the above holds of them: no weight makes a record longer than C.

Where a unit has several rows (``Features.units``), the mean of their gradients is clipped (``unit_gradients``).

A record put in before others moves those into other sums of 128. Adversarial records can make all their roundings lean
one way, up to n 2^-17 C for n records; where nobody can choose the order (coins of a split, ``shuffled``) they cannot
be built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, cast, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpilot.data.disk import DiskArrayBuilder
from dpilot.errors import InvalidInput
from dpilot.numerics import precision
from dpilot.private_sum import Clip, PerSampleGradients, clip_and_sum
from dpilot.transfer import head_kernels
from dpilot.transfer.exact_heads import cut_features, powers_above, sum_exactly
from dpilot.transfer.features import NULL, DiskValues, Features, chunk_rows
from dpilot.transfer.joint import JointHeads, clip_heads
from dpilot.transfer.unit_gradients import UnitBlock, UnitBlocksOnDisk, UnitHeadGradients, cut_blocks

__all__ = ["FeatureBlocks", "HeadGradients", "residual_limits"]

_SHORTEST: Final = 1e-15  # a record longer than 1e15 thresholds is null: its residual would be too small for float32
_LONGEST: Final = 1e15  # what a row of zeros may send: anything, as it is multiplied by 0
_BLOCK_BYTES: Final = 5 << 20  # of features, scores and residuals: about what stays in a cache between two products
_BLOCK_ROWS: Final = (256, 8192)  # at least and at most
_DEPTH: Final = 128  # records that float32 adds up
_LARGE: Final = 1 << 15  # numbers of a product, from which on pieces are quicker added one by one than side by side
_NORM_ROWS: Final = 2048  # whose lengths are taken at a time
_STRETCH: Final = 16 * _DEPTH  # rows of a block on an accelerator are a multiple of this
_ACCELERATED_ROWS: Final = 64 * _STRETCH  # and no more than this
_SUM_SHAVE: Final = 2 * _DEPTH**2 * 2.0**-24  # of the threshold, for the roundings of two sums of so many
_CORES_SHAVE: Final = 3 * _SUM_SHAVE  # the same on tensor cores


Product = Callable[[Tensor, Tensor, torch.dtype], Tensor]
"""residuals (m, b), rows (b, d) and a type for long sums -> their product (m, d)."""


def _product(residuals: Tensor, rows: Tensor, kind: torch.dtype) -> Tensor:
    """residuals (m, b) times rows (b, d), at most ``_DEPTH`` of the b added in float32, these sums in ``kind``."""
    if len(rows) <= _DEPTH:
        return torch.mm(residuals, rows)
    if (product := head_kernels.deep_product(residuals, rows, _DEPTH)) is not None:
        return product
    if rows.device.type == "cpu" and len(residuals) * rows.shape[1] > _LARGE:
        total = torch.mm(residuals[:, :_DEPTH], rows[:_DEPTH]).to(kind)
        for start in range(_DEPTH, len(rows), _DEPTH):
            place = slice(start, start + _DEPTH)
            total.add_(torch.mm(residuals[:, place], rows[place]))
        return total
    pieces = residuals.view(len(residuals), -1, _DEPTH).transpose(0, 1)
    return torch.bmm(pieces, rows.unfold(0, _DEPTH, _DEPTH).mT).sum(0, dtype=kind)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureBlocks:
    """Features made ready: rows, classes and lengths, and how many rows are worked on at a time.

    Guarantee:
        Blocks are cut by place and the last one is filled up with null records, so that every record is multiplied in
        a product of the same shape, whatever the number of records.
    """

    values: Tensor  # (n, d) float32, cut to the grade; on tensor cores a column's numbers lie side by side
    labels: Tensor  # (n,) int64, null records 0
    lengths: Tensor  # (n,) float64, null records inf
    classes: int
    block: int
    grade: precision.Grade
    product: Product = _product
    units: Iterable[UnitBlock] | None = None  # whose rows are whose, where a unit has several
    class_weights: Tensor | None = None  # (classes,) float32
    powers: Tensor | None = None  # (n,) float64, those above the lengths of rows on a grid, whose sums are exact

    @classmethod
    def of(
        cls,
        features: Features,
        device: torch.device | str | None = None,
        size: float | None = None,
        *,
        heads: int = 1,
        class_weights: Sequence[float] | None = None,
        grade: precision.Grade | None = None,
        product: Product = _product,
        exact: bool = False,
    ) -> FeatureBlocks:
        """Those of ``features``, for so many ``heads``; blocks are cut by ``size``, the declared number of records.

        ``exact``: rows are cut to a grid, so that sums are exact in any order, for hardened noise; of records in the
        memory of a CPU, one row each.

        ``grade`` is that of the device, and ``product`` the one whose roundings the limits have room for, unless a test
        writes out those of another device.
        """
        features = features.by_place()
        features = features if device is None else features.to(device)
        if exact:
            _check_exact(features)
            pieces = [cut_features(rows) for rows in chunk_rows(features.values, _NORM_ROWS)]
            features = replace(features, values=torch.cat(pieces))
        block = _block_of(features, size, heads)
        if isinstance(features.labels, DiskValues):
            return cls._on_disk(features, block, class_weights)
        values, labels = features.values, features.labels
        grade, most = grade or grade_of(values.device), features.protects.rows or 1
        if values.device.type != "cpu":
            values, labels = pad_to_blocks(values, labels, block)
        values = precision.truncate_tf32(values) if grade is precision.TF32 else values
        lengths = torch.empty(len(values), dtype=torch.float64, device=values.device)
        for rows, some in zip(
            chunk_rows(values, _NORM_ROWS), chunk_rows(lengths, _NORM_ROWS), strict=True
        ):  # in place: results between freed pieces would keep the heap from shrinking
            some.copy_(torch.linalg.vector_norm(rows.double(), dim=1))
        null = (labels == NULL) | ~torch.isfinite(lengths)
        if bool((null & (lengths != 0)).any()):  # a product of 0 and nan would be nan; rows of zeros stay, uncopied
            values = torch.where(null[:, None], 0.0, values)
        lengths = torch.where(null, torch.inf, lengths)
        if grade.tensor_cores:  # which multiply fast what lies side by side along the sum
            values = values.T.contiguous().T
        weights = None if class_weights is None else torch.tensor(class_weights, device=values.device)
        units = None
        if features.units is not None and features.shares is not None:
            units = tuple(cut_blocks(values, lengths, features.units, features.shares, rows=block, most=most))
        powers = powers_above(lengths) if exact else None
        codes = labels.clamp_min(0)
        return cls(values, codes, lengths, features.classes, block, grade, product, units, weights, powers)

    @classmethod
    def _on_disk(cls, features: Features, block: int, class_weights: Sequence[float] | None) -> FeatureBlocks:
        """The same of features on disk: what a block needs is read with it, in blocks of the same rows."""
        grade, most = grade_of(features.values.device), features.protects.rows or 1
        labels, lengths = DiskArrayBuilder(np.int64), DiskArrayBuilder(np.float64)
        for start in range(0, len(features), _NORM_ROWS):
            rows, own = features.values[start : start + _NORM_ROWS], features.labels[start : start + _NORM_ROWS]
            found = torch.linalg.vector_norm(rows.double(), dim=1)  # null records are rows of zeros (``Features.of``)
            null = (own == NULL) | ~torch.isfinite(found)
            lengths.append(torch.where(null, torch.inf, found).numpy())
            labels.append(own.clamp_min(0).numpy())
        each: Any = DiskValues(lengths.build(), torch.float64)
        codes: Any = DiskValues(labels.build(), torch.int64)
        weights = None if class_weights is None else torch.tensor(class_weights)
        units: Any = None
        if features.units is not None and features.shares is not None:
            cut = cut_blocks(features.values, each, features.units, features.shares, rows=block, most=most)
            units = UnitBlocksOnDisk.of(cut, block)
        return cls(features.values, codes, each, features.classes, block, grade, units=units, class_weights=weights)

    def limits(self, thresholds: Tensor) -> Tensor:
        """``residual_limits`` of these records; on disk, of those that are asked for."""
        if isinstance(self.lengths, DiskValues):
            return cast(Tensor, _LimitsOnDisk(self.lengths, thresholds, self.classes, self.grade))
        return residual_limits(self.lengths, thresholds, self.classes, self.grade)

    def clip_and_sum(self, weights: Tensor, limits: Tensor) -> Tensor:
        """The sum of gradients under ``clip_heads``, shaped as ``weights`` (heads, classes, d), in float64."""
        total = clip_and_sum(self.gradients(weights, limits), clip_heads, None, add=_add)
        assert total is not None  # there is one block at least
        sums: Tensor = total[0]
        return sums

    def sum_in_units(self, weights: Tensor, limits: Tensor, joint: JointHeads) -> Tensor:
        """The same, each head's in units of its noise."""
        if self.powers is not None:
            return sum_exactly(cast(Any, self.gradients(weights, limits)), self.powers, weights.shape, joint)
        return self.clip_and_sum(weights, limits) / weights.new_tensor(joint.units)[:, None, None]

    def gradients(self, weights: Tensor, limits: Tensor) -> Iterator[PerSampleGradients]:
        """Those of each block in turn, one block at least: weights (heads, classes, d), limits (heads, n)."""
        flat = weights.view(-1, weights.shape[-1])
        records = ((start, None) for start in range(0, max(len(self.values), 1), self.block))
        for start, units in records if self.units is None else ((each.start, each) for each in self.units):
            place = slice(start, start + self.block)
            rows, labels, limit = self.values[place], self.labels[place], limits[:, place]
            missing = self.block - len(rows)
            if missing:
                rows, labels = pad(rows, (0, 0, 0, missing)), pad(labels, (0, missing))
                limit = pad(limit, (0, missing))
            scores = torch.mm(flat, rows.T).view(-1, self.classes, self.block)
            own = None if self.class_weights is None else self.class_weights[labels]
            gradients = HeadGradients(rows, labels, limit, scores, self.grade, self.product, own)
            yield gradients if units is None else UnitHeadGradients(rows, gradients.residuals, limit, units)


@dataclass(frozen=True, slots=True, eq=False)
class _LimitsOnDisk:
    """Limits (heads, n) of rows whose lengths lie on disk: of those of a slice."""

    lengths: DiskValues
    thresholds: Tensor
    classes: int
    grade: precision.Grade

    def __getitem__(self, place: tuple[slice, slice]) -> Tensor:
        return residual_limits(self.lengths[place[1]], self.thresholds, self.classes, self.grade)


@final
class HeadGradients(PerSampleGradients):
    """The gradients of one block of records, a group for each head.

    ``limits`` (heads, b) are the lengths of residuals at which gradients are as long as their threshold, 0 for null
    records; ``scores`` (heads, classes, b) those of the rows (b, d). Norms are in thresholds. ``weights`` (b,), where
    there are any, are those of the records' classes: they multiply the loss.

    Guarantee:
        What a record adds to the sum of head j is no longer than weight times norm times threshold, for the very
        numbers that are multiplied and what adding them up rounds: limits have room for both.

    Edge cases:
        Scores that are not finite, or a limit of 0: the null record, for that head alone.
        A residual so short that its squares vanish (1e-19) has norm 0: its gradient is below 1e-3 thresholds, as limits
        are 1e-15 at least.
    """

    def __init__(
        self,
        rows: Tensor,
        labels: Tensor,
        limits: Tensor,
        scores: Tensor,
        grade: precision.Grade = precision.FULL,
        product: Product = _product,
        weights: Tensor | None = None,
    ) -> None:
        self.rows, self._labels, self._limits, self._scores = rows, labels, limits, scores
        self._grade, self._product, self._weights = grade, product, weights

    @cached_property
    def residuals(self) -> Tensor:
        """p - y of each record (heads, classes, b), times the weight of its class. Sensitive."""
        residuals = torch.softmax(self._scores, 1)
        labels = self._labels.expand(len(residuals), 1, -1)
        residuals.scatter_add_(1, labels, residuals.new_full((1, 1, 1), -1.0).expand_as(labels))
        return residuals if self._weights is None else residuals.mul_(self._weights)  # before norms: then it is clipped

    @property
    def norms(self) -> Tensor:
        return self.residuals.square().sum(1).sqrt_().div_(self._limits).T

    def weigh(self, weights: Tensor) -> Tensor:
        """The residuals times their weights, nan as 0. Sensitive."""
        residuals = self.__dict__.pop("residuals", self.residuals)  # overwritten: asked for again, they are formed anew
        return cast(Tensor, residuals.mul_(weights.T.unsqueeze(1)).nan_to_num_(nan=0.0))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        residuals = self.weigh(weights)
        if self._grade is precision.TF32:
            residuals.view(torch.int32).bitwise_and_(precision.KEPT_BITS)
        return self._sum(residuals)

    def clip_and_sum(self, clip: Clip, state: Any) -> tuple[Tensor, Any]:
        """On a GPU where Triton runs, one kernel forms the residuals that ``clip_heads`` leaves: it reads them once.

        ``test_sums_by_kernels_are_those_of_plain_operations`` compares it with norms, weights and weighted sum.
        """
        fused = clip is clip_heads and self._grade is precision.TF32 and self._weights is None  # it knows no weights
        if fused and (residuals := head_kernels.clip_residuals(self._scores, self._labels, self._limits)) is not None:
            return self._sum(residuals), ()
        weights, extras = clip(self.norms, state)
        return self.weighted_sum(weights), extras.sum(0) if extras.shape[1] else ()

    def _sum(self, residuals: Tensor) -> Tensor:
        """sum_i R_i x_i^T for each head, in float64."""
        heads, classes, records = residuals.shape
        kind = torch.float32 if residuals.device.type == "mps" else torch.float64  # which has no float64
        product = self._product(residuals.view(heads * classes, records), self.rows, kind)
        return product.to(kind).view(heads, classes, -1)


def residual_limits(
    lengths: Tensor, thresholds: Tensor, classes: int, grade: precision.Grade = precision.FULL
) -> Tensor:
    """How long a record's residual may be for each head, C_j / |x_i| less a little: (n,), (heads,) -> (heads, n)."""
    made = []
    for threshold in thresholds.double():  # one at a time: float64 for all heads would be larger than narrow features
        limits = threshold * (1 - _shave(classes, grade)) / lengths
        made.append(torch.where(limits >= _SHORTEST, limits.clamp_max(_LONGEST), 0.0).to(torch.float32))
    return torch.stack(made)


def grade_of(device: torch.device) -> precision.Grade:
    """What products of records are made of: TF32 on a GPU, where seven heads then cost little more than one."""
    return precision.TF32 if device.type == "cuda" else precision.FULL


def _block_of(features: Features, size: float | None, heads: int) -> int:
    """Rows of a block, of which a unit's fit one. A unit counts ``size`` by one, and in rows by its cap at most."""
    most = features.protects.rows or 1
    rows = block_rows(features.values, None if size is None else size * most, heads * features.classes)
    return max(rows, -(-most // _DEPTH) * _DEPTH)


def block_rows(values: Tensor, size: float | None = None, outputs: int = 1) -> int:
    """Rows of a block, from device, width, outputs (heads times classes) and declared size alone.

    On the CPU the whole of a block's work fits a cache: features, and scores, residuals and their squares for each
    output. On an accelerator kernels are few where blocks are large: one block holds the declared size and six standard
    deviations more, as parts are drawn by coins.
    """
    if values.device.type != "cpu":
        return accelerator_rows(_ACCELERATED_ROWS if size is None else size)
    least, most = _BLOCK_ROWS
    fits = min(max(least, _BLOCK_BYTES // (4 * (values.shape[1] + 3 * outputs))), most)
    rows = fits - fits % _DEPTH
    return rows if size is None else even_rows(size, rows, _DEPTH, deviations=2)


def accelerator_rows(size: float) -> int:
    """Rows of a block on an accelerator, for a declared size.

    Example:
        >>> accelerator_rows(50_000), accelerator_rows(1.0), accelerator_rows(1e6)
        (53248, 2048, 126976)
    """
    return even_rows(size, _ACCELERATED_ROWS, _STRETCH, deviations=6)


def even_rows(size: float, most: int, multiple: int, *, deviations: int) -> int:
    """A multiple of rows, at most ``most``: few blocks of them hold ``size`` and so many standard deviations more.

    Blocks are alike, so little of the last one is null records.

    Example:
        >>> even_rows(20_000, 8064, 128, deviations=2)
        6784
    """
    needed = size + deviations * math.sqrt(size)
    blocks = math.ceil(needed / most)
    return math.ceil(needed / blocks / multiple) * multiple


def pad_to_blocks(values: Tensor, labels: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Null records behind the others, so that whole blocks are had without a copy at every step."""
    missing = -len(values) % block
    return pad(values, (0, 0, 0, missing)), pad(labels, (0, missing), value=NULL)


def _check_exact(features: Features) -> None:
    rows = features.values
    if type(rows) is not Tensor or rows.device.type != "cpu" or features.shares is not None:
        raise InvalidInput(
            "hardened noise is asked for of features on a GPU or on disk, sparse ones, or units of several rows: "
            "expected one row a record, in memory. Leave out the noise, or train a torch.nn.Linear by Trainer."
        )


def _add(total: Tensor, more: Tensor, *, own: bool) -> Tensor:
    del own  # each block's sum is new memory
    return total.add_(more)


def _shave(classes: int, grade: precision.Grade = precision.FULL) -> float:
    return (classes + 16) * 2.0**-24 + (_CORES_SHAVE if grade.tensor_cores else _SUM_SHAVE)
