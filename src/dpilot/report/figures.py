"""Released figures grouped into families, each a table whose rows carry a dot and two whiskers on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dpilot.records import MetricRecord
from dpilot.report import words
from dpilot.report.confusion import cells_of
from dpilot.report.kinds import AGAINST_OTHERS, DRAWN, TO_COMPARE, is_known, key, kind
from dpilot.report.scale import Scale, Tick
from dpilot.report.verdict import find_untold, value_text

Span = tuple[float, float]

_TOGETHER: Final = {
    "recall": "By class",
    "precision": "By class",
    "worst_class": "Extremes and gaps",
    "worst_group": "Extremes and gaps",
    "demographic_parity": "Extremes and gaps",
    "equal_opportunity_gap": "Extremes and gaps",
    "false_positive_gap": "Extremes and gaps",
    "selection_gap": "Extremes and gaps",
}
"""Figures that share a table, by its title."""

NOT_KNOWN: Final = "not known"
"""The interval of an exact figure of which nobody knows how many records it is of."""


class FigureRow(NamedTuple):
    """One figure: text for the cells, and percentages of the axis for the picture; ``at`` None where it is not told."""

    label: str
    meaning: str
    value: str
    noise: str
    sampling: str
    exact: bool
    told: bool
    at: float | None
    noise_at: Span | None
    sampling_at: Span | None

    @property
    def sentence(self) -> str:
        """The row in one sentence, for screen readers."""
        if self.exact:
            return f"{self.label}: {self.value}, exact; sampling interval {self.sampling}."
        return f"{self.label}: {self.value}; noise interval {self.noise}; sampling interval {self.sampling}."


class Family(NamedTuple):
    """Figures that share an axis."""

    title: str
    meaning: str
    ticks: tuple[Tick, ...]
    rows: tuple[FigureRow, ...]


def families(metrics: Sequence[MetricRecord]) -> tuple[Family, ...]:
    """Overall shares together, figures by class, extremes and gaps, and a family for each other name.

    Cells of confusion tables, and what sections of their own show, are left out.
    """
    grouped: dict[str, list[MetricRecord]] = {}
    cells, untold = set(cells_of(metrics).values()), find_untold(metrics)
    shown = {*DRAWN, *(["group_accuracy"] if any(key(each.name) in AGAINST_OTHERS for each in metrics) else [])}
    for metric in metrics:
        name = key(metric.name)
        if metric not in cells and name not in shown:
            grouped.setdefault("" if _overall(metric) else _TOGETHER.get(name, name), []).append(metric)
    return tuple(_family(name, grouped[name], untold) for name in sorted(grouped, key=lambda name: name != ""))


def headline(metrics: Sequence[MetricRecord]) -> FigureRow | None:
    """The figure for the top of the page: the first that is of everything."""
    first = next((metric for metric in metrics if metric.of == ""), None)
    return None if first is None else _row(first, Scale(0.0, 1.0), find_untold(metrics), names=True)


class Gauge(NamedTuple):
    """The first figure on an axis beside what it is compared with: places in percent."""

    at: float
    ends: Span
    common: float | None
    baseline: float | None
    ticks: tuple[Tick, ...]


def gauge(metrics: Sequence[MetricRecord], baseline: float | None) -> Gauge | None:
    """None where the first figure is no share that can be told."""
    first = next((metric for metric in metrics if metric.of == ""), None)
    if first is None or not _overall(first) or first in find_untold(metrics):
        return None
    share = next((each.value for each in metrics if key(each.name) == "share_of_the_most_common_class"), None)
    common = share if share is not None and words.is_finite(share) else None
    known = [each for each in (first.value, *first.sampling, common, baseline) if each is not None]
    axis = Scale.over(known)
    return Gauge(
        axis.place(first.value),
        _place(first.sampling, axis) or (axis.place(first.value),) * 2,
        None if common is None else axis.place(common),
        None if baseline is None else axis.place(baseline),
        axis.ticks(kind(first.name).say),
    )


def _overall(metric: MetricRecord) -> bool:
    """Whether it shares the axis of the overall figures: a figure of everything, between -1 and 1 as released."""
    inside = words.is_finite(metric.value) and -1 <= metric.value <= 1 and key(metric.name) not in TO_COMPARE
    return metric.of == "" and inside and is_known(metric.name) and kind(metric.name).form in ("share", "score")


def _family(name: str, metrics: Sequence[MetricRecord], untold: frozenset[MetricRecord]) -> Family:
    ends = (end for metric in metrics for end in (metric.value, *metric.noise, *metric.sampling))
    axis, named = Scale.over(ends), not name or name in _TOGETHER.values()
    title, meaning = (name or "Overall", "") if named else (kind(metrics[0].name).title, kind(metrics[0].name).meaning)
    share = not name or all(kind(metric.name).share for metric in metrics)
    ticks = axis.ticks(words.percent if share else words.number)
    rows, told = [], set[str]()
    for metric in metrics:
        row = _row(metric, axis, untold, names=named)
        rows.append(row._replace(meaning="") if key(metric.name) in told else row)  # once a kind
        told.add(key(metric.name))
    return Family(title, meaning, ticks, tuple(rows))


def _row(metric: MetricRecord, axis: Scale, untold: frozenset[MetricRecord], *, names: bool) -> FigureRow:
    what = kind(metric.name)
    title, meaning = what.title, what.meaning
    text = title if names or not metric.of else metric.of
    told = metric not in untold
    return FigureRow(
        label=text if not names or not metric.of else f"{title}: {metric.of}",
        meaning=meaning if names else "",
        value=value_text(metric, untold, what.say),
        noise="none: exact" if metric.exact else words.between(*metric.noise, what.say),
        sampling=NOT_KNOWN
        if metric.exact and metric.sampling == metric.noise
        else words.between(*metric.sampling, what.say),
        exact=metric.exact,
        told=told,
        at=axis.place(metric.value) if told and words.is_finite(metric.value) else None,
        noise_at=None if metric.exact else _place(metric.noise, axis),
        sampling_at=_place(metric.sampling, axis),
    )


def _place(span: Span, axis: Scale) -> Span | None:
    if not all(words.is_finite(end) for end in span):
        return None
    low, high = sorted(axis.place(end) for end in span)
    return low, high
