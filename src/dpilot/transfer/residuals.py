"""The clipped sum of linear heads' gradients, for all heads at once, in one pass over the features.

With p = softmax(x W) and y the one-hot class, the gradient of the cross-entropy is the product x (p - y)^T, so its
norm is |x| |p - y|, and clipping it is shortening the residual p - y::

    R = (p - y) min(1, C / (|x| |p - y|))          sum of clipped gradients = X^T R

Both products of a step, X W and X^T R, are taken block by block, so that a block of X comes from memory once.

Precision: |x| is taken once in float64; |p - y| and the shortened residual are float32, off by at most
(classes / 2 + 12) roundings, which ``_shave`` takes off the threshold. So |x| |R| <= C holds for the very numbers that
are multiplied. Their sum over records is accumulated in float32, like every sum of this library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from dpilot.transfer.features import NULL, Features, chunked

__all__ = ["Records", "reach", "shortened"]

_SHORTEST: Final = 1e-15  # a record longer than 1e15 thresholds is null: its residual would be too small for float32
_LONGEST: Final = 1e15  # what a row of zeros may send: anything, as it is multiplied by 0
_BLOCK_BYTES: Final = 1 << 21  # of features at a time: about what a core's own cache holds
_BLOCK_ROWS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Features made ready: rows, classes and lengths, and how many rows are worked on at a time.

    Guarantee:
        Blocks are cut by place and the last one is filled up with null records, so that every record is multiplied in
        a product of the same shape, whatever the number of records.
    """

    values: Tensor  # (n, d) float32
    labels: Tensor  # (n,) int64, null records 0
    lengths: Tensor  # (n,) float64, null records inf
    classes: int
    block: int

    @classmethod
    def of(cls, features: Features, device: torch.device | str | None = None) -> Records:
        values = features.values if device is None else features.values.to(device)
        labels = features.labels.to(values.device)
        lengths = torch.cat([torch.linalg.vector_norm(rows.double(), dim=1) for rows in chunked(values)])
        lengths = torch.where(labels == NULL, torch.inf, lengths)
        return cls(values, labels.clamp_min(0), lengths, features.classes, block_rows(values))

    def clipped_sum(self, weights: Tensor, limits: Tensor) -> Tensor:
        """sum_i x_i R_i^T for each head: weights (d, heads, classes), limits (n, heads) -> (d, heads, classes)."""
        d, heads, classes = weights.shape
        total = weights.new_zeros((d, heads * classes))
        for rows, labels, limit in self._blocks(limits):
            scores = torch.mm(rows, weights.view(d, heads * classes)).view(len(rows), heads, classes)
            residuals = shortened(scores, labels, limit)
            total.addmm_(rows.T, residuals.view(len(rows), heads * classes))
        return total.view(d, heads, classes)

    def _blocks(self, limits: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for start in range(0, len(self.values), self.block):
            parts = [each[start : start + self.block] for each in (self.values, self.labels, limits)]
            missing = self.block - len(parts[0])
            values, labels, limit = [_filled(part, missing) for part in parts] if missing else parts
            yield values, labels, limit


def shortened(scores: Tensor, labels: Tensor, limits: Tensor) -> Tensor:
    """Residuals p - y (b, heads, classes), none longer than its limit (b, heads).

    Edge cases:
        Scores that are not finite, or a limit of 0: a residual of 0.
    """
    residuals = torch.softmax(scores, -1)
    residuals.scatter_add_(2, labels.view(-1, 1, 1).expand(-1, scores.shape[1], 1), -torch.ones_like(scores[:, :, :1]))
    lengths = torch.linalg.vector_norm(residuals, dim=2)
    residuals.mul_((limits / lengths).clamp_max_(1.0).unsqueeze(2))
    return residuals.nan_to_num_(nan=0.0)


def reach(lengths: Tensor, thresholds: Tensor, classes: int) -> Tensor:
    """How long a record's residual may be for each head, C_j / |x_i| less a little: (n,), (heads,) -> (n, heads)."""
    limits = thresholds.double() * (1 - _shave(classes)) / lengths[:, None]
    return torch.where(limits >= _SHORTEST, limits.clamp_max(_LONGEST), 0.0).to(torch.float32)


def block_rows(values: Tensor) -> int:
    """Rows of a block, from the width alone: the whole of a row's work fits a cache (an accelerator takes all rows)."""
    if values.device.type != "cpu":
        return max(len(values), 1)
    return max(_BLOCK_ROWS, _BLOCK_BYTES // max(4 * values.shape[1], 1))


def _shave(classes: int) -> float:
    return (classes + 16) * 2.0**-24


def _filled(part: Tensor, missing: int) -> Tensor:
    return torch.cat([part, part.new_zeros((missing, *part.shape[1:]))])
