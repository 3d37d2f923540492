"""Gradients of linear models, clipped and counted: what every step of ``linear`` puts into a private sum.

Each record sends its clipped gradient, in thresholds, and kappa in one entry of a histogram of norms::

    [ sum g_i min(1, C / |g_i|) / C  |  kappa sum onehot(bin of |g_i| / C) ]       bound = sqrt(1 + kappa^2)

so every step writes the same receipt, whatever the threshold does; kappa = 0 sends no histogram. The gradient of a unit
of several rows is the mean of theirs, clipped once.
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
from dpilot.mechanism import Draws, Noise
from dpilot.numerics.products import products
from dpilot.private_sum import PerSampleGradients, private_sum

__all__ = [
    "EDGES", "HistogramClip", "OneHot", "Residual", "RowGradients", "UnitGradients", "clip", "gradient_step",
    "linear_residual",
]  # fmt: skip

Residual = Callable[[Floats, Floats], Floats]

EDGES: Final = 2.0 ** np.array([-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0])
"""Edges of the bins of norms, in thresholds."""
_ENTRIES: Final = 1 << 21  # of gradients formed at a time


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
    """Weights min(1, C / n) / C, and kappa in the bin of n / C; a norm that is not finite has neither.

    Guarantee:
        (w n)^2 + |x|^2 <= 1 + kappa^2. The weight is shortened by 1e-12, more than the roundings of a norm of up to
        4,000 numbers and of the products (``tests/contracts/test_private_sum.py``).
    """
    finite = np.isfinite(norms)
    weights = np.where(finite, (1 - 1e-12) / np.maximum(norms, state.threshold), 0.0)
    bins = np.searchsorted(EDGES, norms / state.threshold) if state.kappa else np.zeros(norms.shape, dtype=np.intp)
    return weights, OneHot(np.where(finite, bins, -1), EDGES.size + 1 if state.kappa else 0, state.kappa)


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
class RowGradients(PerSampleGradients):
    """The gradients x (outer) residual of some rows [features | target] at ``weights`` (columns, outputs).

    ``longest`` is what no row of features exceeds in length, where that is known: norms are then longest |residual|.

    Guarantee:
        |x (outer) r|_F = |x| |r|, so norms are exact but for roundings, which ``clip`` takes off.
    """

    def __init__(
        self, rows: Floats, weights: Floats, residual: Residual = linear_residual, longest: float | None = None
    ) -> None:
        self._features = rows[:, :-1]
        self._pull = residual(rows[:, -1], products(self._features, weights))  # (n, outputs)
        self._longest = longest

    @property
    def norms(self) -> Floats:
        lengths = _lengths(self._features) if self._longest is None else self._longest
        return np.asarray(lengths * _lengths(self._pull))

    def weighted_sum(self, weights: Floats) -> Floats:
        pull = np.where(weights[:, None] > 0, self._pull * weights[:, None], 0.0)  # 0 times infinity is no number
        return np.asarray(self._features.T @ pull)


@final
class UnitGradients(PerSampleGradients):
    """The gradients of units of several rows, as ``RowGradients``: the mean of those of a unit's rows.

    Guarantee:
        Norms are those of the vectors that are added up, which are formed; with ``longest`` no less.
    """

    def __init__(self, chunk: UnitChunk, weights: Floats, residual: Residual, longest: float | None) -> None:
        features = chunk.values[:, :-1]
        pull = residual(chunk.values[:, -1], products(features, weights))
        self._shape = weights.shape
        each = (features[:, :, None] * pull[:, None, :]).reshape(len(features), weights.size)
        self._gradients = chunk.means(each)
        self._most = None if longest is None else longest * chunk.means(_lengths(pull)[:, None])[:, 0]

    @property
    def norms(self) -> Floats:
        return _lengths(self._gradients) if self._most is None else self._most

    def weighted_sum(self, weights: Floats) -> Floats:
        counted = weights > 0
        return np.asarray(weights[counted] @ self._gradients[counted]).reshape(self._shape)


def _lengths(rows: Floats) -> Floats:
    return np.abs(rows[:, 0]) if rows.shape[1] == 1 else np.sqrt(np.einsum("ij,ij->i", rows, rows))


def gradient_step(
    rows: Rows,
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
        That of ``private_sum``: one Gaussian of ``noise_multiplier``.
    """

    def gradients(chunk: UnitChunk) -> Iterator[PerSampleGradients]:
        if chunk.starts is None:
            yield RowGradients(chunk.values, weights, residual, longest)
        else:
            pieces = chunk.split(entries // weights.size)
            yield from (UnitGradients(piece, weights, residual, longest) for piece in pieces)

    sums, extras = private_sum(
        chain.from_iterable(map(gradients, rows.unit_chunks())),
        clip,
        state,
        empty=RowGradients(np.zeros((0, rows.columns)), weights, residual, longest),
        noise_multiplier=noise_multiplier,
        receipt=receipt,
        noise=noise,
    )
    return sums, extras / (state.kappa or 1.0)
