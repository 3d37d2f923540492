"""Whether the model is worse for a group: the gap, whether it is no chance, in whose favour, and errors by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dpilot.records import MetricRecord
from dpilot.report import words
from dpilot.report.kinds import key
from dpilot.report.verdict import UNTOLD, WIDEST

__all__ = ["NO_GROUPS", "GroupErrors", "GroupRow", "GroupView", "groups"]

NO_GROUPS = (
    "No groups were compared: no protected column was named, so whether it is worse for a group cannot be told from "
    "this page."
)


class GroupRow(NamedTuple):
    """One group against all others, in words."""

    name: str
    value: str
    gap: str
    between: str
    verdict: str
    real: bool


class GroupErrors(NamedTuple):
    """The share of wrong predictions among a group's records of each class, with the interval for the population."""

    name: str
    cells: tuple[tuple[str, str], ...]


class GroupView(NamedTuple):
    """What is known of the groups: sentences first, then a row a group, and errors within each class."""

    sentences: tuple[str, ...]
    rows: tuple[GroupRow, ...]
    classes: tuple[str, ...]
    errors: tuple[GroupErrors, ...]


def groups(metrics: Sequence[MetricRecord]) -> GroupView | None:
    """The groups of a record; None where none were compared.

    >>> gap = MetricRecord("group against others", "sex = F", 0.11, (0.1, 0.12), (0.09, 0.13))
    >>> groups([gap]).sentences[0]
    'sex = F: right 11 points more often than all others (9 to 13). The difference is real, in favour of sex = F.'
    """
    gaps = [each for each in metrics if key(each.name) == "group_against_others"]
    residuals = [each for each in metrics if key(each.name) == "group_mean_residual"]
    if not gaps and not residuals:
        return None
    rates = {each.of: each for each in metrics if key(each.name) == "group_accuracy"}
    rows = tuple(_row(gap, rates.get(gap.of)) for gap in gaps) or tuple(map(_residual_row, residuals))
    classes, errors = _errors([each for each in metrics if key(each.name) == "group_recall"])
    return GroupView(_sentences(gaps, residuals), rows, classes, errors)


def _row(gap: MetricRecord, rate: MetricRecord | None) -> GroupRow:
    low, high = gap.sampling
    wide = rate is None or rate.sampling[1] - rate.sampling[0] > WIDEST
    value = UNTOLD if wide or rate is None else words.percent(rate.value)
    said = "real: better for it" if low > 0 else "real: worse for it" if high < 0 else "may be chance"
    return GroupRow(gap.of, value, f"{_points(gap.value)} points", f"{_between(gap)} points", said, low > 0 or high < 0)


def _residual_row(residual: MetricRecord) -> GroupRow:
    low, high = residual.sampling
    said = "real: too high" if low > 0 else "real: too low" if high < 0 else "may be chance"
    between = words.between(low, high, words.number)
    return GroupRow(residual.of, "", words.number(residual.value), between, said, low > 0 or high < 0)


def _sentences(gaps: Sequence[MetricRecord], residuals: Sequence[MetricRecord]) -> tuple[str, ...]:
    real = [each for each in gaps if each.sampling[0] > 0 or each.sampling[1] < 0]
    found = [_real_gap(each) for each in _once(real, gaps)]
    for each in residuals:
        low, high = each.sampling
        if low > 0 or high < 0:
            side, size = ("high", low) if low > 0 else ("low", -high)
            found.append(
                f"{each.of}: predictions are too {side} on average, by {words.number(abs(each.value))} (at least "
                f"{words.number(size)}). The difference is real."
            )
    if found:
        return tuple(found)
    most = max((max(abs(end) for end in each.sampling) for each in gaps), default=None)
    room = (
        "" if most is None else f" It may still be as large as {_points(most)} points: that is what noise leaves open."
    )
    return (f"No difference between groups can be told from chance.{room}",)


def _once(real: Sequence[MetricRecord], gaps: Sequence[MetricRecord]) -> Sequence[MetricRecord]:
    """Of two groups of one attribute the one that is worse off: the other says the same again."""
    attributes = [each.of.split(" = ")[0] for each in gaps]
    return [each for each in real if attributes.count(each.of.split(" = ")[0]) != 2 or each.value < 0] or real


def _real_gap(gap: MetricRecord) -> str:
    more = "more" if gap.value > 0 else "less"
    favour = f"in favour of {gap.of}" if gap.value > 0 else f"to the disadvantage of {gap.of}"
    low, high = sorted(abs(end) for end in gap.sampling)
    between = f"{_points(low)} to {_points(high)}"
    size = _points(abs(gap.value))
    return f"{gap.of}: right {size} points {more} often than all others ({between}). The difference is real, {favour}."


def _errors(recalls: Sequence[MetricRecord]) -> tuple[tuple[str, ...], tuple[GroupErrors, ...]]:
    split = [(each.of.rpartition(", class "), each) for each in recalls]
    classes = tuple(dict.fromkeys(parts[2] for parts, _ in split))
    found: dict[str, dict[str, MetricRecord]] = {}
    for (name, _, true), each in split:
        found.setdefault(name, {})[true] = each
    rows = (
        GroupErrors(name, tuple(_error(cells[true]) if true in cells else ("", "") for true in classes))
        for name, cells in found.items()
    )
    return classes, tuple(rows)


def _error(recall: MetricRecord) -> tuple[str, str]:
    low, high = 1 - recall.sampling[1], 1 - recall.sampling[0]
    between = words.between(low, high, words.percent)
    return (UNTOLD if high - low > WIDEST else words.percent(1 - recall.value)), between


def _points(share: float) -> str:
    return words.percent(share).removesuffix(" %")


def _between(gap: MetricRecord) -> str:
    return words.between(*gap.sampling, words.percent).removesuffix(" %")
