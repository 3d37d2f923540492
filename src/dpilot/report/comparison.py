"""Several runs beside one another: what they cost, how good they are, and in which settings they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dpilot.errors import InvalidInput
from dpilot.records import FitRecord, MetricRecord
from dpilot.report import words
from dpilot.report.curves import Chart, chart
from dpilot.report.facts import facts
from dpilot.report.kinds import key, kind
from dpilot.report.promise import Promise, promise
from dpilot.report.verdict import find_untold, value_text

__all__ = ["RunComparison", "compare"]

_SHOWN: Final = 12  # figures
_FAIR: Final = ("worst_group", "demographic_parity", "equal_opportunity_gap", "false_positive_gap", "selection_gap")
"""Figures of fairness: of the first two more is better, of gaps less."""
_HIDDEN: Final = {"versions", "head", "ledger", "epsilon", "delta", "unit", "accounting", "format", "cost", "budget"}


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Runs by name, and what differs between them."""

    runs: Mapping[str, FitRecord]

    @property
    def promises(self) -> dict[str, Promise]:
        return {name: promise(record) for name, record in self.runs.items()}

    @property
    def figures(self) -> dict[str, dict[str, MetricRecord]]:
        """The figures of everything that any run has, by their titles, and of each run that has them.

        There is room for some: those that no run can tell come last.
        """
        found: dict[str, dict[str, MetricRecord]] = {}
        for name, record in self.runs.items():
            for metric in record.metrics:
                if metric.of == "" or key(metric.name) in _FAIR:
                    title = kind(metric.name).title + (f": {metric.of}" if metric.of else "")
                    found.setdefault(title, {})[name] = metric
        untold = self._untold
        lost = {title: all(each in untold[run] for run, each in of.items()) for title, of in found.items()}
        return {title: found[title] for title in sorted(found, key=lost.__getitem__)[:_SHOWN]}

    @property
    def _untold(self) -> dict[str, frozenset[MetricRecord]]:
        return {name: find_untold(record.metrics) for name, record in self.runs.items()}

    @property
    def settings(self) -> dict[str, dict[str, str]]:
        """Declared values and plans that are not the same in all runs, as text; "" where a run has none."""
        plain = {name: _settings(record) for name, record in self.runs.items()}
        lines = dict.fromkeys(line for each in plain.values() for line in each)
        found = {line: {name: each.get(line, "") for name, each in plain.items()} for line in lines}
        return {line: values for line, values in found.items() if len(set(values.values())) > 1}

    def text(self, title: str, name: str) -> str:
        """A figure of a run, with its interval for the population; "" where it has none."""
        metric = self.figures[title].get(name)
        if metric is None:
            return ""
        say = kind(metric.name).say
        value = value_text(metric, self._untold[name], say)
        if metric.exact:
            return f"{value}, exact, on data declared public"
        return f"{value} ({words.between(*metric.sampling, say)})"

    @property
    def pareto(self) -> tuple[Chart, ...]:
        """Accuracy against epsilon, and against each figure of fairness: which runs no other beats in both."""
        first = next(iter(self.figures.values()), {})
        if not first:
            return ()
        top = kind(next(iter(first.values())).name).title
        untold = self._untold
        against = {"epsilon": {name: float(record.privacy["epsilon"]) for name, record in self.runs.items()}}
        for title, found in self.figures.items():
            if key(next(iter(found.values())).name) in _FAIR:
                told = {name: metric.value for name, metric in found.items() if metric not in untold[name]}
                against[title] = told
        drawn = []
        for across, places in against.items():
            named = {name: [(places[name], first[name].value)] for name in first if name in places}
            if len(named) > 1:
                drawn.append(chart(f"{top} against {across}", across, top, named))
        return tuple(each for each in drawn if each is not None)

    @property
    def best(self) -> tuple[str, ...]:
        """Sentences: the runs that no other run beats both in epsilon and in the first figure."""
        first = next(iter(self.figures.values()), {})
        if not first:
            return ("No figure is common to these runs: which is better cannot be told.",)
        sizes = {name: (float(self.runs[name].privacy["epsilon"]), _worth(metric)) for name, metric in first.items()}
        front = [
            name
            for name, (cost, worth) in sizes.items()
            if not any(c <= cost and w >= worth and (c, w) != (cost, worth) for c, w in sizes.values())
        ]
        title = kind(next(iter(first.values())).name).title
        said = (f"No other run has both a smaller epsilon and a better {title.lower()} than: {', '.join(front)}.",)
        names = list(first)
        overlap = len(names) > 1 and max(first[n].sampling[0] for n in names) <= min(
            first[n].sampling[1] for n in names
        )
        return (*said, f"The intervals of {title.lower()} overlap: the order may be chance.") if overlap else said

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "runs": {
                name: {
                    "epsilon": record.privacy["epsilon"],
                    "delta": record.privacy["delta"],
                    "unit": self.promises[name].unit,
                    "private": self.promises[name].private,
                    "figures": {
                        title: {"value": found[name].value, "sampling_interval": list(found[name].sampling)}
                        for title, found in self.figures.items()
                        if name in found
                    },
                }
                for name, record in self.runs.items()
            },
            "settings": self.settings,
            "best": list(self.best),
        }


def compare(runs: Mapping[str, FitRecord]) -> RunComparison:
    """Two runs or more, by the names they are shown under."""
    if len(runs) < 2:
        raise InvalidInput(f"there is {len(runs)} run to compare: expected two or more, of different names.")
    return RunComparison(dict(runs))


def rows(comparison: RunComparison) -> tuple[list[str], list[list[str]]]:
    """The comparison as one table: a column a run, which leaves room for its figures."""
    made = [
        ["epsilon", *(each.epsilon for each in comparison.promises.values())],
        ["delta", *(each.delta for each in comparison.promises.values())],
        ["unit", *(each.unit for each in comparison.promises.values())],
        *([title, *(comparison.text(title, name) for name in comparison.runs)] for title in comparison.figures),
    ]
    return ["what", *comparison.runs], made


def _settings(record: FitRecord) -> dict[str, str]:
    parts: Sequence[Mapping[str, Any]] = (record.plan, record.data, {"tuning": record.privacy.get("tuning")})
    lines = (fact for part in parts for fact in facts(part, without=tuple(_HIDDEN)).lines)
    return {fact.name: fact.value for fact in lines}


def _worth(metric: MetricRecord) -> float:
    """The figure, so that more is better: an error counts by its negative."""
    return -metric.value if kind(metric.name).form == "size" or key(metric.name) == "log_loss" else metric.value
