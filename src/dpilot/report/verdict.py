"""Which figures say something: what noise and sampling leave of them, and whether the model beats a trivial one.

A figure is not told, in words in place of a number, where its interval for the population is so wide that the number
would mislead::

    shares, AUC             wider than 0.3
    accuracy                also where it may be better than the most common class and may be 0.1 worse
    cells of confusion      also where 0 is inside and the interval is wider than 0.1
    R squared               where 0, the mean alone, is inside and the interval is wider than 0.3
    errors and counts       where 0 is inside: then only the upper end is known

The interval itself is always shown. A figure of records declared public is exact, and always told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dpilot.records import MetricRecord
from dpilot.report import words
from dpilot.report.kinds import key, kind

UNTOLD: Final = "cannot be told"
WIDEST: Final = 0.3
"""An interval of a share that is wider says nothing."""
_FAR: Final = 0.1
_ABOVE: Final = "accuracy_above_that_share"
_COMMON: Final = "share_of_the_most_common_class"


class FigureVerdict(NamedTuple):
    """Whether the model is better than one that looks at nothing: a few words beside its figure, and a sentence."""

    short: str
    sentence: str
    sure: bool


def find_untold(metrics: Sequence[MetricRecord]) -> frozenset[MetricRecord]:
    """The figures whose number would mislead.

    >>> wide = MetricRecord("accuracy", "", 0.927, (0.6, 1.0), (0.55, 1.0))
    >>> find_untold([wide]) == {wide}
    True
    """
    above = _overall(metrics).get(_ABOVE)
    lost = above is not None and above.sampling[0] < -_FAR and above.sampling[1] > 0
    return frozenset(
        metric
        for metric in metrics
        if not metric.exact and (_is_wide(metric) or (lost and key(metric.name) == "accuracy" and metric.of == ""))
    )


def value_text(metric: MetricRecord, untold: frozenset[MetricRecord], say: Callable[[Any], str]) -> str:
    """The number, or the words that stand in its place.

    >>> error = MetricRecord("RMSE", "", 3.7, (0.0, 12.4), (0.0, 12.5))
    >>> value_text(error, find_untold([error]), words.number)
    'at most 12.5'
    """
    if metric not in untold:
        return say(metric.value)
    return f"at most {say(metric.sampling[1])}" if kind(metric.name).form == "size" else UNTOLD


def verdict(metrics: Sequence[MetricRecord]) -> FigureVerdict | None:
    """Whether the model beats the most common class, or the mean; None where the record does not say."""
    found = _overall(metrics)
    if "accuracy" in found and _ABOVE in found:
        return _against_most_common(found, find_untold(metrics))
    return _against_mean(found["r2"]) if "r2" in found else None


def _against_most_common(found: Mapping[str, MetricRecord], untold: frozenset[MetricRecord]) -> FigureVerdict:
    low, high = found[_ABOVE].sampling
    points = f"{words.between(low, high, words.percent).removesuffix(' %')} points"
    common = found.get(_COMMON)
    share = "" if common is None or common in untold else words.percent(common.value)
    rival = f"predicting the most common class always{f', which is right for about {share}' if share else ''}"
    known, it = (f"most common class {share}; ", "it") if share else ("", "the most common class")
    if low > 0:
        sentence = f"The accuracy is surely above that of {rival}: by {points}."
        return FigureVerdict(f"{known}surely above {it}, by {points}", sentence, sure=True)
    if high < 0:
        sentence = f"The accuracy is surely below that of {rival}: the difference is {points}."
        return FigureVerdict(f"{known}surely below {it} ({points})", sentence, sure=True)
    sentence = (
        f"It cannot be told whether the model is better than {rival}: the difference lies anywhere from {points}. More "
        "records, a larger epsilon or a larger held-out share would tell."
    )
    return FigureVerdict(f"{known}whether above {it} cannot be told", sentence, sure=False)


def _against_mean(r2: MetricRecord) -> FigureVerdict:
    low, high = r2.sampling
    between = words.between(low, high, words.number)
    if low > 0:
        sentence = f"The model is surely better than predicting the mean always: R squared is {between}."
        return FigureVerdict("surely better than the mean alone", sentence, sure=True)
    if high < 0:
        sentence = f"The model is surely worse than predicting the mean always: R squared is {between}."
        return FigureVerdict("surely worse than the mean alone", sentence, sure=True)
    sentence = (
        "It cannot be told whether the model is better than predicting the mean always: R squared lies anywhere from "
        f"{between}. More records, a larger epsilon or a larger held-out share would tell."
    )
    return FigureVerdict("whether better than the mean alone cannot be told", sentence, sure=False)


def _overall(metrics: Sequence[MetricRecord]) -> dict[str, MetricRecord]:
    """The figures of everything whose intervals are numbers, by key."""
    return {
        key(metric.name): metric
        for metric in metrics
        if metric.of == "" and all(map(words.is_finite, (metric.value, *metric.sampling)))
    }


def _is_wide(metric: MetricRecord) -> bool:
    low, high = metric.sampling
    form, width = kind(metric.name).form, high - low
    if form == "size":
        return low <= 0 < high
    if form == "explained":
        return low < 0 < high and width > WIDEST
    if key(metric.name) == "confusion" and low <= 0 and width > _FAR:
        return True
    return form in ("share", "score") and width > WIDEST
