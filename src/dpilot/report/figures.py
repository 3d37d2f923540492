"""Released figures grouped into families, each a table whose rows carry a dot and two whiskers on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dpilot.records import MetricRecord
from dpilot.report import words
from dpilot.report.confusion import cells_of
from dpilot.report.scale import Scale, Tick

Span = tuple[float, float]

_LEAST: Final = "noise makes it look a little lower than it is"
# name: what people call it, what it is, whether it is a share
_KNOWN: Final[dict[str, tuple[str, str, bool]]] = {
    "accuracy": ("Accuracy", "the share of held-out records that the model gets right", True),
    "share_of_the_most_common_class": (
        "Most common class",
        "the share of held-out records in the most common class: what predicting it always would get right",
        True,
    ),
    "accuracy_above_that_share": (
        "Above the most common class",
        "how far the accuracy is above that; where the interval holds 0, the model cannot be said to be better",
        True,
    ),
    "equal_opportunity_gap": (
        "Equal opportunity gap",
        "of records of the second class, the share found in the group where it is largest less that where it is "
        "smallest; 0 % is equal; noise makes it look a little larger than it is",
        True,
    ),
    "false_positive_gap": (
        "False positive gap",
        "of records of the first class, the share predicted the second in the group where it is largest less that "
        "where it is smallest; 0 % is equal; noise makes it look a little larger than it is",
        True,
    ),
    "macro": ("Mean class accuracy", "the accuracy in each class, averaged, every class counting the same", True),
    "worst_class": ("Worst class", f"the accuracy in the class where it is lowest; {_LEAST}", True),
    "worst_group": ("Worst group", f"the accuracy in the group where it is lowest; {_LEAST}", True),
    "class_accuracy": ("Accuracy by class", "the share of the records of a class that the model gets right", True),
    "group_accuracy": ("Accuracy by group", "the share of the records of a group that the model gets right", True),
    "demographic_parity": (
        "Demographic parity",
        "the share predicted the second class in the group where it is smallest, over that in the group where it is "
        f"largest; 100 % is equal; {_LEAST}",
        True,
    ),
    "selection_rate": ("Share predicted", "the share of a group for whom the class is predicted", True),
    "auc": (
        "AUC",
        "the chance that a record of the second class scores above one of the first; 0.5 is guessing",
        False,
    ),
    "log_loss": ("Log loss", "the mean surprise at the true class; lower is better", False),
    "rmse": ("Root mean squared error", "the typical size of an error, in units of the target", False),
    "mae": ("Mean absolute error", "the mean size of an error, in units of the target", False),
    "r2": ("R squared", "the share of the target's spread that the model explains", False),
}
_ALIASES: Final = {
    "macro_accuracy": "macro",
    "balanced_accuracy": "macro",
    "worst_class_accuracy": "worst_class",
    "worst_group_accuracy": "worst_group",
    "roc_auc": "auc",
}


class FigureRow(NamedTuple):
    """One figure: text for the cells, and percentages of the axis for the picture."""

    label: str
    meaning: str
    value: str
    noise: str
    sampling: str
    exact: bool
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
    """Overall shares together, then a family for each other name; cells of confusion tables are drawn elsewhere."""
    grouped: dict[str, list[MetricRecord]] = {}
    cells = set(cells_of(metrics).values())
    for metric in metrics:
        if metric not in cells:
            grouped.setdefault("" if _overall(metric) else _key(metric.name), []).append(metric)
    return tuple(_family(name, grouped[name]) for name in sorted(grouped, key=lambda name: name != ""))


def headline(metrics: Sequence[MetricRecord]) -> FigureRow | None:
    """The figure for the top of the page: the first that is of everything."""
    first = next((metric for metric in metrics if metric.of == ""), None)
    return None if first is None else _row(first, Scale(0.0, 1.0), names=True)


def _key(name: str) -> str:
    plain = str(name).lower().replace(" ", "_").replace("-", "_")
    return _ALIASES.get(plain, plain)


def _overall(metric: MetricRecord) -> bool:
    """Whether it shares the axis of the overall figures: a figure of everything, between 0 and 1 as released."""
    inside = words.is_finite(metric.value) and 0 <= metric.value <= 1
    key = _key(metric.name)
    return metric.of == "" and inside and (key in _KNOWN and (_KNOWN[key][2] or key == "auc"))


def _family(name: str, metrics: Sequence[MetricRecord]) -> Family:
    ends = (end for metric in metrics for end in (metric.value, *metric.noise, *metric.sampling))
    axis = Scale.over(ends)
    title, meaning, _ = _description(metrics[0].name) if name else ("Overall", "", True)
    share = not name or all(_description(metric.name)[2] for metric in metrics)
    ticks = axis.ticks(words.percent if share else words.number)
    return Family(title, meaning, ticks, tuple(_row(metric, axis, names=not name) for metric in metrics))


def _description(name: str) -> tuple[str, str, bool]:
    return _KNOWN.get(_key(name), (words.label(name), "", "accuracy" in str(name).lower()))


def _row(metric: MetricRecord, axis: Scale, *, names: bool) -> FigureRow:
    title, meaning, share = _description(metric.name)
    say = words.percent if share else words.number
    text = title if names or not metric.of else metric.of
    return FigureRow(
        label=text if not names or not metric.of else f"{title}: {metric.of}",
        meaning=meaning if names else "",
        value=say(metric.value),
        noise="none: exact" if metric.exact else words.between(*metric.noise, say),
        sampling=words.between(*metric.sampling, say),
        exact=metric.exact,
        at=axis.place(metric.value) if words.is_finite(metric.value) else None,
        noise_at=None if metric.exact else _place(metric.noise, axis),
        sampling_at=_place(metric.sampling, axis),
    )


def _place(span: Span, axis: Scale) -> Span | None:
    if not all(words.is_finite(end) for end in span):
        return None
    low, high = sorted(axis.place(end) for end in span)
    return low, high
