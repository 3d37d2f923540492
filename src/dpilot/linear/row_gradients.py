"""Gradients of linear models, clipped and counted: what every step of ``linear`` puts into a private sum.

Each record sends its clipped gradient, in thresholds, and kappa in one entry of a histogram of norms::

    [ sum g_i min(1, C / |g_i|) / C  |  kappa sum onehot(bin of |g_i| / C) ]       bound = sqrt(1 + kappa^2)

so every step writes the same receipt, whatever the threshold does; kappa = 0 sends no histogram. The gradient of a unit
of several rows is the mean of theirs, clipped once.

What each record adds is cut to a grid by itself, towards zero, and sums are exact: no order of the records and no
rounding of a sum is in a release (``numerics.grid``, docs/proofs/hardened.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.linear.rows import Rows, UnitChunk
from dpilot.mechanism import Draws, Noise, release
from dpilot.numerics.grid import RECORDS, UNIT, add_to_limbs, cut, cut_pull, cut_rows, join_limbs, row_lengths
from dpilot.numerics.products import cut_products
from dpilot.private_sum import Clip, PerSampleGradients, Summand, private_sum

__all__ = [
    "EDGES", "GridRows", "HistogramClip", "OneHot", "Residual", "RowGradients", "UnitGradients", "clip",
    "gradient_step", "linear_residual",
]  # fmt: skip

Residual = Callable[[Floats, Floats], Floats]

EDGES: Final = 2.0 ** np.array([-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0])
"""Edges of the bins of norms, in thresholds."""
_ENTRIES: Final = 1 << 21  # of gradients formed at a time
_KAPPA: Final = 2.0**-24  # what the entries of a histogram are multiples of: their sums are exact


@final
@dataclass(frozen=True, slots=True)
class HistogramClip:
    """The public state of ``clip``: the threshold C, and the weight kappa of the histogram beside a gradient of 1."""

    threshold: float
    kappa: float = 0.0

    @property
    def bound(self) -> float:
        return math.sqrt(1 + self.kappa**2)


def clip(norms: Floats, state: HistogramClip) -> tuple[Floats, OneHot]:
    """Weights min(1, C / n) / C, and kappa, cut to 24 bits, in the bin of n / C; a norm that is not finite has neither.

    Guarantee:
        (w n)^2 + |x|^2 <= 1 + kappa^2. The weight is shortened by 1e-12, more than the roundings of a norm of up to
        4,000 numbers and of the products (``tests/contracts/test_private_sum.py``).
    """
    finite = np.isfinite(norms)
    weights = np.where(finite, (1 - 1e-12) / np.maximum(norms, state.threshold), 0.0)
    bins = np.searchsorted(EDGES, norms / state.threshold) if state.kappa else np.zeros(norms.shape, dtype=np.intp)
    kappa = float(cut(np.array(state.kappa), _KAPPA))
    return weights, OneHot(np.where(finite, bins, -1), EDGES.size + 1 if kappa else 0, kappa)


@final
@dataclass(frozen=True, slots=True)
class OneHot:
    """A matrix with ``value`` in one column of each row (none where that is -1), added up without being formed."""

    columns: NDArray[np.intp]
    width: int
    value: float

    def sum(self, axis: int) -> Floats:
        assert axis == 0
        if not self.width:
            return np.zeros(0)
        return self.value * np.bincount(self.columns[self.columns >= 0], minlength=self.width).astype(np.float64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        del copy
        return np.asarray(self.value * (self.columns[:, None] == np.arange(self.width)), dtype=dtype)


def linear_residual(target: Floats, scores: Floats) -> Floats:
    """How far each record pulls its score: y - x w, the negative derivative of half the squared error."""
    return target[:, None] - scores


@final
@dataclass(frozen=True, slots=True)
class GridRows:
    """Rows of [features | target] whose features lie on a grid: what steps are taken on."""

    rows: Rows

    @classmethod
    def of(cls, rows: Rows, change: Callable[[Floats], Floats] = np.array) -> GridRows:
        """The features, each row put through ``change`` by itself, then cut to the grid of its own length."""

        def cut_features(values: Floats) -> Floats:
            return np.column_stack([cut_rows(change(values[:, :-1])), values[:, -1]])

        return cls(rows.map(cut_features, rows.columns))


@final
class RowGradients(PerSampleGradients):
    """The gradients x (outer) residual of some rows [features | target] at ``weights`` (columns, outputs).

    Features are those of ``GridRows``, of 4,096 rows at most. ``longest`` is what no row of features exceeds in length,
    where that is known: norms are then longest |residual|.

    Guarantee:
        |x (outer) r|_F = |x| |r|, so norms are exact but for roundings, which ``clip`` takes off. Weighed residuals are
        cut to a grid, so that what a record adds is a multiple of UNIT, number by number no larger than its gradient.
    """

    def __init__(
        self, rows: Floats, weights: Floats, residual: Residual = linear_residual, longest: float | None = None
    ) -> None:
        self._features = rows[:, :-1]
        self._pull = residual(rows[:, -1], cut_products(self._features, weights))  # (n, outputs)
        self._lengths = row_lengths(self._features)
        self._longest = longest

    @property
    def norms(self) -> Floats:
        lengths = self._lengths if self._longest is None else self._longest
        return np.asarray(lengths * row_lengths(self._pull))

    def weighted_sum(self, weights: Floats) -> Floats:
        counted = (weights > 0) & (self._lengths > 0)  # 0 times infinity is no number
        pull = np.where(counted[:, None], self._pull * weights[:, None], 0.0)
        return np.asarray(self._features.T @ cut_pull(pull, self._lengths))


@final
class UnitGradients(PerSampleGradients):
    """The gradients of units of several rows, 4,096 units at most: the mean of those of a unit's rows, cut to a grid.

    Guarantee:
        Norms are those of the vectors that are added up, which are formed; with ``longest`` no less.
    """

    def __init__(self, chunk: UnitChunk, weights: Floats, residual: Residual, longest: float | None) -> None:
        features = chunk.values[:, :-1]
        pull = residual(chunk.values[:, -1], cut_products(features, weights))
        self._shape = weights.shape
        each = (features[:, :, None] * pull[:, None, :]).reshape(len(features), weights.size)
        self._gradients = chunk.means(each)
        self._most = None if longest is None else longest * chunk.means(row_lengths(pull)[:, None])[:, 0]

    @property
    def norms(self) -> Floats:
        return row_lengths(self._gradients) if self._most is None else self._most

    def weighted_sum(self, weights: Floats) -> Floats:
        counted = weights > 0
        each = cut(weights[counted, None] * self._gradients[counted], UNIT)
        return np.asarray(each.sum(axis=0)).reshape(self._shape)


@final
@dataclass(frozen=True, slots=True)
class _InLimbs(Summand):
    """The sums of one piece, ready to be added to those of others without rounding."""

    piece: PerSampleGradients

    def clip_and_sum(self, clip: Clip, state: Any) -> tuple[Floats, Floats]:
        sums, extras = self.piece.clip_and_sum(clip, state)
        return add_to_limbs(np.zeros((2, *sums.shape)), sums, UNIT), extras


def _release_joined(total: tuple[Floats, Floats], **terms: Any) -> tuple[Floats, Floats]:
    noisy: tuple[Floats, Floats] = release((join_limbs(total[0]), total[1]), **terms)
    return noisy


def gradient_step(
    rows: GridRows,
    weights: Floats,
    state: HistogramClip,
    *,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise,
    residual: Residual = linear_residual,
    longest: float | None = None,
    entries: int = _ENTRIES,
) -> tuple[Floats, Floats]:
    """The noisy sum of clipped gradients over the threshold, shaped as ``weights``, and the noisy bins of norms.

    Guarantee:
        That of ``private_sum``: one Gaussian of ``noise_multiplier``. The sum is the same for every order of the
        records, to the last bit.
    """

    def gradients(chunk: UnitChunk) -> Iterator[PerSampleGradients]:
        if chunk.starts is None:
            for start in range(0, len(chunk.values), RECORDS):
                yield RowGradients(chunk.values[start : start + RECORDS], weights, residual, longest)
        else:
            pieces = chunk.split(min(entries // weights.size, RECORDS))
            yield from (UnitGradients(piece, weights, residual, longest) for piece in pieces)

    none = RowGradients(np.zeros((0, rows.rows.columns)), weights, residual, longest)
    sums, extras = private_sum(
        map(_InLimbs, chain.from_iterable(map(gradients, rows.rows.unit_chunks()))),
        clip,
        state,
        empty=_InLimbs(none),
        noise_multiplier=noise_multiplier,
        receipt=receipt,
        noise=noise,
        door=_release_joined,
    )
    return sums, extras / (state.kappa or 1.0)
