"""Rows of unit length that are never formed: the cells a record is in, times what each cell gives.

A term is a table over a few columns. A record is in one cell of each term, so its row is the sum of the rows of its
cells. Cells are worked out from levels whenever they are needed; what is learnt lies in ``features`` of the cells::

    a column     shapes of its levels (the quantile and eight tents along it), one feature a category
    a pair       cells of several coarse grids, each moved by an offset of its own: a cell of 64 x 64 is in one of each
    a triple     cells of one coarser grid
    waves        cosines and sines of random combinations of all columns

Offsets and frequencies are drawn with a public seed. Within each block every row has the same length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import sparse

from dpilot._arrays import Floats
from dpilot.data.disk import DiskArray
from dpilot.fit.grids.levels import LEVELS, Codes, TableColumn
from dpilot.keys import public_generator

__all__ = [
    "Cells",
    "CodesOnDisk",
    "Design",
    "TableRows",
    "Term",
    "Waves",
    "additive_design",
    "grid_design",
    "screen_cells",
]

_BLOCK: Final = 1 << 13  # records at a time
_TENTS: Final = 8
_BINS: Final = (4, 8, 16)  # of the grids of a pair
_TRIPLE_BINS: Final = (3, 4)
_SCREEN_BINS: Final = 4
_BANDS: Final = (1.0, 2.0)  # scales of frequencies
_CACHED: Final = 1 << 30  # bytes of cells and waves that are kept between steps; beyond, cells are worked out again
_STEPS: Final = 127.0  # of a cosine: kept in one byte, cut off toward 0, so no row grows

Lookup = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A table over ``columns``; the cell of a record is the sum of what ``lookups`` give for its levels."""

    columns: tuple[int, ...]
    lookups: tuple[Lookup, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @classmethod
    def of(cls, columns: Sequence[int], axes: Sequence[NDArray[Any]], sizes: Sequence[int]) -> Term:
        """From the place of each level along its axis, and the lengths of the axes."""
        strides = list(accumulate(sizes[:0:-1], lambda a, b: a * b, initial=1))[::-1]
        lookups = tuple((axis * stride).astype(np.int32) for axis, stride in zip(axes, strides, strict=True))
        return cls(tuple(map(int, columns)), lookups, tuple(map(int, sizes)))


@dataclass(frozen=True)
class Cells:
    """The cells of several terms, numbered one term after another."""

    terms: tuple[Term, ...]

    @cached_property
    def starts(self) -> list[int]:
        return list(accumulate((term.size for term in self.terms), initial=0))

    @property
    def width(self) -> int:
        return self.starts[-1]

    def find(self, codes: Codes) -> Any:
        """The cells of some records (columns, n) as a sparse matrix of ones, one a term in each row."""
        rows, terms = codes.shape[1], len(self.terms)
        index = np.empty((rows, terms), dtype=np.int32)
        for place, (term, start) in enumerate(zip(self.terms, self.starts, strict=False)):
            found = term.lookups[0][codes[term.columns[0]]] + np.int32(start)
            for column, lookup in zip(term.columns[1:], term.lookups[1:], strict=True):
                found += lookup[codes[column]]
            index[:, place] = found
        ones, ends = _one_each(rows, terms)
        return sparse.csr_matrix((ones, index.ravel(), ends), shape=(rows, self.width))


@lru_cache(maxsize=8)
def _one_each(rows: int, terms: int) -> tuple[Floats, NDArray[np.int32]]:
    """Ones, and where each row ends, of a sparse matrix: all blocks share them."""
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(terms)
    return np.ones(rows * terms), ends


@dataclass(frozen=True, slots=True, eq=False)
class Waves:
    """Cosines and sines of ``phases[cell] + ... `` over the cells of single columns: a row's length is 1 at most."""

    phases: Floats  # (cells of the additive terms, waves)

    @property
    def width(self) -> int:
        return 2 * int(self.phases.shape[1])

    def find(self, cells: Any) -> NDArray[np.int8]:
        """In steps of 1 / 127, cut off toward 0."""
        angles = cells @ self.phases
        return (_STEPS * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)).astype(np.int8)

    def scale(self, share: float) -> float:
        """What a step is worth, so that a row of all waves is sqrt(share) long."""
        return math.sqrt(share / (self.phases.shape[1])) / _STEPS


@dataclass(frozen=True, eq=False)
class Design:
    """What a record's row is made of: ``features`` of its cells, waves, and texts and vectors as they are.

    ``additive`` is how many terms, those of single columns, come first. ``wave_share`` and ``dense_share`` are those of
    the squared length.

    Guarantee:
        A row is a function of its own record and of released or declared numbers, and no longer than 1 (+ 1e-13).
    """

    cells: Cells
    features: Any  # sparse (cells, features)
    additive: int
    waves: Waves | None = None
    wave_share: float = 0.0
    dense_share: float = 0.0
    dense_width: int = 0

    @property
    def width(self) -> int:
        """The number of features."""
        return int(self.features.shape[1]) + self.beside

    @property
    def beside(self) -> int:
        """The number of features that are not of cells: waves, then texts and vectors."""
        return (0 if self.waves is None else self.waves.width) + self.dense_width

    @cached_property
    def transposed(self) -> Any:
        return self.features.T.tocsr()

    def tables(self, weights: Floats) -> Floats:
        """What each cell adds to the outputs (cells, outputs)."""
        return np.asarray(self.features @ weights[: self.features.shape[1]])

    def gradient(self, cells: Floats, beside: Floats) -> Floats:
        """That of the weights, from the sums of cells and of the other features."""
        return np.concatenate([self.transposed @ cells, beside])


@dataclass(frozen=True, slots=True, eq=False)
class CodesOnDisk:
    """Levels of records that lie on disk, (records, columns), as ``codes[:, rows]`` of an array (columns, records)."""

    rows: DiskArray

    def __getitem__(self, place: tuple[slice, slice]) -> Codes:
        return self.rows[place[1]].T


@dataclass(frozen=True, eq=False)
class TableRows:
    """The records of a fit as levels, with what texts and vectors they have. Sensitive.

    ``weights``: what a row adds of its unit, 1 where a unit is a record; 0 for null rows, wherever they are. ``block``
    records are worked on at a time; cells and waves are kept where they are no more than ``cached`` bytes.
    """

    codes: Codes | CodesOnDisk
    weights: Floats | DiskArray
    dense: NDArray[np.float32] | DiskArray | None = None
    block: int = _BLOCK
    cached: int = _CACHED

    def blocks(self, design: Design) -> Iterator[tuple[slice, Any, Floats]]:
        """Some records at a time: their cells, and their other features, filled up to one number of rows."""
        known = self._known(design)
        for place, start in enumerate(range(0, max(len(self.weights), 1), self.block)):
            rows = slice(start, start + self.block)
            cells, waves = self._find(design, rows) if known is None else known[place]
            beside = np.zeros((self.block, design.beside))
            if waves is not None and design.waves is not None:
                np.multiply(waves, design.waves.scale(design.wave_share), out=beside[: len(waves), : waves.shape[1]])
            if self.dense is not None and design.dense_width:
                some = self.dense[rows]
                beside[: len(some), -design.dense_width :] = math.sqrt(design.dense_share) * _at_most_one(some)
            yield rows, cells, beside

    def _find(self, design: Design, rows: slice) -> tuple[Any, NDArray[np.int8] | None]:
        cells = design.cells.find(self.codes[:, rows])
        if design.waves is None:
            return cells, None
        single = Cells(design.cells.terms[: design.additive]).find(self.codes[:, rows])
        return cells, design.waves.find(single)

    def _known(self, design: Design) -> list[Any] | None:
        """Cells and waves of all records, where they are few."""
        if self._kept.get("design") is design:
            return list(self._kept["found"])
        self._kept.clear()
        each = 4 * len(design.cells.terms) + (0 if design.waves is None else design.waves.width)
        if each * len(self.weights) > self.cached or isinstance(self.weights, DiskArray):
            return None
        starts = range(0, max(len(self.weights), 1), self.block)
        found = [self._find(design, slice(start, start + self.block)) for start in starts]
        self._kept.update(design=design, found=found)
        return found

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}


def _at_most_one(rows: NDArray[np.float32]) -> Floats:
    values = np.nan_to_num(rows.astype(np.float64))
    return np.asarray(values / np.maximum(np.sqrt(np.einsum("ij,ij->i", values, values)), 1.0)[:, None])


def additive_design(columns: Sequence[TableColumn], dense: int, dense_width: int) -> Design:
    """One table a column, and ``dense`` texts and vectors, each of which weighs as much as all other columns."""
    share = 1 / (1 + dense)
    terms = tuple(
        Term.of((place,), (np.arange(column.levels),), (column.levels,)) for place, column in enumerate(columns)
    )
    shapes = [_shapes(column) * math.sqrt(share / len(columns)) for column in columns]
    made = sparse.block_diag(shapes, format="csr") if shapes else sparse.csr_matrix((0, 0))
    return Design(Cells(terms), made, len(terms), dense_share=1 - share, dense_width=dense_width)


def _shapes(column: TableColumn) -> Any:
    """Features (levels, k) of a column, each row of length 1."""
    if column.number is None:
        return sparse.identity(column.levels, format="csr")
    middle = (np.arange(LEVELS) + 0.5) / LEVELS
    tents = np.clip(1 - np.abs(middle[:, None] - np.linspace(0, 1, _TENTS)) * (_TENTS - 1), 0.0, 1.0)
    known = np.column_stack([2 * middle - 1, tents])
    known /= np.sqrt(np.square(known).sum(axis=1, keepdims=True))
    return sparse.block_diag([known, np.ones((1, 1))], format="csr")


def _axis(column: TableColumn, bins: int, rng: Generator, offset: float | None = None) -> tuple[Lookup, int]:
    """The place of each level of a column along an axis of about ``bins``: moved by an offset, or hashed."""
    if column.number is None:
        size = min(column.levels, bins + 1)
        hashed = np.arange(size) if size == column.levels else rng.integers(0, size, column.levels)
        return hashed.astype(np.int32), size
    moved = rng.random() if offset is None else offset
    found = np.floor((np.arange(LEVELS) + 0.5) / LEVELS * bins + moved).astype(np.int32)
    return np.append(found, found.max() + 1).astype(np.int32), int(found.max()) + 2


def screen_cells(columns: Sequence[TableColumn], pairs: Sequence[tuple[int, int]], seed: int = 0) -> Cells:
    """4 x 4 cells of each pair; of categories that are more they are hashed."""
    rng = public_generator(seed, 1)
    axes = [
        _axis(column, _SCREEN_BINS, rng, 0.0) if column.number is not None else _axis(column, _SCREEN_BINS - 1, rng)
        for column in columns
    ]
    return Cells(tuple(Term.of(pair, [axes[c][0] for c in pair], [axes[c][1] for c in pair]) for pair in pairs))


def grid_design(
    columns: Sequence[TableColumn],
    base: Design,
    pairs: Sequence[tuple[int, int]],
    triples: Sequence[tuple[int, ...]],
    column_weights: Floats,
    waves: int,
    shares: tuple[float, float, float, float],
    seed: int = 0,
) -> Design:
    """``base``, grids of ``pairs`` (one each time a pair is named) and ``triples``, and waves; ``shares`` of each."""
    rng = public_generator(seed, 2)
    used = [shares[0], shares[1] * bool(pairs), shares[2] * bool(triples), shares[3] * bool(waves)]
    first, second, third, fourth = (share / sum(used) for share in used)
    terms, blocks = list(base.cells.terms), [base.features * math.sqrt(first)]
    by_pair: dict[tuple[int, int], list[int]] = {}
    for place, pair in enumerate(pairs):
        by_pair.setdefault(pair, []).append(_BINS[place % len(_BINS)])
    for pair, bins in by_pair.items():
        term, features = _pair_term(columns, pair, bins, rng)
        terms.append(term)
        blocks.append(features * math.sqrt(second / len(pairs)))
    for place, triple in enumerate(triples):
        axes = [_axis(columns[c], _TRIPLE_BINS[place % len(_TRIPLE_BINS)], rng) for c in triple]
        terms.append(Term.of(triple, [axis for axis, _ in axes], [size for _, size in axes]))
        blocks.append(sparse.identity(terms[-1].size, format="csr") * math.sqrt(third / len(triples)))
    made = Waves(_phases(columns, column_weights, waves, rng)) if waves else None
    return Design(
        Cells(tuple(terms)),
        sparse.block_diag(blocks, format="csr"),
        base.additive,
        made,
        fourth,
        base.dense_share * first,
        base.dense_width,
    )


def _pair_term(
    columns: Sequence[TableColumn], pair: tuple[int, int], bins: Sequence[int], rng: Generator
) -> tuple[Term, Any]:
    """A fine table of two columns, and in which cell of each of its grids a fine cell is.

    Categories beyond 64 are hashed first: the fine table stays small.
    """
    fine, sizes = [], []
    for c in pair:
        column = columns[c]
        few = column.number is not None or column.levels <= LEVELS
        axis, size = (np.arange(column.levels), column.levels) if few else _axis(column, LEVELS - 1, rng)
        fine.append(axis.astype(np.int32))
        sizes.append(size)
    blocks = []
    for each in bins:
        coarse = []
        for c, axis, size in zip(pair, fine, sizes, strict=True):
            hashed = len(axis) != size or columns[c].levels != size
            like = TableColumn("hashed", hot=tuple(range(size - 1))) if hashed else columns[c]
            coarse.append(_axis(like, each, rng))
        (rows, height), (cols, width) = coarse
        cell = (rows[:, None].astype(np.int64) * width + cols[None, :]).ravel()
        count = len(cell)
        blocks.append(sparse.csr_matrix((np.ones(count), cell, np.arange(count + 1)), shape=(count, height * width)))
    return Term.of(pair, fine, sizes), sparse.hstack(blocks, format="csr")


def _phases(columns: Sequence[TableColumn], weights: Floats, waves: int, rng: Generator) -> Floats:
    """Of each cell of the additive terms, for each wave: numbers and categories scaled to about unit variance."""
    scale = np.sqrt(np.minimum(weights * len(weights), 4.0))
    scale /= math.sqrt(float(np.mean(scale**2)))
    bands = np.repeat(_BANDS, -(-waves // len(_BANDS)))[:waves] / math.sqrt(len(columns))
    pieces = []
    for column, each in zip(columns, scale, strict=True):
        if column.number is None:
            centred = np.vstack(
                [np.eye(column.levels - 1) - 1 / max(column.levels - 1, 1), np.zeros(column.levels - 1)]
            )
        else:
            middle = (np.arange(LEVELS) + 0.5) / LEVELS
            centred = np.append(math.sqrt(12) * (middle - 0.5), 0.0)[:, None]
        pieces.append(centred @ rng.normal(size=(centred.shape[1], waves)) * (each * bands))
    phases = np.vstack(pieces)
    phases[: columns[0].levels] += rng.uniform(0, 2 * math.pi, waves)  # one offset a wave, with the first column
    return phases
