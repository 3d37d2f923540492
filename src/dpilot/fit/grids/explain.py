"""What drives a fitted model of grids: shapes of columns, heat maps of pairs, importance; all of it post-processing.

Everything here is computed from released tables and marginals, so it costs nothing. Noise bands are two standard
deviations of the privacy noise in the tables, as if no gradient had pulled it back: they are rather too wide.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.fit.grids.levels import LEVELS
from dpilot.fit.grids.model import GridPredictor

__all__ = ["Effect", "effects", "effects_svg"]

_BAND: Final = 2.0
_TILE: Final = 150
_SIDE: Final = 16  # cells of a drawn heat map along a number


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """What one column, or a pair or triple of them, adds to the outputs.

    ``values`` (levels of each column, outputs), centred; outputs are contrasts of the classes, for two classes the log
    odds of the second over sqrt(2), or for a number its own unit. ``importance``: the standard deviation of the effect
    over the records, as far as released marginals tell (categories count alike). ``noise``: what noise alone gives.
    """

    names: tuple[str, ...]
    values: Floats
    importance: float
    noise: float

    @property
    def stands_out(self) -> bool:
        """Whether it is more than noise alone would be."""
        return self.importance > _BAND * self.noise


def effects(model: GridPredictor) -> tuple[Effect, ...]:
    """Every term of the model, the most important first."""
    found = [_effect(model, place) for place in range(len(model.design.cells.terms))]
    return tuple(sorted(found, key=lambda each: -each.importance))


def _effect(model: GridPredictor, place: int) -> Effect:
    term, start = model.design.cells.terms[place], model.design.cells.starts[place]
    scale = model.spread if not model.classes else 1.0
    table = scale * model.tables[start : start + term.size].reshape(*term.shape, -1)
    noise = scale * model.noise[start : start + term.size].reshape(term.shape)
    shares = np.ones(())
    for column, lookup, stride in zip(term.columns, term.lookups, _strides(term.shape), strict=True):
        axis = np.bincount(lookup // stride, model.levels.shares(column), minlength=term.shape[len(shares.shape)])
        shares = shares[..., None] * axis
    shares = shares / max(float(shares.sum()), 1e-12)
    axes = tuple(range(len(term.shape)))
    centred = table - (table * shares[..., None]).sum(axis=axes)
    spread = float(np.sqrt((np.square(centred).sum(axis=-1) * shares).sum()))
    alone = float(np.sqrt((np.square(noise) * shares).sum() * table.shape[-1]))
    return Effect(tuple(model.levels.columns[c].name for c in term.columns), centred, spread, alone)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [int(np.prod(shape[place + 1 :])) for place in range(len(shape))]


def effects_svg(model: GridPredictor, *, columns: int = 8, pairs: int = 4) -> str:
    """The most important shapes, and heat maps of the most important pairs, as one picture.

    Of several outputs it draws the first.
    """
    found = effects(model)
    single = [each for each in found if len(each.names) == 1][:columns]
    double = [each for each in found if len(each.names) == 2][:pairs]
    tiles = [*map(_draw_shape, single), *map(_draw_map, double)]
    across = 4
    body = "".join(
        f'<g transform="translate({place % across * (_TILE + 20)},{place // across * (_TILE + 40)})">{tile}</g>'
        for place, tile in enumerate(tiles)
    )
    height = -(-len(tiles) // across) * (_TILE + 40)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across * (_TILE + 20)}" height="{height}" '
        f'font-family="sans-serif" font-size="10" role="img" aria-label="Effects of columns and pairs">{body}</svg>'
    )


def _title(effect: Effect) -> str:
    said = f"{' x '.join(effect.names)}: {effect.importance:.2g} ± {_BAND * effect.noise:.2g}"
    return f'<text x="2" y="12">{escape(said)}</text>'


def _draw_shape(effect: Effect) -> str:
    values = effect.values[:-1, 0]  # without the level of what is missing
    most = max(float(np.abs(values).max(initial=0.0)), 1e-9)
    heights = 20 + (_TILE - 20) * (0.5 - 0.5 * values / most)
    across = np.linspace(5, _TILE - 5, max(len(values), 2))[: len(values)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, heights, strict=True))
    zero = 20 + (_TILE - 20) / 2
    width = min(_BAND * effect.noise / most, 1.0) * (_TILE - 20)
    return (
        f'{_title(effect)}<rect x="0" y="{zero - width / 2:.1f}" width="{_TILE}" height="{width:.1f}" fill="#eee"/>'
        f'<line x1="0" x2="{_TILE}" y1="{zero}" y2="{zero}" stroke="#999"/>'
        f'<polyline points="{points}" fill="none" stroke="#1f4e79" stroke-width="1.5"/>'
    )


def _draw_map(effect: Effect) -> str:
    table = _coarse(_coarse(effect.values[:-1, :-1, 0]).T).T
    most = max(float(np.abs(table).max(initial=0.0)), 1e-9)
    high, wide = (_TILE - 20) / table.shape[0], _TILE / table.shape[1]
    tiles = "".join(
        f'<rect x="{column * wide:.1f}" y="{20 + row * high:.1f}" width="{wide + 0.1:.1f}" height="{high + 0.1:.1f}" '
        f'fill="{_colour(value / most)}"/>'
        for (row, column), value in np.ndenumerate(table)
    )
    return _title(effect) + tiles


def _coarse(table: Floats) -> Floats:
    """64 levels of a number as 16."""
    if len(table) != LEVELS:
        return table
    return np.asarray(table.reshape(_SIDE, LEVELS // _SIDE, -1).mean(axis=1))


def _colour(share: float) -> str:
    """Blue below zero, red above, white between."""
    fade = round(255 * (1 - min(abs(share), 1.0)))
    return f"rgb(255,{fade},{fade})" if share > 0 else f"rgb({fade},{fade},255)"
