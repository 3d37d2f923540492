"""Lines of released numbers, laid out for an SVG: the threshold of each step, and named curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from dpilot.records import MetricRecord
from dpilot.report.kinds import key, kind
from dpilot.report.scale import Scale, Tick
from dpilot.report.verdict import find_untold
from dpilot.report.words import is_finite, label, number

Points = Sequence[tuple[float, float]]

_SHAPES: Final = (  # distinguished by shape and dash, not by colour alone
    "M-4.5 0A4.5 4.5 0 1 0 4.5 0A4.5 4.5 0 1 0 -4.5 0Z",
    "M-4 -4H4V4H-4Z",
    "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
    "M0 -5L5 4H-5Z",
)
_DASHES: Final = ("none", "7 4", "2 4", "9 3 2 3")
_POINTS_ALONE: Final = ("point", "trial", "tried", "measured", "observed", "scored")
_GAPS: Final = ("equal_opportunity_gap", "false_positive_gap", "selection_gap")
_RATES: Final = ("false_positive_rate", "true_positive_rate")


class Series(NamedTuple):
    """One line: ``path`` in a box of 1000 by 1000 (empty for points alone), ``marks`` in percent."""

    name: str
    path: str
    marks: tuple[tuple[float, float], ...]
    shape: str
    dash: str
    tone: int


class Chart(NamedTuple):
    """Everything a picture needs, as text and percentages."""

    title: str
    summary: str
    across: str
    up: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]


def roc(metrics: Sequence[MetricRecord]) -> Chart | None:
    """True against false positives at each edge of the score, from the released counts; None where there are none."""
    rates = {name: {each.of: each.value for each in metrics if key(each.name) == name} for name in _RATES}
    false, true = (rates[name] for name in _RATES)
    points = sorted((false[of], true[of]) for of in false if of in true)
    if not points:
        return None
    heights = list(accumulate((height for _, height in points), max))  # noise must not bend the curve back
    curve = [(0.0, 0.0), *((x, y) for (x, _), y in zip(points, heights, strict=True)), (1.0, 1.0)]
    named = {"model": curve, "guessing": [(0.0, 0.0), (1.0, 1.0)]}
    return chart("ROC: true positives against false positives", "false positives", "true positives", named)


def tradeoff(metrics: Sequence[MetricRecord]) -> Chart | None:
    """Accuracy and fairness: the model's gaps between groups, and what can be had on the way to no gap at all.

    Predicting the most common class for a share p of people, drawn by lot, makes every gap 1 - p times as large, and
    the accuracy the mean of the model's and that class's share. Gaps that noise hides are left out.
    """
    found = {key(each.name): each.value for each in metrics if each.of == ""}
    top, common = found.get("accuracy"), found.get("share_of_the_most_common_class")
    untold = find_untold(metrics)
    gaps = [each for each in metrics if key(each.name) in _GAPS and each not in untold and each.sampling[0] > 0]
    if top is None or common is None or not gaps:
        return None
    named: dict[str, Points] = {}
    for each in gaps:
        what = f"{kind(each.name).title.lower()}, {each.of}" if each.of else kind(each.name).title.lower()
        named[what] = [(0.0, common), (each.value, top)]
    return chart("Accuracy and fairness: the Pareto line", "gap between groups (0 is equal)", "accuracy", named)


def calibration(metrics: Sequence[MetricRecord], widest: float) -> Chart | None:
    """The share of the second class among records of like score, where its interval is no wider than ``widest``."""
    found = [each for each in metrics if key(each.name) == "calibration"]
    told = [each for each in found if each.sampling[1] - each.sampling[0] <= widest]
    ends = [(_numbers(each.of), each) for each in told]
    points = [((low + high) / 2, each.value) for (low, high), each in ends]
    if not points:
        return None
    named = {"released points": points, "as it says": [(0.0, 0.0), (1.0, 1.0)]}
    known = f"{len(points)} of {len(found)} points; noise hides the rest"
    title = f"Calibration: what is true against what the model says ({known})"
    return chart(title, "probability that the model gives", "share of the second class", named)


def _numbers(of: str) -> tuple[float, float]:
    """The ends of "score 0.1 to 0.2"; (0, 0) for anything else."""
    low, _, high = of.removeprefix("score ").partition(" to ")
    try:
        return float(low), float(high)
    except ValueError:
        return 0.0, 0.0


def charts(curves: Mapping[str, Points], *, steps: bool) -> tuple[Chart, ...]:
    """One chart for each "UP against ACROSS", with all its series ("UP against ACROSS: series") together.

    ``steps``: those against the steps of a training, or all others, which are of what was tried.

    >>> drawn = charts({"step size against epsilon: fitted": [(0, 1), (1, 2)],
    ...                 "step size against epsilon: trials": [(0.1, 1.1)]}, steps=False)
    >>> [(chart.up, chart.across, [series.name for series in chart.series]) for chart in drawn]
    [('step size', 'epsilon', ['fitted', 'trials'])]
    """
    grouped: dict[str, dict[str, Points]] = {}
    for name, points in curves.items():
        title, _, series = str(name).partition(": ")
        if (_axes(title)[0] == "step") != steps:
            continue
        grouped.setdefault(title, {})[series or title] = points
    drawn = (chart(label(title), *_axes(title), named) for title, named in grouped.items())
    return tuple(chart for chart in drawn if chart is not None)


def _axes(title: str) -> tuple[str, str]:
    for word in (" against ", " vs "):
        up, separator, across = title.partition(word)
        if separator:
            return across, up
    return "x", title


def chart(title: str, across: str, up: str, named: Mapping[str, Points]) -> Chart | None:
    """One picture of named series; None where there is nothing finite to draw.

    Series called trials, points and the like are points alone, the others are joined.
    """
    kept = {name: [(x, y) for x, y in points if is_finite(x) and is_finite(y)] for name, points in named.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return None
    horizontal = Scale.over(x for points in kept.values() for x, _ in points)
    vertical = Scale.over(y for points in kept.values() for _, y in points)
    crowded = any(map(_is_joined, kept.items())) and not all(map(_is_joined, kept.items()))
    series = tuple(
        _series(place, named, horizontal, vertical, marked=not crowded) for place, named in enumerate(kept.items())
    )
    summary = " ".join(_summary(name, points, across) for name, points in kept.items())
    return Chart(title, summary, across, up, horizontal.ticks(), vertical.ticks(), series)


def _is_joined(named: tuple[str, Points]) -> bool:
    name, points = named
    return len(points) > 1 and not any(word in name.lower() for word in _POINTS_ALONE)


def _series(place: int, named: tuple[str, Points], horizontal: Scale, vertical: Scale, *, marked: bool) -> Series:
    """A line has no marks where other series are points alone: it would look like one of them."""
    (name, points), joined = named, _is_joined(named)
    at = [(horizontal.place(x), 100 - vertical.place(y)) for x, y in thin(points)]
    path = "M" + "L".join(f"{10 * x:.1f} {10 * y:.1f}" for x, y in at) if joined else ""
    few = len(at) <= 24
    marks = tuple((round(x, 2), round(y, 2)) for x, y in at) if not joined or (marked and few) else ()
    return Series(name, path, marks, _SHAPES[place % 4], _DASHES[place % 4], place % 4)


def thin(points: Points, buckets: int = 300) -> list[tuple[float, float]]:
    """At most a few hundred points that keep every peak: the least and the greatest of each stretch, and the ends.

    >>> len(thin([(x, 0.0) for x in range(10_000)])) <= 602
    True
    """
    if len(points) <= 2 * buckets:
        return list(points)
    size = -(-len(points) // buckets)
    kept = {0, len(points) - 1}
    for start in range(0, len(points), size):
        stretch = range(start, min(start + size, len(points)))
        kept |= {min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])}
    return [points[index] for index in sorted(kept)]


def _summary(name: str, points: Points, across: str) -> str:
    (x, first), (end, last) = points[0], points[-1]
    if len(points) == 1:
        return f"{label(name)}: {number(first)} at {across} {number(x)}."
    heights = [y for _, y in points]
    return (
        f"{label(name)}: from {number(first)} at {across} {number(x)} to {number(last)} at {across} {number(end)}, "
        f"least {number(min(heights))}, greatest {number(max(heights))}."
    )
