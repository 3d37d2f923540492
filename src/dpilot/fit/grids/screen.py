"""Which columns, pairs and triples get tables, from what was released: nothing here sees a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.fit.grids.design import Cells
from dpilot.fit.grids.levels import Levels
from dpilot.keys import public_generator

__all__ = ["GridChoice", "choose_grids", "choose_walk", "count_screened", "pair_energies", "rank_columns"]

_SCREENED: Final = 0.85  # of the grids go to screened pairs, the rest to all alike
_HEAVY: Final = 0.8  # of triples and waves go to columns of screened pairs
_MOST_COLUMNS: Final = 30  # whose pairs are screened
_FEWEST_COLUMNS: Final = 4
_RECORDS_PER_NOISE: Final = 45.0  # that a screen needs for each unit of its noise
_NO_BETTER: Final = 0.001  # of the mean loss: what a longer walk must win at least
_OPTIMISM: Final = 0.006  # of it, times mu, is what a longer walk wins on the records that it was learnt from alone


@dataclass(frozen=True, slots=True, eq=False)
class GridChoice:
    """Pairs, one entry for each grid; triples; and how much each column takes part."""

    pairs: tuple[tuple[int, int], ...]
    triples: tuple[tuple[int, ...], ...]
    columns: Floats


def rank_columns(levels: Levels, tables: Floats) -> list[int]:
    """All columns, those first whose own table moves the outputs most over the records, as far as marginals tell."""
    spreads, start = [], 0
    for place, column in enumerate(levels.columns):
        values, shares = tables[start : start + column.levels], levels.shares(place)
        centred = values - shares @ values
        spreads.append(float(shares @ np.square(centred).sum(axis=1)))
        start += column.levels
    return list(map(int, np.argsort(-np.asarray(spreads), kind="stable")))


def count_screened(noise_multiplier: float, size: float) -> int:
    """How many columns are screened: more pairs are noisier, as all of them share one release.

    Noise of sqrt(pairs) * ``noise_multiplier`` in each cell is to be at most 1/45 of the records; 4 to 30 columns.

    >>> count_screened(50.0, 3_000.0), count_screened(13.0, 4_000.0), count_screened(1.0, 1e5)
    (4, 10, 30)
    """
    pairs = (size / (_RECORDS_PER_NOISE * noise_multiplier)) ** 2
    return min(max(int((1 + math.sqrt(1 + 8 * pairs)) / 2), _FEWEST_COLUMNS), _MOST_COLUMNS)


def choose_walk(worse: Floats, size: float, mu: float) -> int:
    """The place of the model to take, of several that went ever farther: ``worse`` is the sum of what each later one
    loses more than the first.

    The records that judge are those it was learnt from. On labels without meaning a step farther won .2 to .5 of 100 of
    them at mu 0.7 and .3 to 1.3 at 1.7 (benchmarks/tables), so by so much it has to be better.

    >>> choose_walk(np.array([-3.0, -5.0]), 1_000.0, 0.2), choose_walk(np.array([-3.0, -9.0]), 1_000.0, 0.2)
    (1, 2)
    """
    expected = _NO_BETTER + _OPTIMISM * mu
    losses = np.append(0.0, worse / size) + expected * np.arange(len(worse) + 1)
    return int(losses.argmin())


def pair_energies(cells: Cells, sums: Floats, noise: float) -> Floats:
    """Squared length of what neither column of a pair explains of its sums, less that of the noise; at least 0.

    ``noise`` is the standard deviation in each entry of ``sums`` (cells, outputs).
    """
    found = []
    for term, start in zip(cells.terms, cells.starts, strict=False):
        height, width = term.shape
        table = sums[start : start + term.size].reshape(height, width, -1)
        table = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean(axis=(0, 1))
        free = (height - 1) * (width - 1) * table.shape[2]
        found.append(max(float(np.square(table).sum()) - free * noise**2, 0.0))
    return np.asarray(found)


def choose_grids(
    pairs: Sequence[tuple[int, int]], energy: Floats, columns: int, grids: int, triples: int, most: int, seed: int = 0
) -> GridChoice:
    """Grids by the root of each pair's energy, the first ``most`` pairs alone; triples of the columns of those."""
    rng = public_generator(seed, 3)
    roots = np.sqrt(energy)
    roots[np.argsort(-roots, kind="stable")[most:]] = 0.0
    even = np.full(len(pairs), 1 / len(pairs))
    shares = _SCREENED * roots / roots.sum() + (1 - _SCREENED) * even if roots.sum() > 0 else even
    ends = np.cumsum(shares)
    picked = np.searchsorted(ends / ends[-1], (np.arange(grids) + rng.random()) / grids).clip(0, len(pairs) - 1)
    heavy = np.zeros(columns)
    np.add.at(heavy, np.asarray(pairs).ravel(), np.repeat(shares, 2))
    heavy = _HEAVY * heavy / heavy.sum() + (1 - _HEAVY) / columns
    several = [rng.choice(columns, 3, replace=False, p=heavy) for _ in range(triples if columns > 2 else 0)]
    return GridChoice(
        tuple(tuple(pairs[place]) for place in picked.tolist()),
        tuple(tuple(map(int, np.sort(each))) for each in several),
        heavy,
    )
