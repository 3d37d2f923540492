"""Whether the model is worse for a group: the gap, whether it is no chance, in whose favour, and errors by class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from dpilot.records import MetricRecord
from dpilot.report import words
from dpilot.report.kinds import AGAINST_OTHERS, key
from dpilot.report.verdict import UNTOLD, WIDEST

__all__ = ["NO_GROUPS", "GroupCell", "GroupErrors", "GroupRow", "GroupView", "groups"]

UNNAMED: Final = "group"
"""What groups are called that their owner gave no name."""
NO_GROUPS: Final = (
    "No groups were compared: no protected column was named, so whether it is worse for a group cannot be told from "
    "this page."
)


class GroupCell(NamedTuple):
    """A figure of a group less that of all others, its interval for the population, and whether it is no chance."""

    value: str
    between: str
    verdict: str
    real: bool


class GroupRow(NamedTuple):
    """One group against all others, in words; ``between``: the interval of how often the model is right for it."""

    name: str
    value: str
    cells: tuple[GroupCell, ...]
    between: str = ""


class GroupErrors(NamedTuple):
    """The share of wrong predictions among a group's records of each class, with the interval for the population."""

    name: str
    cells: tuple[tuple[str, str], ...]


class GroupView(NamedTuple):
    """What is known of the groups: sentences first, then a row a group, and errors within each class."""

    sentences: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[GroupRow, ...]
    classes: tuple[str, ...]
    errors: tuple[GroupErrors, ...]
    second: str = ""
    sided: bool = False
    """Whether a group is predicted ``second``, the class in question, more or less often, by more than chance."""

    worse: tuple[str, ...] = ()
    """For whom mistakes, or misses of the class in question, are more frequent, by more than chance."""

    @property
    def attributes(self) -> list[str]:
        """What the groups are of, where that has a name."""
        found = dict.fromkeys(row.name.split(" = ")[0] for row in self.rows)
        return [name for name in found if name != UNNAMED]

    @property
    def real(self) -> bool:
        """Whether any difference is."""
        return any(cell.real for row in self.rows for cell in row.cells)


def groups(metrics: Sequence[MetricRecord]) -> GroupView | None:
    """The groups of a record; None where none were compared.

    >>> gap = MetricRecord("group against others", "sex = F", 0.11, (0.1, 0.12), (0.09, 0.13))
    >>> groups([gap]).sentences[0]
    'Mistakes are less frequent for sex = F than for all others: by 11 points (9 to 13).'
    """
    found: dict[str, dict[str, MetricRecord]] = {}
    for each in metrics:
        found.setdefault(key(each.name), {})[each.of.rpartition(", class ")[0] or each.of] = each
    residuals = found.get("group_mean_residual", {})
    against: dict[str, dict[str, MetricRecord]] = {name: found[name] for name in AGAINST_OTHERS if name in found}
    if not against and not residuals:
        return None
    classes, errors = _errors([each for each in metrics if key(each.name) == "group_recall"])
    second = _second(against)
    if not against:
        rows = tuple(GroupRow(of, "", (_residual_cell(each),)) for of, each in residuals.items())
        return GroupView(_residual_sentences(residuals), ("Too high by",), rows, classes, errors)
    rates, names = found.get("group_accuracy", {}), list(next(iter(against.values())))
    rows = tuple(
        GroupRow(
            of,
            _rate(rates.get(of)),
            tuple(_cell(each[of]) for each in against.values() if of in each),
            words.between(*rates[of].sampling, words.percent) if of in rates else "",
        )
        for of in names
    )
    titles = {
        "group_against_others": "Right more often by",
        "predicted_against_others": f"Predicted {second} more often by",
        "true_positives_against_others": f"Predicted {second} more often, of those truly {second}, by",
        "false_positives_against_others": f"Predicted {second} more often, of those truly not {second}, by",
    }
    sided = any(map(_is_real, against.get("predicted_against_others", {}).values()))
    said = (*_sentences(against, second, _few(rates)), *_apart(errors))
    worse = tuple(_worse(against, second))
    return GroupView(said, tuple(titles[name] for name in against), rows, classes, errors, second, sided, worse)


def _worse(against: Mapping[str, Mapping[str, MetricRecord]], second: str) -> Iterator[str]:
    said = {"group_against_others": "it is right less often for {}",
            "true_positives_against_others": f"of those truly {second}, it misses more of {{}}"}  # fmt: skip
    for name, words_ in said.items():
        names = [of for of, gap in against.get(name, {}).items() if _is_real(gap) and gap.value < 0]
        if names:
            yield words_.format(" and ".join(names))


def _second(against: Mapping[str, Mapping[str, MetricRecord]]) -> str:
    """The class that the differences in predictions are of."""
    first = next(iter(against.get("predicted_against_others", {}).values()), None)
    return "" if first is None else f"“{first.of.rpartition(', class ')[2]}”"


def _rate(rate: MetricRecord | None) -> str:
    if rate is None:
        return ""
    low, high = rate.sampling
    return UNTOLD if high - low > WIDEST else words.percent(rate.value)


def _is_real(gap: MetricRecord) -> bool:
    return gap.sampling[0] > 0 or gap.sampling[1] < 0


def _cell(gap: MetricRecord) -> GroupCell:
    wide, real = gap.sampling[1] - gap.sampling[0] > WIDEST, _is_real(gap)
    value = UNTOLD if wide and not real else f"{_points(gap.value)} points"
    return GroupCell(value, _between(gap), "more than chance" if real else "may be chance", real)


def _residual_cell(residual: MetricRecord) -> GroupCell:
    low, high = residual.sampling
    said = "more than chance: too high" if low > 0 else "more than chance: too low" if high < 0 else "may be chance"
    return GroupCell(words.number(residual.value), words.between(low, high, words.number), said, _is_real(residual))


def _residual_sentences(residuals: Mapping[str, MetricRecord]) -> tuple[str, ...]:
    found = []
    for of, each in residuals.items():
        low, high = each.sampling
        if _is_real(each):
            side, size = ("high", low) if low > 0 else ("low", -high)
            found.append(
                f"{of}: predictions are too {side} on average, by {words.number(abs(each.value))} (at least "
                f"{words.number(size)})."
            )
    return tuple(found) or ("No difference between groups can be told from chance.",)


def _sentences(
    against: Mapping[str, Mapping[str, MetricRecord]], second: str, few: Mapping[str, list[str]]
) -> tuple[str, ...]:
    """Each real difference, by attribute; of an attribute without one, what noise leaves open; groups too small."""
    attributes: dict[str, list[str]] = {}
    for each in against.values():
        for of in each:
            attributes.setdefault(of.split(" = ")[0], [])
    for name, gaps in against.items():
        for of, gap in _once(gaps).items():
            attributes[of.split(" = ")[0]].append(_real_gap(name, of, gap, second))
    found = []
    for attribute, said in attributes.items():
        found += (
            [*said, *_not_found(attribute, against, second), *_open(attribute, against, few.get(attribute, []))]
            if said
            else [_nothing_told(attribute, against, few.get(attribute, []))]
        )
        if few.get(attribute):
            found.append(
                f"Too few records to tell: {', '.join(few[attribute])}. So gaps over all groups{_of(attribute)} cannot "
                "be told either."
            )
    return tuple(found)


def _few(rates: Mapping[str, MetricRecord]) -> dict[str, list[str]]:
    """The groups whose accuracy cannot be told, by attribute."""
    found: dict[str, list[str]] = {}
    for of, rate in rates.items():
        if _rate(rate) == UNTOLD:
            found.setdefault(of.split(" = ")[0], []).append(of)
    return found


def _not_found(attribute: str, against: Mapping[str, Mapping[str, MetricRecord]], second: str) -> tuple[str, ...]:
    """Of those truly of the class, that no group can be said to be missed more often: what is left out misleads."""
    gaps = {of: gap for of, gap in against.get("true_positives_against_others", {}).items()
            if of.split(" = ")[0] == attribute}  # fmt: skip
    if not gaps or any(map(_is_real, gaps.values())):
        return ()
    head = f"Of those truly {second}, whether any group{_of(attribute)} is found less often cannot be told"
    if len(gaps) != 2:
        return (f"{head}.",)
    of, gap = min(gaps.items(), key=lambda each: each[1].value)
    if gap.sampling[1] - gap.sampling[0] > WIDEST:
        return (f"{head}.",)
    return (f"{head}: {of} {_points(-gap.value)} points less, but the truth lies from {_less(gap)}.",)


def _open(attribute: str, against: Mapping[str, Mapping[str, MetricRecord]], few: Sequence[str]) -> tuple[str, ...]:
    """The groups of which no difference is real, where others have some: silence would look like a verdict."""
    gaps = [(of, gap) for each in against.values() for of, gap in each.items() if of.split(" = ")[0] == attribute]
    real = {of for of, gap in gaps if _is_real(gap)}
    names = [of for of in dict.fromkeys(of for of, _ in gaps) if of not in real and of not in few]
    return (f"Of {' and '.join(names)} no difference from all others can be told from chance.",) if names else ()


def _of(attribute: str) -> str:
    return "" if attribute == UNNAMED else f" of {attribute}"


def _less(gap: MetricRecord) -> str:
    low, high = gap.sampling
    return f"{_points(-low)} points less to {_points(high)} points more"


def _apart(errors: Sequence[GroupErrors]) -> tuple[str, ...]:
    """Where no class can be told for two groups: they may differ because they hold different classes."""
    if len(errors) < 2 or not errors[0].cells:
        return ()
    told = [{place for place, (value, _) in enumerate(row.cells) if value not in ("", UNTOLD)} for row in errors]
    if sum(map(bool, told)) < 2 or any(a & b for place, a in enumerate(told) for b in told[:place]):
        return ()
    return (
        "In no class can two groups be compared: as far as can be told they hold different classes, and a difference "
        "between groups may be one between classes.",
    )


def _nothing_told(attribute: str, against: Mapping[str, Mapping[str, MetricRecord]], few: Sequence[str]) -> str:
    rooms = {
        of: max(map(abs, gap.sampling)) for of, gap in next(iter(against.values())).items()
        if of.split(" = ")[0] == attribute
    }  # fmt: skip
    told = [of for of in rooms if of not in few] or list(rooms)
    widest = max(told, key=lambda of: rooms[of], default="")
    return (
        f"{attribute}: no difference can be told from chance. That is no proof that there is none: noise leaves "
        f"open up to {_points(rooms[widest])} points in how often a prediction is right ({widest})."
    )


def _once(gaps: Mapping[str, MetricRecord]) -> dict[str, MetricRecord]:
    """The real ones; of two groups of one attribute that with less: the other says the same again."""
    attributes = [of.split(" = ")[0] for of in gaps]
    return {
        of: gap
        for of, gap in gaps.items()
        if _is_real(gap) and (attributes.count(of.split(" = ")[0]) != 2 or gap.value < 0)
    }


def _real_gap(name: str, of: str, gap: MetricRecord, second: str) -> str:
    more, fewer = ("more", "less") if gap.value > 0 else ("less", "more")
    low, high = sorted(abs(end) for end in gap.sampling)
    found, many = ("found", "more") if gap.value > 0 else ("missed", "fewer")
    said = {
        "group_against_others": f"Mistakes are {fewer} frequent for {of}",
        "predicted_against_others": f"{second} is predicted {more} often for {of}",
        "true_positives_against_others": f"Of those truly {second}, more are {found} in {of}",
        "false_positives_against_others": f"Of those truly not {second}, {many} are wrongly predicted it in {of}",
    }
    by = f"{_points(abs(gap.value))} points ({_points(low)} to {_points(high)})"
    return f"{said[name]} than for all others: by {by}."


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
    return f"{words.between(*gap.sampling, words.percent).removesuffix(' %')} points"
