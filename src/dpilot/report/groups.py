"""Whether the model is worse for a group: a verdict for each protected column, and every group beside all others.

What is worse depends on what is good to get. Where that is declared, a group is worse off whose members wrongly get the
other class more often than all others; where it is not, both cases are told. A difference is sure where its 95 %
interval for the population, shared among the groups of the column, leaves out 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from dpilot import _validate
from dpilot.records import MetricRecord
from dpilot.report import words
from dpilot.report.kinds import AGAINST_OTHERS, key
from dpilot.report.scale import Scale
from dpilot.report.verdict import UNTOLD, WIDEST

__all__ = ["NO_GROUPS", "GroupCell", "GroupRow", "GroupTable", "GroupView", "groups"]

UNNAMED: Final = "group"
"""What groups are called that their owner gave no name."""
NO_GROUPS: Final = (
    "No groups were compared: no protected column was named, so whether it is worse for a group cannot be told from "
    "this page."
)


_LISTED: Final = 8  # groups named in a sentence
_TOO_FEW: Final = "too few records to tell whether it is worse for a group"


class GroupCell(NamedTuple):
    """How often something happens in a group, how much more than in all others, and places for a picture of that."""

    rate: str
    value: str
    between: str
    verdict: str
    side: str
    at: float | None
    ends: tuple[float, float] | None


class GroupRow(NamedTuple):
    """One group beside all others."""

    name: str
    cells: tuple[GroupCell, ...]


class GroupTable(NamedTuple):
    """The verdicts on a protected column, and its groups."""

    attribute: str
    verdicts: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[GroupRow, ...]


class GroupView(NamedTuple):
    """What is known of the groups: one answer, and a verdict and a table for each protected column.

    ``errors``: with more than two classes, the share of wrong predictions of each group's records of each class.
    ``sided``: whether what is worse depends on what is good to get.
    """

    short: str
    tables: tuple[GroupTable, ...]
    classes: tuple[str, ...]
    errors: tuple[tuple[str, tuple[str, ...]], ...]
    remark: str
    sided: bool

    @property
    def attributes(self) -> list[str]:
        """What the groups are of, where that has a name."""
        return [table.attribute for table in self.tables if table.attribute != UNNAMED]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdicts on each column, and what holds for all of them."""
        said = [line for table in self.tables for line in table.verdicts]
        return (*said, *([self.remark] if self.remark else []))


class _Gap(NamedTuple):
    """How much more of something a group has than all others, and the interval for the population."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, metric: MetricRecord, sign: int = 1) -> _Gap:
        low, high = sorted(sign * end for end in metric.sampling)
        return cls(sign * metric.value, low, high)


class _Measure(NamedTuple):
    """One thing that a group can have more of.

    ``topic`` names it, ``more`` says that a group surely has more of it; ``rates``: how much each group has, as text.
    """

    title: str
    topic: str
    more: str
    gaps: Mapping[str, _Gap]
    rates: Mapping[str, str]
    say: Callable[[object], str] = words.points
    widest: float = WIDEST

    def surely_more(self, within: Sequence[str]) -> list[str]:
        return [of for of in within if of in self.gaps and self.gaps[of].low > 0]

    def is_told(self, of: str) -> bool:
        """Whether the interval of a group's gap says something."""
        gap = self.gaps.get(of)
        return gap is not None and (gap.low > 0 or gap.high < 0 or gap.high - gap.low <= self.widest)

    def between(self, of: str) -> str:
        return words.between(self.gaps[of].low, self.gaps[of].high, self.say)

    def amounts(self, within: Sequence[str]) -> str:
        """The intervals of several groups, each with its name."""
        if len(within) == 1:
            return self.between(within[0])
        return ", ".join(f"{self.between(of)} ({_name(of)})" for of in within)


class _Measures(NamedTuple):
    """What can be worse for a group: what harms if the first outcome is good to get, if the second is; and the rest.

    ``few``: the groups with too few records to tell how often the model is right.
    """

    outcomes: tuple[str, ...]
    harms: tuple[_Measure, ...]
    besides: tuple[_Measure, ...]
    few: frozenset[str] = frozenset()

    def cases(self, good: str) -> list[tuple[str, _Measure]]:
        """What is worse for a group, by what is good to get; "" where that is known, or does not matter."""
        if not self.harms:
            return [("", self.besides[0])]
        found = list(zip(self.outcomes, self.harms, strict=True))
        return [("", harm) for name, harm in found if name == good] or found

    def columns(self, good: str) -> tuple[_Measure, ...]:
        """What the tables show, what harms first. Of numbers one side: the other is the same, turned round."""
        harms = self.harms[::-1] if (good,) == self.outcomes[-1:] else self.harms
        shown = (*harms, *self.besides) if self.besides else (self.cases(good)[-1][1],)
        return tuple(each for each in shown if each.gaps)


def groups(metrics: Sequence[MetricRecord], favourable: str = "") -> GroupView | None:
    """The groups of a record; None where none were compared. ``favourable``: the class that is good to get.

    Edge cases:
        a class that is none of the record's two (of numbers: neither "high" nor "low")    InvalidInput

    >>> gap = MetricRecord("group against others", "sex = F", -0.11, (-0.12, -0.1), (-0.13, -0.09))
    >>> groups([gap]).sentences[0]
    'sex: surely worse for F: it is wrong more often than for all others, by 9 to 13 points.'
    """
    found: dict[str, dict[str, MetricRecord]] = {}
    for each in metrics:
        found.setdefault(key(each.name), {})[each.of.rpartition(", class ")[0] or each.of] = each
    residuals = found.get("group_mean_residual", {})
    if not residuals and not any(name in found for name in AGAINST_OTHERS):
        return None
    recalls = _recalls(metrics)
    measures = _of_numbers(residuals) if residuals else _of_classes(found, recalls)
    good = favourable.strip() if measures.harms else ""
    if good:
        _validate.one_of(measures.outcomes, "It is what is good to get: see docs/report.md.", favourable=good)
    columns = measures.columns(good)
    members: dict[str, list[str]] = {}
    for of in dict.fromkeys(of for each in columns for of in each.gaps):
        members.setdefault(of.split(" = ")[0], []).append(of)
    classes = tuple(dict.fromkeys(true for cells in recalls.values() for true in cells))
    several = len(classes) > 2 or not measures.harms
    return GroupView(
        _short(measures, good, [of for within in members.values() for of in within]),
        tuple(
            GroupTable(name, _verdicts(name, within, measures, good), *_drawn(columns, within))
            for name, within in members.items()
        ),
        classes if several else (),
        tuple((of, tuple(_error(cells.get(true)) for true in classes)) for of, cells in recalls.items() if several),
        _apart(recalls),
        bool(measures.harms),
    )


def _recalls(metrics: Sequence[MetricRecord]) -> dict[str, dict[str, MetricRecord]]:
    """The share of right predictions, by group and true class."""
    found: dict[str, dict[str, MetricRecord]] = {}
    for each in metrics:
        if key(each.name) == "group_recall":
            of, _, true = each.of.rpartition(", class ")
            found.setdefault(of, {})[true] = each
    return found


def _of_classes(
    found: Mapping[str, Mapping[str, MetricRecord]], recalls: Mapping[str, Mapping[str, MetricRecord]]
) -> _Measures:
    def gaps(name: str, sign: int = 1) -> dict[str, _Gap]:
        return {of: _Gap.of(each, sign) for of, each in found.get(name, {}).items()}

    def harm(true: str, predicted: str, gaps: Mapping[str, _Gap]) -> _Measure:
        rates = {of: _error(cells.get(true)) for of, cells in recalls.items()}
        return _Measure(
            f"Truly “{true}”, predicted “{predicted}”",
            f"how often those truly “{true}” are wrongly predicted “{predicted}”",
            f"of those truly “{true}”, more are wrongly predicted “{predicted}” than of all others",
            gaps,
            rates,
        )

    wrong = {of: _error(rate) for of, rate in found.get("group_accuracy", {}).items()}
    few = frozenset(of for of, rate in wrong.items() if rate == UNTOLD)
    share = next(iter(found.get("predicted_against_others", {}).values()), None)
    more = f"it is wrong more often than for all others{'' if share is None else ', both kinds of mistakes together'}"
    mistakes = _Measure("Wrong, in all", "how often it is wrong", more, gaps("group_against_others", -1), wrong)
    if share is None:
        return _Measures((), (), (mistakes,), few)
    second = share.of.rpartition(", class ")[2]
    first = next((true for cells in recalls.values() for true in cells if true != second), f"not {second}")
    harms = (
        harm(first, second, gaps("false_positives_against_others")),
        harm(second, first, gaps("true_positives_against_others", -1)),
    )
    topic, more = f"how often “{second}” is predicted", f"“{second}” is predicted more often, rightly or wrongly"
    shares = _Measure(f"Predicted “{second}”, right or wrong", topic, more, gaps("predicted_against_others"), {})
    return _Measures((first, second), harms, (mistakes, shares), few)


def _of_numbers(residuals: Mapping[str, MetricRecord]) -> _Measures:
    def harm(side: str, sign: int) -> _Measure:
        gaps = {of: _Gap.of(each, sign) for of, each in residuals.items()}
        more = f"predictions are too {side} on average"
        return _Measure(f"Too {side} by, on average", f"how far {more}", more, gaps, {}, words.number, math.inf)

    return _Measures(("high", "low"), (harm("low", -1), harm("high", 1)), ())


def _short(measures: _Measures, good: str, members: Sequence[str]) -> str:
    """The answer in one sentence."""
    cases = [harm.surely_more(members) for _, harm in measures.cases(good)]
    if any(cases) and all(each == cases[0] for each in cases):
        return f"Yes, surely: for {words.listed(cases[0])}{', whatever is good to get' if len(cases) > 1 else ''}."
    if any(cases):
        return "Yes, surely; for whom depends on what is good to get, which was not filled in."
    wrong = measures.besides[0].surely_more(members) if measures.besides else []
    if not wrong:
        return "Not surely: no difference that is to the worse of a group is more than noise and chance may make."
    bad = "".join(f"being wrongly predicted “{name}”" for name in measures.outcomes if name != good)
    kind = f"{bad} is" if good else "each kind of mistake alone is"
    return (
        f"Partly: mistakes in all are surely more for {words.listed(wrong)}, but {kind} not surely more for any group."
    )


def _verdicts(attribute: str, members: Sequence[str], measures: _Measures, good: str) -> tuple[str, ...]:
    """For which groups of a column it is surely worse, what else is sure, and what cannot be told."""
    told, cases = [of for of in members if of not in measures.few], measures.cases(good)
    if not told:
        return (f"{attribute}: {_TOO_FEW}.",)
    worse = any(harm.surely_more(told) for _, harm in cases)
    if len(cases) == 1:
        said = [f"{attribute}: {_case(cases[0][1], told)}."]
    elif worse:
        outcome = "“{}”" if measures.besides else "a {} prediction"
        said = [f"{attribute}, if {outcome.format(name)} is good to get: {_case(harm, told)}." for name, harm in cases]
    else:
        said = [f"{attribute}: no sure difference in {words.listed([harm.topic for _, harm in cases], 'nor in')}."]
    also: dict[str, list[str]] = {}
    for measure in measures.besides if measures.harms else ():
        more = measure.surely_more(told)
        if more:
            names = words.listed(list(map(_name, more)))
            also.setdefault(names, []).append(f"{measure.more}, by {measure.amounts(more)}")
    sure = "also sure" if worse else "but sure"
    said += [f"{attribute}, {sure}: for {names} {'; and '.join(found)}." for names, found in also.items()]
    few = [_name(of) for of in members if of in measures.few and _TOO_FEW not in said[0]]
    return (*said, *([f"{attribute}, too few records to tell: {', '.join(few)}."] if few else []))


def _case(harm: _Measure, members: Sequence[str]) -> str:
    more = harm.surely_more(members)
    if more:
        return f"surely worse for {words.listed(list(map(_name, more)))}: {harm.more}, by {harm.amounts(more)}"
    told = [of for of in members if harm.is_told(of)]
    if not told:
        return _TOO_FEW
    most = max(told, key=lambda of: harm.gaps[of].value)
    if harm.gaps[most].value <= 0:
        return "surely worse for no group"
    rates = _rates(harm, told)
    largest = (
        f"; the largest, {_round(harm, most)} for {_name(most)}, may in truth be anything from {harm.between(most)}"
        if len(told) == 2 or not rates
        else ""
    )
    return f"no sure difference in {harm.topic}{rates}{largest}"


def _rates(harm: _Measure, members: Sequence[str]) -> str:
    """How often it happens in each group, where that can be told."""
    told = [f"{_name(of)} {harm.rates[of]}" for of in members if harm.rates.get(of) not in (None, "", UNTOLD)]
    return f" ({', '.join(told)})" if 1 < len(told) <= _LISTED else ""


def _drawn(columns: Sequence[_Measure], members: Sequence[str]) -> tuple[tuple[str, ...], tuple[GroupRow, ...]]:
    """Titles and rows; all pictures share one axis with 0 in the middle."""
    ends = [abs(end) for each in columns for of in members if each.is_told(of) for end in each.gaps[of][1:]]
    reach = max(ends, default=0.0) or 1.0
    axis = Scale(-reach, reach)
    rows = tuple(GroupRow(_name(of), tuple(_cell(each, of, axis) for each in columns)) for of in members)
    return tuple(each.title for each in columns), rows


def _cell(measure: _Measure, of: str, axis: Scale) -> GroupCell:
    rate, gap = measure.rates.get(of, ""), measure.gaps.get(of)
    if gap is None:
        return GroupCell(rate, "", "", "", "", None, None)
    told, side = measure.is_told(of), "more" if gap.low > 0 else "less" if gap.high < 0 else ""
    return GroupCell(
        rate,
        f"{'+' if gap.value > 0 else ''}{_round(measure, of)}" if told else "",
        measure.between(of),
        f"surely {side}" if side else "not sure" if told else UNTOLD,
        side,
        axis.place(gap.value) if told else None,
        (axis.place(gap.low), axis.place(gap.high)),
    )


def _round(measure: _Measure, of: str) -> str:
    """A gap; of shares to a tenth of a point, as more digits would pretend."""
    value = measure.gaps[of].value
    return measure.say(round(value, 3) if measure.say is words.points else value)


def _name(of: str) -> str:
    """A group without its column."""
    return of.partition(" = ")[2] or of


def _error(rate: MetricRecord | None) -> str:
    """The share of wrong predictions."""
    if rate is None:
        return ""
    low, high = rate.sampling
    return UNTOLD if high - low > WIDEST else words.percent(1 - rate.value)


def _apart(recalls: Mapping[str, Mapping[str, MetricRecord]]) -> str:
    """Where no class can be told for two groups: they may differ because they hold different classes."""
    told = [{true for true, each in cells.items() if _error(each) != UNTOLD} for cells in recalls.values()]
    if sum(map(bool, told)) < 2 or any(a & b for place, a in enumerate(told) for b in told[:place]):
        return ""
    return (
        "In no class can two groups be compared: as far as can be told they hold different classes, and a difference "
        "between groups may be one between classes."
    )
