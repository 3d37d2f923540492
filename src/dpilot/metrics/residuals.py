"""How a regression treats each group: its records, its root mean squared error and its mean residual, from one table.

In units where the bounds of the target are [-1, 1], a record of target y and clipped prediction adds to the row of its
group, with r = prediction - y clipped to [-1, 1]::

    (1, r^2 - 1/2, r)     times weights     (1, 2, 1)

rounded towards zero to multiples of 2^-30, so that the sums are exact (``regression.on_grid``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.mechanism import EXACT, Draws, Noise, gaussian_event, release
from dpilot.metrics.interval import Interval, Spread, invert_score, quantile
from dpilot.metrics.metric import Metric, metric
from dpilot.metrics.regression import on_grid
from dpilot.privacy.events import Composed, Event
from dpilot.statistics.rows import real_numbers

SHARE: Final = 0.4
"""Of the squared mu of all figures, for this table: the figures of all records are then noisier by 29 %."""
_WEIGHTS: Final = np.array([1.0, 2.0, 1.0])
_BOUND: Final = math.sqrt(3.0) * (1 + 1e-12)  # so that its own rounding cannot carry a record over it
Sums = tuple[float, ...]  # records, squared residuals, residuals


@dataclass(frozen=True, slots=True)
class Groups:
    """The declared names of the groups, and of the attribute that tells them."""

    names: tuple[str, ...]
    attribute: str

    def of(self, name: str) -> str:
        """What a figure of one group is of."""
        return f"{self.attribute} = {name}"


@dataclass(frozen=True, slots=True)
class Residuals:
    """Released: a row (records, sum of squared residuals, sum of residuals) for each group, ``scale`` their unit."""

    groups: Groups
    table: Floats
    deviation: float
    scale: float


def split_noise(noise_multiplier: float) -> tuple[float, float]:
    """The noise multipliers of the figures of all records and of this table, which cost ``noise_multiplier`` together.

    >>> [round(each, 3) for each in split_noise(1.0)]
    [1.291, 1.581]
    """
    return noise_multiplier / math.sqrt(1 - SHARE), noise_multiplier / math.sqrt(SHARE)


def table_noise(noise_multiplier: float, tables: int) -> tuple[float, float]:
    """The noise multipliers of the figures of all records and of each of ``tables``: together ``noise_multiplier``."""
    whole, grouped = split_noise(noise_multiplier)
    return whole, grouped * math.sqrt(tables)


def both_events(noise_multiplier: float, tables: int = 1) -> Event:
    """What the figures of all records and the tables of so many attributes cost: a Gaussian each."""
    whole, grouped = table_noise(noise_multiplier, tables)
    return Composed(map(gaussian_event, (whole, *[grouped] * tables)))


def noisy_residuals(
    target: Floats,
    predicted: Floats,
    group: Floats,
    groups: Groups,
    *,
    half_range: float,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise = EXACT,
) -> Residuals:
    """The table that may be shown, of targets and predictions that are scaled so that the bounds are [-1, 1].

    Guarantee:
        A record is in one row, whose weighted entries it moves by at most sqrt(3) in L2. One Gaussian. Sums are
        exact to 2^23 records.

    Edge cases:
        A target outside [-1, 1], what is not finite, and a group that is none of the declared, is the null record.
    """
    exact = _table(target, predicted, group, len(groups.names))
    noisy = release(exact, bound=_BOUND, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)
    return _residuals(groups, noisy / _WEIGHTS, _BOUND * noise_multiplier, half_range)


def exact_residuals(
    target: Floats, predicted: Floats, group: Floats, groups: Groups, *, half_range: float
) -> Residuals:
    """The table itself: for records that are declared public, and no others."""
    return _residuals(groups, _table(target, predicted, group, len(groups.names)) / _WEIGHTS, 0.0, half_range)


def residual_scores(found: Residuals) -> tuple[Metric, ...]:
    """Records, root mean squared error and mean residual (prediction minus target) of each group.

    Edge cases:
        no records, by the noisy count an error of half the range, a residual of 0, and intervals of all that can be
        sampling of the error          squared residuals are taken to vary as much as numbers in [0, 1] of their mean
                                       can, which widens the interval

    Example:
        >>> y, group = np.zeros(100), np.arange(100) % 2.0
        >>> sexes = Groups(("f", "m"), "sex")
        >>> found = residual_scores(exact_residuals(y, y + 0.1 * group, group, sexes, half_range=50.0))
        >>> [(each.name, each.of, round(each.value, 3)) for each in found][3:]
        [('group records', 'sex = m', 50.0), ('group RMSE', 'sex = m', 5.0), ('group mean residual', 'sex = m', 5.0)]
    """
    return tuple(
        each
        for name, row in zip(found.groups.names, found.table.tolist(), strict=True)
        for each in _figures(found.groups.of(name), tuple(row), found)
    )


def _figures(of: str, sums: Sums, found: Residuals) -> list[Metric]:
    (count, squares, residual), deviation, scale = sums, found.deviation, found.scale
    error = min(max(squares / count, 0.0), 1.0) if count > 0 else 1.0
    mean = min(max(residual / count, -1.0), 1.0) if count > 0 else 0.0

    def rmse(spread: Spread) -> Interval:
        low, high = _error(sums, error, spread)
        return scale * math.sqrt(low), scale * math.sqrt(high)

    def off(spread: Spread) -> Interval:
        low, high = _residual(sums, mean, spread)
        return scale * low, scale * high

    return [
        metric("group records", of, max(count, 0.0), deviation, partial(_records, count)),
        metric("group RMSE", of, scale * math.sqrt(error), deviation, rmse),
        metric("group mean residual", of, scale * mean, deviation, off),
    ]


def _records(count: float, spread: Spread) -> Interval:
    distance = quantile() * math.sqrt(spread.deviation**2 + (max(count, 0.0) if spread.sampling else 0.0))
    return max(count - distance, 0.0), max(count + distance, 0.0)


def _error(sums: Sums, value: float, spread: Spread) -> Interval:
    """Of the mean squared residual: its sum carries half the noise of the count, as it was centred by 1/2."""
    count, squares, _ = sums
    t = np.linspace(0.0, 1.0, 4001) ** 2
    noise = spread.deviation**2 * (0.25 + (t - 0.5) ** 2)
    drawn = max(count, 0.0) * t * (1 - t) if spread.sampling else 0.0
    return invert_score(value, t, squares - t * count, noise + drawn)


def _residual(sums: Sums, value: float, spread: Spread) -> Interval:
    """Of the mean residual, whose variance the squares tell."""
    count, squares, residual = sums
    t = np.linspace(-1.0, 1.0, 4001)
    noise = spread.deviation**2 * (1 + t**2)
    drawn = np.clip(squares - max(count, 0.0) * t**2, 0.0, max(count, 0.0)) if spread.sampling else 0.0
    return invert_score(value, t, residual - t * count, noise + drawn)


@np.errstate(all="ignore")  # whatever a caller has set: no number of a record may raise or warn
def _table(target: Floats, predicted: Floats, group: Floats, groups: int) -> Floats:
    """The weighted sums of each group."""
    named = {"targets": target, "predictions": predicted, "groups": group}
    y, p, g = (real_numbers(values, what) for what, values in named.items())
    if y.ndim != 1 or y.shape != p.shape or y.shape != g.shape:  # how many there are is protected
        raise InvalidInput(
            "targets, predictions and groups differ in number, or are not flat: expected one of each a record."
        )
    kept = np.isfinite(p) & (np.abs(y) <= 1) & (g >= 0) & (g < groups) & (g == np.floor(g))
    r = np.clip(np.clip(p[kept], -1.0, 1.0) - y[kept], -1.0, 1.0)
    rows = on_grid(np.column_stack([np.ones_like(r), r**2 - 0.5, r]) * _WEIGHTS)
    table = np.zeros((_validate.count(groups=groups), 3))
    np.add.at(table, g[kept].astype(np.int64), rows)
    return table


def _residuals(groups: Groups, table: Floats, deviation: float, half_range: float) -> Residuals:
    half = _validate.positive(half_range=half_range)
    count, centred, residual = table.T
    return Residuals(groups, np.column_stack([count, centred + count / 2, residual]), deviation, half)
