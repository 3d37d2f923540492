"""How training went, from what its steps released: nothing here costs, and nothing sees a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from dpilot import clipping
from dpilot._arrays import Floats
from dpilot.clipping.binning import Binned
from dpilot.clipping.normalized import Normalized
from dpilot.clipping.quantile import Quantile
from dpilot.clipping.slack import Slack
from dpilot.errors import DpilotError
from dpilot.metrics.interval import quantile
from dpilot.privacy import accountant
from dpilot.privacy.events import Gaussian, PoissonSampled, Repeated
from dpilot.records import FitRecord, StepRecord
from dpilot.report.curves import Chart, chart, charts
from dpilot.report.scale import Scale, Tick
from dpilot.report.words import is_finite, number, percent

__all__ = ["Course", "Ridge", "RidgeRow", "course"]

_LAYERS: Final = 6  # drawn, of many
_SLICES: Final = 12  # of a ridge
_POINTS: Final = 8  # of the epsilon curve


class RidgeRow(NamedTuple):
    """The norms in one stretch of steps: a filled path in a box of 1000 by 100, its foot at 100."""

    label: str
    path: str


class Ridge(NamedTuple):
    """Distributions of gradient norms, one row a stretch of steps."""

    title: str
    summary: str
    across: str
    ticks: tuple[Tick, ...]
    rows: tuple[RidgeRow, ...]


class Course(NamedTuple):
    """The pictures of a training run, and what its noise is beside its signal."""

    charts: tuple[Chart, ...]
    ridge: Ridge | None
    noise: str


def course(record: FitRecord) -> Course | None:
    """All that the steps of a record tell; None where it has neither steps nor thresholds."""
    steps = record.steps
    if not steps and not record.thresholds:
        return None
    clipped = _fraction_clipped(record)
    public = charts(record.curves, steps=True)
    drawn = (*public, _thresholds(record), _layers(steps), *clipped, _lengths(record), _epsilon(record))
    return Course(tuple(each for each in drawn if each is not None), _ridge(record), _noise(record))


def _thresholds(record: FitRecord) -> Chart | None:
    values = record.thresholds or tuple(step.threshold for step in record.steps)
    named = {"threshold": list(enumerate(values, start=1))}
    if any(step.bound != step.threshold for step in record.steps):
        named["bound of one record, signal included"] = [(step.step + 1, step.bound) for step in record.steps]
    return chart("Clipping threshold at each step", "step", "threshold", named)


def _layers(steps: Sequence[StepRecord]) -> Chart | None:
    """The threshold of each layer, of some where there are many: those that end lowest, highest, and between."""
    layers = max((len(step.thresholds) for step in steps), default=0)
    if layers < 2:
        return None
    last = np.argsort(steps[-1].thresholds)
    chosen = sorted({int(last[round(place)]) for place in np.linspace(0, layers - 1, min(layers, _LAYERS))})
    named = {
        f"layer {layer + 1}": [
            (step.step + 1, step.thresholds[layer]) for step in steps if len(step.thresholds) == layers
        ]
        for layer in chosen
    }
    some = "" if len(chosen) == layers else f", {len(chosen)} of {layers}"
    return chart(f"Threshold of each layer{some}", "step", "threshold", named)


class _Signal(NamedTuple):
    """A rule's released extras as numbers with a meaning: (steps, k), and the noise of each."""

    rule: Any
    values: Floats
    noise: float
    steps: tuple[StepRecord, ...]


def _signal(record: FitRecord) -> _Signal | None:
    """The released extras as fractions of the expected batch; None where the rule has none, or one for each layer."""
    declared, plan = record.plan.get("clipping"), record.plan
    steps = tuple(step for step in record.steps if step.released and not step.thresholds and step.bound > 0)
    sizes = {len(step.released) for step in steps}
    batch = _product(plan.get("sample_rate"), plan.get("size"))
    sigma = plan.get("noise_multiplier")
    if not isinstance(declared, dict) or len(sizes) != 1 or not batch or not isinstance(sigma, int | float):
        return None
    try:
        rule = clipping.from_dict(declared)
    except DpilotError:
        return None
    rule = rule.rule if isinstance(rule, Normalized) else rule
    # in units of what one record can put into a coordinate: bound / sqrt(K), 2 bound sqrt(share), bound sqrt(share)
    if isinstance(rule, Slack):
        unit = 1 / math.sqrt(sizes.pop())
    elif isinstance(rule, Quantile):
        unit = 2 * math.sqrt(rule.share)
    elif isinstance(rule, Binned):
        unit = math.sqrt(rule.share)
    else:
        return None
    released = np.array([step.released for step in steps], dtype=np.float64)
    bounds = np.array([step.bound for step in steps])
    return _Signal(rule, released / (unit * batch * bounds[:, None]), float(sigma) / (unit * batch), steps)


def _fraction_clipped(record: FitRecord) -> tuple[Chart | None, ...]:
    """The released fraction of norms above the threshold, smoothed over steps, with the interval of its noise."""
    found = _signal(record)
    if found is None:
        return ()
    rule, values = found.rule, found.values
    if isinstance(rule, Slack):
        fraction, deviation, what = 1 - values[:, 0], found.noise, "the threshold, or just below it"
    elif isinstance(rule, Quantile):
        fraction, deviation, what = values[:, 0] + 0.5, found.noise, f"{number(rule.tau)} times the threshold"
    else:
        above = _bins_above(found)
        fraction, deviation = (values * above).sum(axis=1), found.noise * math.sqrt(float(above.sum(axis=1).mean()))
        what = "the threshold"
    window = max(1, len(fraction) // 60)
    mean = np.convolve(fraction, np.ones(window) / window, mode="valid")
    reach = quantile() * deviation / math.sqrt(window)
    at = [found.steps[place + window // 2].step + 1 for place in range(len(mean))]
    named = {
        name: list(zip(at, np.clip(line, 0.0, 1.0).tolist(), strict=True))
        for name, line in (
            (f"released: norms above {what}", mean),
            ("95 % interval of the noise, lower end", mean - reach),
            ("95 % interval of the noise, upper end", mean + reach),
        )
    }
    smooth = f", mean of {window} steps" if window > 1 else ""
    title = f"Fraction of records clipped in each step{smooth}"
    return (chart(title, "step", "fraction", named),)


def _bins_above(found: _Signal) -> Floats:
    """1 for the bins of a histogram that lie above the threshold, 0 below, a part for the bin it is in."""
    widths = np.array([step.memory[0] if step.memory else math.nan for step in found.steps])
    thresholds = np.array([step.threshold for step in found.steps])
    upper = widths[:, None] * np.arange(1, found.values.shape[1] + 1)
    part = np.clip((upper - thresholds[:, None]) / widths[:, None], 0.0, 1.0)
    return np.asarray(np.nan_to_num(part))


def _ridge(record: FitRecord) -> Ridge | None:
    """The distribution of gradient norms over the steps, as in Figure 3 of SlaClip: from slots, or from a histogram."""
    found = _signal(record)
    if found is None or found.values.shape[1] < 3 or isinstance(found.rule, Quantile):
        return None
    pieces = [piece for piece in np.array_split(np.arange(len(found.values)), _SLICES) if piece.size]
    seen = [(piece, _norms(found, piece)) for piece in pieces]
    told = [(piece, each) for piece, each in seen if each is not None]
    if not told:
        return None
    curves = [each for _, each in told]
    axis = Scale(0.0, max(float(edges[-1]) for edges, _ in curves))
    most = max(float(density.max()) for _, density in curves) or 1.0
    rows = tuple(
        RidgeRow(_stretch(found.steps, piece), _area(edges, density / most, axis)) for piece, (edges, density) in told
    )
    first, last = (_median(*curves[place]) for place in (0, -1))
    summary = (
        "One row a stretch of steps, earliest first; the higher, the more records. Only norms up to the right end are "
        f"seen: half of these lie below {number(first)} at first and below {number(last)} at the end. Noise is in it."
    )
    return Ridge("Gradient norms over the steps", summary, "norm", axis.ticks(), rows)


def _stretch(steps: Sequence[StepRecord], piece: Any) -> str:
    first, last = (steps[place].step + 1 for place in (piece[0], piece[-1]))
    return f"steps {first:,} to {last:,}" if last > first else f"step {first:,}"


def _norms(found: _Signal, piece: Any) -> tuple[Floats, Floats] | None:
    """Edges of bins of the norm, and the released share in each, nothing below 0."""
    mean = found.values[piece].mean(axis=0)
    if isinstance(found.rule, Slack):
        # slot k holds the CDF averaged over [C - k C/K, C - (k-1) C/K]: its differences are shares of norms
        threshold = float(np.mean([found.steps[place].threshold for place in piece]))
        cdf = np.concatenate([[0.0], mean[::-1]])
        edges = threshold * np.arange(len(mean) + 1) / len(mean)
        return edges, np.maximum(np.diff(cdf), 0.0)
    widths = [found.steps[place].memory[0] for place in piece if found.steps[place].memory]
    if not widths or max(widths) > min(widths) * (1 + 1e-6):
        width = widths[-1] if widths else 0.0
        same = [place for place in piece if found.steps[place].memory and found.steps[place].memory[0] == width]
        if not same or width <= 0:
            return None
        mean = found.values[same].mean(axis=0)
        widths = [width]
    return widths[0] * np.arange(len(mean) + 1), np.maximum(mean, 0.0)


def _median(edges: Floats, density: Floats) -> float:
    total = np.cumsum(density)
    place = int(np.searchsorted(total, total[-1] / 2)) if total[-1] > 0 else 0
    return float(edges[min(place + 1, len(edges) - 1)])


def _area(edges: Floats, heights: Floats, axis: Scale) -> str:
    points = [f"{10 * axis.place(float(edges[0])):.0f} 100"]
    for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
        middle = 10 * axis.place(float(low + high) / 2)
        points.append(f"{middle:.0f} {100 - 100 * min(max(float(height), 0.0), 1.0):.0f}")
    return "M" + "L".join([*points, f"{10 * axis.place(float(edges[-1])):.0f} 100"]) + "Z"


def _epsilon(record: FitRecord) -> Chart | None:
    """What the first steps of the plan cost alone, at the delta of the total."""
    numbers = [record.plan.get(name) for name in ("noise_multiplier", "sample_rate", "steps")]
    delta = (record.plan.get("cost") or {}).get("delta", record.privacy.get("delta"))  # of training alone
    if not record.steps or not all(map(is_finite, (*numbers, delta))):
        return None
    noise, rate, steps = float(numbers[0]), float(numbers[1]), int(numbers[2])  # type: ignore[arg-type]
    try:
        points = _epsilons(noise, rate, steps, float(delta))  # type: ignore[arg-type]
    except DpilotError:
        return None
    return chart("Epsilon of training, after so many steps", "step", "epsilon", {"epsilon": points})


@lru_cache(maxsize=32)
def _epsilons(noise: float, rate: float, steps: int, delta: float) -> tuple[tuple[float, float], ...]:
    event = Gaussian(noise) if rate == 1 else PoissonSampled(rate, Gaussian(noise))
    counts = sorted({max(1, round(steps * place / _POINTS)) for place in range(1, _POINTS + 1)} | {1})
    return tuple((float(count), accountant.epsilon(Repeated(event, count), delta)) for count in counts)


def _lengths(record: FitRecord) -> Chart | None:
    """The length of what a step released, of its noise alone, and of the signal that is left when that is taken off.

    ::

        E length^2 = signal^2 + d (sigma bound)^2,   d numbers that were trained
    """
    dimension, sigma = record.plan.get("parameters"), record.plan.get("noise_multiplier")
    steps = [step for step in record.steps if step.length is not None and not step.measuring]
    if not steps or not is_finite(dimension) or not is_finite(sigma):
        return None
    squares = np.array([step.length for step in steps], dtype=np.float64) ** 2
    noise = float(dimension) * (float(sigma) * np.array([step.bound for step in steps])) ** 2  # type: ignore[arg-type]
    window = max(1, len(steps) // 60)
    smooth = [np.convolve(each, np.ones(window) / window, mode="valid") for each in (squares, noise)]
    lengths = {
        "released": smooth[0],
        "noise alone": smooth[1],
        "signal: what is left without the noise": np.maximum(smooth[0] - smooth[1], 0.0),
    }
    at = [steps[place + window // 2].step + 1 for place in range(len(smooth[0]))]
    named = {name: list(zip(at, np.sqrt(each).tolist(), strict=True)) for name, each in lengths.items()}
    over = f", mean of {window} steps" if window > 1 else ""
    return chart(f"Noise beside signal: length of the sum of gradients{over}", "step", "length", named)


def _noise(record: FitRecord) -> str:
    """Noise beside the most that a batch can say, in one sentence."""
    batch, sigma = (
        _product(record.plan.get("sample_rate"), record.plan.get("size")),
        record.plan.get("noise_multiplier"),
    )
    if not batch or not is_finite(sigma):
        return ""
    share = float(sigma) / batch  # type: ignore[arg-type]
    return (
        f"Noise beside signal: in each direction a step's noise is {percent(share)} of the most that its "
        f"{number(round(batch))} records could add together."
    )


def _product(rate: Any, size: Any) -> float:
    return float(rate) * float(size) if is_finite(rate) and is_finite(size) else 0.0
