"""Private standardisation: where each column lies and how wide it is, bought at the level the size can pay for.

| level | what is bought | relative noise it needs |
|---|---|---|
| quartiles | both quartiles of every column, in two grids; where they coincide, the spread about them | 5 % of n |
| mean | for the target alone: its median, octaves about that, a mean within those | 12 % of n |
| median, bounded mean | for a target that is all there is to find: one number | 12 % of n, or bounds |
| magnitudes | one histogram of octaves of \\|x\\| for every column: widths, no centres | 12 % of n |
| pooled | one histogram for all features together, one for the target | almost none |

The level follows from declared numbers (size, columns, budget), so choosing it costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.hardened import grid_size
from dpilot.linear.problem import SIZE_SHARE, LinearProblem, gaussian_events, multiplier
from dpilot.linear.rows import Rows, total
from dpilot.mechanism import Draws, Noise, release
from dpilot.numerics.grid import cut
from dpilot.privacy.events import Composed, Event, Gaussian
from dpilot.statistics import log_grid, quantile, quantile_event

__all__ = ["Scaling", "StandardisePlan", "buy_scaling", "plan_centre", "plan_scaling", "plan_target"]

WINSOR: Final = 10.0  # feature values further out than this many widths are pulled in
REACH: Final = 10.0  # widths from the centre that predictions may go
FAR: Final = 1e3  # widths beyond which a target is pulled in: the arithmetic stays finite, clipping does the rest

_COARSE: Final = log_grid(2.0**-40, 2.0**40, per_octave=4, signed=True)
_FINE: Final = np.linspace(0.0, 1.0, 257)[1:]
_ROUNDS: Final = 10  # of a search in the coarse grid
_QUARTILES: Final = (0.25, 0.75)
_OCTAVES: Final = 60  # of the histogram, on either side of 1
_CERTAIN: Final = 3.5  # standard deviations by which octaves must stand out of the noise to be believed
_TARGET_CERTAIN: Final = 4.5  # a false alarm loses a feature; for the target it loses the fit
_NOTHING: Final = 2.0**-_OCTAVES  # the width of a target of which nothing is known: its centre is predicted
_SHAVE: Final = 1 - 1e-12
_IQR: Final = 1.349  # interquartile range of a unit normal
_SHARES: Final = (0.05, 0.08, 0.12, 0.16, 0.2, 0.25)
_CENTRES: Final = log_grid(2.0**-40, 2.0**40, per_octave=64, signed=True)  # a finer grid costs a round an octave
_LOST: Final = 0.12  # of the records, as noise of a search: all of them on one side are then told by 4 deviations
_PARTS: Final = {
    "quartiles": (0.4, 0.25, 0.35),  # coarse grid, fine grid, spread
    "mean": (0.4, 0.25, 0.35),  # median, how far from it, mean within that
}
_GRIDS: Final = {"quartiles": (_COARSE, _FINE), "mean": (_CENTRES,), "median": (_CENTRES,)}  # of the first multipliers
_MEAN_REACH: Final = 2.5  # widths at which the target is pulled in for its mean


@dataclass(frozen=True, slots=True)
class Scaling:
    """Released or declared: one centre, width and interval for each column, the target's last."""

    center: Floats
    scale: Floats
    lower: Floats
    upper: Floats

    @property
    def target_range(self) -> tuple[float, float]:
        """Where predictions may lie: inside the target's interval, and not far from its centre."""
        center, reach = self.center[-1], REACH * self.scale[-1]
        low, high = np.clip([center - reach, center + reach], self.lower[-1], self.upper[-1]).tolist()
        return low, high

    def apply(self, rows: Floats) -> Floats:
        """Pull values into their intervals, then measure them from the centre in widths."""
        return np.asarray((np.clip(rows, self.lower, self.upper) - self.center) / self.scale)


@dataclass(frozen=True, slots=True)
class StandardisePlan:
    """What to buy for which columns, and with how much noise; ``share`` is its part of the squared mu."""

    level: str
    share: float
    multipliers: tuple[float, ...]

    @property
    def event(self) -> Event:
        if self.level not in _GRIDS:
            return gaussian_events(self.multipliers)
        grids = _GRIDS[self.level]
        searches = [quantile_event(sigma, grid=grid) for sigma, grid in zip(self.multipliers, grids, strict=False)]
        return Composed([*searches, *map(Gaussian, self.multipliers[len(grids) :])])


def plan_scaling(problem: LinearProblem, columns: int, *, whole: bool = False) -> StandardisePlan | None:
    """The finest level that ``columns`` bought columns can have at this size and budget; None if all are declared.

    It takes the smallest share that pays for the level, or all that a size to buy leaves (``whole``).
    """
    plan = _affordable(problem, columns, (1.0,) if whole else _SHARES) if columns else None
    return _plan_level(problem, plan.level, 1 - SIZE_SHARE * (problem.size is None)) if plan and whole else plan


def plan_target(problem: LinearProblem) -> StandardisePlan:
    """The finest level for the target bought by itself: its mean, where quartiles are too dear, before mere widths."""
    plan = _affordable(problem, 1, _SHARES)
    if plan.level == "quartiles" or not problem.intercept:
        return plan
    found = (share for share in _SHARES if _finds_median(problem, share * _PARTS["mean"][0]))
    share = next(found, None)
    return plan if share is None else _plan_level(problem, "mean", share)


def plan_centre(problem: LinearProblem, share: float, *, bounded: bool) -> StandardisePlan:
    """One value to predict for all, for the whole ``share``: the best centre of the target that it pays for.

    ``bounded``: its bounds are declared, so that the mean can be had without a search.
    """
    if _finds_median(problem, share * _PARTS["mean"][0]):
        return _plan_level(problem, "mean", share)
    if _finds_median(problem, share):
        return _plan_level(problem, "median", share)
    return _plan_level(problem, "bounded mean" if bounded else "pooled", share)


def _finds_median(problem: LinearProblem, share: float) -> bool:
    """Whether a search for the median does not lose its way: one that does may end at 2^40."""
    rounds = math.ceil(math.log2(_CENTRES.size))
    return problem.size is not None and 0.5 * math.sqrt(rounds) * multiplier(problem, share) <= _LOST * problem.size


def _affordable(problem: LinearProblem, columns: int, shares: tuple[float, ...]) -> StandardisePlan:
    if problem.size is None:
        return _plan_level(problem, "quartiles" if problem.intercept else "magnitudes", 0.12)
    for share in shares:
        noise = math.sqrt(1.125 * columns * _ROUNDS) / (problem.mu * math.sqrt(share * _PARTS["quartiles"][0]))
        if problem.intercept and noise <= 0.05 * problem.size:
            return _plan_level(problem, "quartiles", share)
        if not problem.intercept and math.sqrt(columns) / (problem.mu * math.sqrt(share)) <= 0.02 * problem.size:
            return _plan_level(problem, "magnitudes", share)
    for share in shares:
        if 2 * math.sqrt(columns) / (problem.mu * math.sqrt(share)) <= 0.12 * problem.size:
            return _plan_level(problem, "magnitudes", share)
    return _plan_level(problem, "pooled", 0.05)


def buy_scaling(
    rows: Rows,
    plan: StandardisePlan,
    *,
    size: float,
    target: bool,
    receipt: Draws,
    noise: Noise,
    unknown: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Centre and width of every column of ``rows``; ``target`` says whether the last one is a target.

    ``unknown`` are the widths of columns of which nothing is found; where that is nan, they are as wide as the others,
    and the target has none. Where widths alone are bought, those that differ by no more than their noise are drawn
    together.

    Guarantee:
        A histogram gets one entry of weight 1 for each of its k columns from a record, so it moves by at most sqrt(k)
        in L2 (which columns are asked follows from released quartiles); pooled, the k entries weigh 1/k each and it
        moves by at most 1 (the target, which has its own, by another 1). Quartiles and the median: see
        ``statistics.quantile``. The mean is of values pulled in to a released or declared reach and divided by it: a
        record moves the sum by at most 1.
        All widths are positive and all values finite, whatever the data.
    """
    guess = np.full(rows.columns, np.nan) if unknown is None else unknown
    if plan.level == "pooled":
        return np.zeros(rows.columns), _pool_widths(rows, target, plan.multipliers[0], size, receipt, noise, guess)
    if plan.level in ("mean", "median", "bounded mean"):
        return _find_centre(rows, plan, size, receipt, noise, guess)
    if plan.level == "magnitudes":
        center, width = np.zeros(rows.columns), np.zeros(rows.columns)
        narrow, least = np.ones(rows.columns, dtype=np.bool_), np.zeros(rows.columns)
    else:
        low, high, least = _quartiles(rows, plan, receipt, noise)
        center, width = (low + high) / 2, (high - low) / _IQR
        error = 2.7 * plan.multipliers[0] * math.sqrt(_ROUNDS * 1.125 * rows.columns) / max(size, 1.0)
        center = np.where(np.abs(center) < 3 * error * width, 0.0, center)  # no further from 0 than its own error
        narrow = width <= 2 * least
    if narrow.any():
        asked = rows.map(lambda values: values[:, narrow], int(narrow.sum()))
        certain = np.full(rows.columns, _CERTAIN)
        certain[-1] = _TARGET_CERTAIN if target else _CERTAIN
        spread = _spreads(
            asked, center[narrow], least[narrow], certain[narrow], plan.multipliers[-1], size, receipt, noise
        )
        width[narrow] = np.maximum(np.where(np.isfinite(spread), spread, 0.0), least[narrow])
    features = slice(0, width.size - target)
    if plan.level == "magnitudes":
        error = plan.multipliers[0] * math.sqrt(rows.columns) / max(size, 1.0)
        width[features] = _draw_together(width[features], error)
    width = np.where((width == 0) & np.isfinite(guess), guess, width)
    if target and width[-1] == 0:
        width[-1] = _NOTHING
    return center, np.where(width > 0, width, _fallback(width[features]))


def _draw_together(width: Floats, noise: float) -> Floats:
    """Widths drawn to their geometric mean by the part of their differences that noise explains (James-Stein).

    ``noise`` is that of an octave's share of the records: about 3 times it is in the exponent of a width.
    """
    seen, found = width > 0, width.copy()
    if seen.any():
        exponents = np.log2(width[seen])
        mean, spread = exponents.mean(), float(np.var(exponents))
        kept = max(0.0, 1 - (3 * noise) ** 2 / spread) if spread > 0 else 1.0
        found[seen] = 2.0 ** (mean + kept * (exponents - mean))
    return found


def _fallback(width: Floats) -> float:
    """For a column that looks empty: as wide as the others are in the middle, or 1."""
    seen = width[width > 0]
    return float(np.median(seen)) if seen.size else 1.0


def _plan_level(problem: LinearProblem, level: str, share: float) -> StandardisePlan:
    return StandardisePlan(level, share, tuple(multiplier(problem, share * part) for part in _PARTS.get(level, (1.0,))))


def _quartiles(rows: Rows, plan: StandardisePlan, receipt: Draws, noise: Noise) -> tuple[Floats, Floats, Floats]:
    """Both quartiles of every column, and how fine the second grid was there."""
    low, high = quantile(
        rows.chunks(), _QUARTILES, grid=_COARSE, noise_multiplier=plan.multipliers[0], receipt=receipt, noise=noise
    )
    below = _COARSE[np.maximum(np.searchsorted(_COARSE, low) - 1, 0)]
    start = below - np.maximum((high - below) * 0.02, np.abs(high) * 1e-6)
    width = (high - start) * 1.02
    local = rows.map(lambda values: _within(values, start, width), rows.columns)
    found = quantile(
        local.chunks(), _QUARTILES, grid=_FINE, noise_multiplier=plan.multipliers[1], receipt=receipt, noise=noise
    )
    return start + width * found[0], start + width * found[1], width / _FINE.size


def _within(values: Floats, start: Floats, width: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(np.clip((values - start) / width, -1.0, 2.0))


def _spreads(
    rows: Rows,
    center: Floats,
    least: Floats,
    certain: Floats,
    multiplier: float,
    size: float,
    receipt: Draws,
    noise: Noise,
) -> Floats:
    """How far values lie from the centre, by octaves; nan where all is noise. Nearer than ``least`` counts as at it."""
    counts = total(rows, lambda values: _octaves(_beyond(values - center, least)))
    # one entry of weight 1 in the histogram of each of k columns: sqrt(k) in L2
    # (tests/linear/test_privacy.py::test_one_more_record_moves_releases_within_their_bounds_and_nothing_else)
    bound = math.sqrt(rows.columns)
    noisy = release(counts, bound=bound, noise_multiplier=multiplier, receipt=receipt, noise=noise)
    return np.array([_width(row, multiplier * bound, size, sure) for row, sure in zip(noisy, certain, strict=True)])


def _find_centre(
    rows: Rows, plan: StandardisePlan, size: float, receipt: Draws, noise: Noise, guess: Floats
) -> tuple[Floats, Floats]:
    """The mean of one column within some widths of its median, and the width; as far as ``plan`` goes.

    The noise of a mean goes with the width it is taken within, so the median comes first: that of ranks does not.

    Edge cases:
        how far values lie from the median is all noise     the median stays; the width is ``guess``, or, where that
                                                            is nan, an eighth of the median's distance from 0
    """
    if plan.level == "bounded mean":
        return _mean(rows, np.zeros(1), np.ones(1), plan.multipliers[0], size, receipt, noise), guess
    center = quantile(
        rows.chunks(), 0.5, grid=_CENTRES, noise_multiplier=plan.multipliers[0], receipt=receipt, noise=noise
    )
    guess = np.where(np.isnan(guess), np.maximum(np.abs(center) / 8, _NOTHING), guess)
    if plan.level == "median":
        return center, guess
    search, mean = plan.multipliers[1:]
    width = _spreads(rows, center, np.zeros(1), np.full(1, _TARGET_CERTAIN), search, size, receipt, noise)
    if not np.isfinite(width).all():
        return center, guess
    return center + _mean(rows, center, _MEAN_REACH * width, mean, size, receipt, noise), width


def _mean(
    rows: Rows, center: Floats, reach: Floats, multiplier: float, size: float, receipt: Draws, noise: Noise
) -> Floats:
    """How far the mean of values pulled in to ``reach`` lies from ``center``."""
    grid = grid_size(1.0, multiplier)

    def parts(values: Floats) -> Floats:
        """|clip(y - center, -reach, reach)| / reach <= 1, shaved by 1e-12 for the roundings of the quotient."""
        return cut(_SHAVE * (np.clip(values - center, -reach, reach) / reach), grid)

    exact = total(rows, lambda values: parts(values).sum(axis=0))
    noisy = release(exact, bound=1.0, noise_multiplier=multiplier, receipt=receipt, noise=noise)
    return np.asarray(reach * np.clip(noisy / max(size, 1.0), -1.0, 1.0))


def _beyond(values: Floats, least: Floats) -> Floats:
    return np.where(np.abs(values) > 2 * least, values, 0.0)


def _pool_widths(
    rows: Rows, target: bool, multiplier: float, size: float, receipt: Draws, noise: Noise, guess: Floats
) -> Floats:
    """One width for all features, and the target's own."""
    # k entries of weight 1 / k in one histogram: at most 1 in L2 (all in one bin); the target's own entry is another 1
    bound = math.sqrt(1 + target)
    weights = np.ones((1 + target, 1))
    weights[0] = cut(weights[0] / max(rows.columns - target, 1), 2.0**-24)  # of which sums are exact
    counts = weights * total(rows, lambda values: _pool_octaves(values, target))
    noisy = release(counts, bound=bound, noise_multiplier=multiplier, receipt=receipt, noise=noise)
    common = _width(noisy[0], multiplier * bound, size, _CERTAIN)
    widths = np.full(rows.columns, common if math.isfinite(common) else 1.0)
    if target:
        own = _width(noisy[1], multiplier * bound, size, _TARGET_CERTAIN)
        widths[-1] = own if math.isfinite(own) else np.nan_to_num(guess[-1], nan=_NOTHING)
    return widths


def _pool_octaves(values: Floats, target: bool) -> Floats:
    octaves = _octaves(values)
    features = octaves[: octaves.shape[0] - target]
    return np.stack([features.sum(axis=0), *octaves[octaves.shape[0] - target :]])


def _octaves(values: Floats) -> Floats:
    """How many values of each column lie in [2^(e-1), 2^e), for each e; what is nearer to 0 is in no octave."""
    with np.errstate(invalid="ignore", over="ignore"):
        exponents = np.frexp(values)[1]
    bins = 2 * _OCTAVES + 1
    places = np.clip(exponents + _OCTAVES, 0, bins - 1) + bins * np.arange(values.shape[1])
    seen = places[values != 0]
    return np.bincount(seen, minlength=bins * values.shape[1]).reshape(values.shape[1], bins).astype(np.float64)


def _width(counts: Floats, noise: float, size: float, certain: float) -> float:
    """From noisy octave counts: where the fullest four octaves lie, times the root of the share they hold.

    ::

        1.1 sqrt(share) 2^(mean exponent):      0.93 to 1.15 for a unit normal, sqrt(p) times that if a share p is not 0

    nan where they do not stand out by ``certain`` standard deviations.
    """
    windows = np.convolve(counts, np.ones(4), "valid")
    first = int(np.argmax(windows))
    if windows[first] < certain * 2 * noise:
        return math.nan
    kept = np.maximum(counts[first : first + 4], 0.0)
    exponent = float(kept @ np.arange(first - _OCTAVES, first - _OCTAVES + 4)) / float(kept.sum())
    return float(1.1 * math.sqrt(min(1.0, float(windows[first]) / max(size, 1.0))) * 2.0**exponent)
