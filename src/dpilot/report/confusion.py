"""The table of true against predicted classes, as cells with a shade, or its largest mistakes where it is wide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dpilot.records import MetricRecord
from dpilot.report import words
from dpilot.report.kinds import key
from dpilot.report.verdict import find_untold
from dpilot.report.words import is_finite

Pair = tuple[str, str]

_SIGN: Final = " predicted "


class Cell(NamedTuple):
    """A released figure, "" where noise hides it; ``shade`` is its share of the row's largest, for the eye alone."""

    text: str
    shade: float
    right: bool


@dataclass(frozen=True, slots=True)
class Confusion:
    """Either ``rows`` (true class, its cells) under the predicted ``classes``, or the largest ``mistakes``.

    ``untold`` counts the cells that noise hides: they are empty, or no mistakes. ``room`` is the widest noise interval
    of the others; neither rows nor mistakes where there are no others.
    """

    classes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    mistakes: tuple[tuple[str, str, str, str], ...]
    room: str
    untold: int


def confusion(metrics: Sequence[MetricRecord], widest: int = 16) -> Confusion | None:
    """The table of up to ``widest`` classes, the largest mistakes of more, or None where there are no cells."""
    cells = cells_of(metrics)
    if not cells:
        return None
    classes = tuple(dict.fromkeys(name for place in cells for name in place))
    shares = all(is_finite(metric.value) and 0 <= metric.value <= 1 for metric in cells.values())
    say = words.percent if shares else words.number
    untold = find_untold(tuple(cells.values())) if shares else frozenset()
    told = {place: metric for place, metric in cells.items() if metric not in untold}
    room, hidden = _room(told, say), len(cells) - len(told)
    if len(classes) > widest or not told:
        return Confusion(classes, (), _mistakes(told, say), room, hidden)
    rows = tuple((true, _line(true, classes, cells, told, say)) for true in classes)
    return Confusion(classes, rows, (), room, hidden)


def cells_of(metrics: Sequence[MetricRecord]) -> dict[Pair, MetricRecord]:
    """The figures called "confusion", by (true, predicted) class.

    Edge cases:
        names with " predicted " inside   distinguished by the classes that other figures name; else not a cell
    """
    classes = {metric.of for metric in metrics if key(metric.name) == "recall"}
    named = {pair(metric.of, classes): metric for metric in metrics if metric.name == "confusion"}
    return {place: metric for place, metric in named.items() if place is not None}


def pair(of: str, classes: set[str]) -> Pair | None:
    """True and predicted class of "TRUE predicted PREDICTED".

    >>> pair("cat predicted dog", set()), pair("cat", set())
    (('cat', 'dog'), None)
    >>> pair("a predicted b predicted a", {"a", "a predicted b"})
    ('a predicted b', 'a')
    """
    places = [place for place in range(len(of)) if of.startswith(_SIGN, place)]
    splits = [(of[:place], of[place + len(_SIGN) :]) for place in places]
    likely = [each for each in splits if set(each) <= classes] or splits
    return likely[0] if len(likely) == 1 else None


def _line(
    true: str,
    classes: Sequence[str],
    cells: dict[Pair, MetricRecord],
    told: dict[Pair, MetricRecord],
    say: Callable[[object], str],
) -> tuple[Cell, ...]:
    values = {each: told[true, each].value for each in classes if (true, each) in told}
    largest = max((value for value in values.values() if is_finite(value)), default=0.0)
    return tuple(
        Cell(say(values[each]), _shade(values[each], largest), each == true)
        if each in values
        else Cell("" if (true, each) in cells else "–", 0.0, False)
        for each in classes
    )


def _shade(value: float, largest: float) -> float:
    return round(min(max(value / largest, 0.0), 1.0), 3) if is_finite(value) and largest > 0 else 0.0


def _mistakes(cells: dict[Pair, MetricRecord], say: Callable[[object], str]) -> tuple[tuple[str, str, str, str], ...]:
    wrong = [(place, metric) for place, metric in cells.items() if place[0] != place[1] and is_finite(metric.value)]
    largest = sorted(wrong, key=lambda each: -each[1].value)[:20]
    return tuple((*place, say(metric.value), _between(metric, say)) for place, metric in largest)


def _between(metric: MetricRecord, say: Callable[[object], str]) -> str:
    return "none: exact" if metric.exact else words.between(*metric.noise, say)


def _room(cells: dict[Pair, MetricRecord], say: Callable[[object], str]) -> str:
    """The widest noise interval of any cell, as text; "" where all are exact."""
    noisy = [metric for metric in cells.values() if not metric.exact and all(map(is_finite, metric.noise))]
    widest = max(noisy, key=lambda metric: abs(metric.noise[1] / 2 - metric.noise[0] / 2), default=None)
    return "" if widest is None else _between(widest, say)
