"""What is released of the records: noisy marginals, residuals of pairs in coarse cells, and gradients.

Each is a Gaussian on all records of the training part; docs/proofs/tables.md has the sensitivity of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.data.disk import DiskArray
from dpilot.fit.grids.design import Cells, Design, TableRows
from dpilot.fit.grids.levels import Marginal, TableColumn, cell_edges
from dpilot.linear.row_gradients import HistogramClip, clip
from dpilot.mechanism import Draws, Noise, release
from dpilot.private_sum import Clip, Summand, private_sum

__all__ = [
    "MARGINALS", "MARGINALS_SHARE", "MOST_WORSE", "THRESHOLD", "ClassResidual", "GridWeights", "NumberResidual",
    "Residual", "Steps", "contrasts", "descend", "release_comparison", "release_marginals", "release_pairs",
]  # fmt: skip

MARGINALS: Final = "marginals"
MARGINALS_SHARE: Final = 0.06
"""Of the squared mu, for noisy marginals."""
THRESHOLD: Final = 0.5
"""Of a residual, so of a gradient, as rows are of length 1: that of linear heads."""
_ROWS: Final = 1 << 16  # counted at a time
_MOMENTUM: Final = 0.9
MOST_WORSE: Final = 0.25
"""That the loss of a record counts as changed between two models."""

Residual = Callable[[slice, Floats], Floats]
"""Outputs of some records -> how far each pulls them (n, outputs): the derivative of its loss."""


def release_marginals(
    columns: Sequence[tuple[TableColumn, NDArray[Any] | DiskArray]],
    weights: Floats | DiskArray,
    *,
    size: float,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise,
) -> tuple[Marginal, ...]:
    """Noisy histograms of numbers, each in an array of encoded rows, in one release.

    Guarantee:
        A record, or a unit with all its rows (``weights`` of which add up to 1 at most), adds no more than 1 to each
        histogram, so all m of them move by sqrt(m) at most in L2: one Gaussian of ``noise_multiplier``.
    """
    counts = _count(columns, weights)
    noisy = release(
        np.concatenate(counts),
        bound=math.sqrt(len(counts)),
        noise_multiplier=noise_multiplier,
        receipt=receipt,
        noise=noise,
    )
    ends = np.cumsum([len(each) for each in counts])[:-1]
    return tuple(Marginal.of(each, size) for each in np.split(noisy, ends))


def _count(
    columns: Sequence[tuple[TableColumn, NDArray[Any] | DiskArray]], weights: Floats | DiskArray
) -> list[Floats]:
    """How much of the records is in each cell of each number, and missing, by their weights; rows are read once."""
    arrays = {id(rows): rows for _, rows in columns}
    edges = [cell_edges(column) for column, _ in columns]
    found = [np.zeros(len(each)) for each in edges]
    for start in range(0, len(weights), _ROWS):
        place = slice(start, start + _ROWS)
        own, blocks = weights[place], {name: np.asarray(rows[place]) for name, rows in arrays.items()}
        for number, (column, rows) in enumerate(columns):
            cells = _cells(column, blocks[id(rows)], edges[number])
            every = np.append(np.arange(len(edges[number])), cells)
            # as if all were added up in one go
            found[number] = np.bincount(every, np.append(found[number], own)).astype(np.float64)
    return found


def _cells(column: TableColumn, rows: NDArray[Any], edges: Floats) -> NDArray[np.int64]:
    """The cell of each record; the last is that of what is missing."""
    values = np.nan_to_num(rows[:, column.number or 0].astype(np.float64))
    cells = np.searchsorted(edges[1:-1], values, side="right")
    return cells if column.missing is None else np.where(rows[:, column.missing] == 1, len(edges) - 1, cells)


def contrasts(classes: int) -> Floats:
    """An orthonormal basis (classes, classes - 1) of what can differ between classes.

    Residuals p - y add up to 0 over the classes, so their lengths are the same in it, and no noise is learnt that would
    move all classes alike.

    >>> contrasts(2).round(3).ravel().tolist()
    [-0.707, 0.707]
    """
    rows = np.zeros((classes - 1, classes))
    for k in range(1, classes):  # the first k classes against the next
        rows[k - 1, :k], rows[k - 1, k] = -1.0, k
    return np.asarray((rows / np.sqrt(np.square(rows).sum(axis=1, keepdims=True))).T)


@dataclass(frozen=True, slots=True, eq=False)
class ClassResidual:
    """(p - y) in contrasts, times the weight of the class. Sensitive: it holds the labels."""

    labels: NDArray[np.int64] | DiskArray
    classes: int
    class_weights: tuple[float, ...] | None = None

    def __call__(self, rows: slice, outputs: Floats) -> Floats:
        basis = contrasts(self.classes)
        labels, scores = self.labels[rows], outputs @ basis.T
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1.0
        if self.class_weights is not None:
            chances *= np.asarray(self.class_weights)[labels][:, None]
        return np.asarray(chances @ basis)


@dataclass(frozen=True, slots=True, eq=False)
class NumberResidual:
    """Output less target, in units of the target's spread: clipped, the derivative of Huber's loss. Sensitive."""

    target: Floats | DiskArray

    def __call__(self, rows: slice, outputs: Floats) -> Floats:
        return np.asarray(outputs - self.target[rows][:, None])


@dataclass(frozen=True, slots=True)
class Steps:
    """The public recipe of a descent: full batch, momentum, one Gaussian a step; (sqrt(steps) / multiplier)-GDP."""

    lr: float
    steps: int
    noise_multiplier: float


@dataclass(frozen=True, slots=True, eq=False)
class GridWeights:
    """Released weights: the last, and the mean over all steps, which lags behind and holds less noise."""

    last: Floats
    mean: Floats


def descend(
    rows: TableRows,
    design: Design,
    residual: Residual,
    outputs: int,
    steps: Steps,
    *,
    start: Floats | None = None,
    start_beside: Floats | None = None,
    size: float,
    receipt: Draws,
    noise: Noise,
) -> GridWeights:
    """Weights (features, outputs), started at zero on top of what the tables ``start`` already say.

    ::

        g = (sum_i w_i clip(x_i r_i^T, C) + N(0, (sigma C)^2 I)) / size
        v = momentum v + g          w = w - lr v          and at last once more along momentum v, for free

    The mean over the steps is post-processing: of a walk that goes straight on it is half as far, with a third of the
    variance.

    Guarantee:
        Rows are no longer than 1, so clipping residuals at C clips gradients, and the weights of a unit's rows add up
        to 1 at most. Each step is one Gaussian of ``steps.noise_multiplier``.
    """
    weights = np.zeros((design.width, outputs))
    velocity, total = np.zeros_like(weights), np.zeros_like(weights)
    state = HistogramClip(THRESHOLD)
    for _ in range(steps.steps):
        gradients = _GridGradients(rows, design, residual, weights, start, start_beside)
        noisy, _ = private_sum(
            [gradients],
            clip,
            state,
            empty=gradients,
            noise_multiplier=steps.noise_multiplier,
            receipt=receipt,
            noise=noise,
        )
        velocity = _MOMENTUM * velocity + noisy * (THRESHOLD / size)
        weights = weights - steps.lr * velocity
        total += weights
    return GridWeights(weights - steps.lr * _MOMENTUM * velocity, total / steps.steps)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _GridGradients(Summand):
    """All gradients of a step as one piece: sums of cells are carried over to features once, at the end."""

    rows: TableRows
    design: Design
    residual: Residual
    weights: Floats
    start: Floats | None
    start_beside: Floats | None

    def clip_and_sum(self, clip: Clip, state: Any) -> tuple[Floats, Floats]:
        tables = self.design.tables(self.weights)
        tables = tables if self.start is None else tables + self.start
        linear = self.weights[self.design.features.shape[1] :]
        linear = linear if self.start_beside is None else linear + self.start_beside
        cells_sum, beside_sum = np.zeros_like(tables), np.zeros_like(linear)
        for where, cells, beside in self.rows.blocks(self.design):
            pull = self.residual(where, cells @ tables + (beside @ linear)[: cells.shape[0]])
            pull = weigh(pull, self.rows.weights[where], clip, state)
            cells_sum += cells.T @ pull
            padded = np.zeros((len(beside), pull.shape[1]))
            padded[: len(pull)] = pull
            beside_sum += beside.T @ padded
        return self.design.gradient(cells_sum, beside_sum), np.zeros(0)


def weigh(pull: Floats, shares: Floats, clip: Clip, state: Any) -> Floats:
    """Clipped residuals over the threshold, each times its row's share of its unit; null rows are zeros."""
    norms = np.sqrt(np.einsum("ij,ij->i", pull, pull))
    weights, _ = clip(norms, state)
    counted = (weights * shares)[:, None]
    return np.where(counted > 0, pull * counted, 0.0)  # 0 times what is not finite is no number


def release_pairs(
    rows: TableRows,
    cells: Cells,
    residual: Residual,
    design: Design,
    start: Floats,
    start_beside: Floats | None,
    *,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise,
) -> Floats:
    """Noisy sums (cells, outputs) of the residuals of a model, clipped, in the cells of all pairs; over the threshold.

    Guarantee:
        A record adds a vector no longer than 1 to one cell of each pair: sqrt(pairs) in all. One Gaussian.
    """
    outputs = start.shape[1]
    sums = np.zeros((cells.width, outputs))
    state = HistogramClip(THRESHOLD)
    for where, known, beside in rows.blocks(design):
        scores = known @ start
        if start_beside is not None:
            scores = scores + (beside @ start_beside)[: known.shape[0]]
        pull = weigh(residual(where, scores), rows.weights[where], clip, state)
        sums += cells.find(rows.codes[:, where]).T @ pull
    return release(
        sums,
        bound=math.sqrt(len(cells.terms)),
        noise_multiplier=noise_multiplier,
        receipt=receipt,
        noise=noise,
    )


def release_comparison(
    rows: TableRows,
    residual: Residual,
    design: Design,
    models: Sequence[tuple[Floats, Floats]],
    *,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise,
) -> Floats:
    """Noisy sums over the records of how much larger the loss of each model is than that of the first.

    A model is its tables and its weights of what is beside them. The loss is half the squared length of the residual
    (for classes half a Brier score); differences are clipped at 1/4.

    Guarantee:
        A record adds one number in [-1/4, 1/4] for each model after the first: sqrt(models - 1) / 4 in L2. One
        Gaussian.
    """
    sums = np.zeros(len(models) - 1)
    for where, cells, beside in rows.blocks(design):
        shares = rows.weights[where][:, None]
        pulls = [residual(where, cells @ tables + (beside @ own)[: cells.shape[0]]) for tables, own in models]
        losses = np.column_stack([np.square(pull).sum(axis=1) / 2 for pull in pulls])
        worse = np.clip(losses[:, 1:] - losses[:, :1], -MOST_WORSE, MOST_WORSE)
        sums += np.where((shares > 0) & np.isfinite(worse), worse * shares, 0.0).sum(axis=0) / MOST_WORSE
    noisy = release(
        sums, bound=math.sqrt(len(sums)), noise_multiplier=noise_multiplier, receipt=receipt, noise=noise
    )  # fmt: skip
    return np.asarray(noisy * MOST_WORSE)
