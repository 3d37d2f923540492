"""Which columns, pairs and triples get tables, from what was released: nothing here sees a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.fit.grids.design import Cells
from dpilot.fit.grids.levels import Levels
from dpilot.keys import public_generator

__all__ = ["GridChoice", "choose_grids", "pair_energies", "rank_columns"]

_SCREENED: Final = 0.85  # of the grids go to screened pairs, the rest to all alike
_HEAVY: Final = 0.8  # of triples and waves go to columns of screened pairs


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
