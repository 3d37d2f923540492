"""Accuracy, recall and precision, figures by group: every ratio of one table of counts is free."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations

import numpy as np

from dpilot._arrays import Floats
from dpilot.metrics import interval
from dpilot.metrics.counts import Counts, pool
from dpilot.metrics.interval import Interval, Proportion, Spread
from dpilot.metrics.metric import Metric, metric
from dpilot.metrics.ranking import auc, average_precision, score_curves


def scores(counts: Counts) -> tuple[Metric, ...]:
    """Every figure that the counts hold, the overall ones first.

    Guarantee:
        Post-processing: nothing but the released counts and declared names enters, the denominators included.

    Example:
        >>> from dpilot.metrics.counts import Layout
        >>> counts = Counts(Layout(("no", "yes")), np.array([[[50.0, 10.0], [10.0, 30.0]]]), deviation=0.0)
        >>> [(each.name, each.of, round(each.value, 3)) for each in scores(counts)][:3]
        [('accuracy', '', 0.8), ('share of the most common class', '', 0.6), ('accuracy above that share', '', 0.2)]
    """
    overall = [accuracy(counts), *most_common_class(counts), macro(counts), worst_class(counts)]
    ranked = [] if counts.scores is None else [auc(counts), average_precision(counts), *score_curves(counts)]
    return (*overall, *ranked, *_fairness(counts), *recalls(counts), *precisions(counts), *confusion(counts))


def scores_by(counts: Sequence[Counts]) -> tuple[Metric, ...]:
    """Every figure of the counts by several attributes: those of all records once, then those of each attribute."""
    if len(counts) == 1:
        return scores(counts[0])
    return (*scores(pool(counts)), *(each for one in counts for each in _fairness(one, one.layout.attribute)))


def _fairness(counts: Counts, of: str = "") -> list[Metric]:
    """The figures of one attribute's groups; ``of`` names it where there are several."""
    if len(counts.layout.groups) < 2:
        return []
    found = [*group_accuracies(counts), *group_differences(counts), *group_recalls(counts), worst_group(counts, of)]
    return [*found, parity(counts), *gaps(counts), *positive_differences(counts)] if counts.layout.has_scores else found


def accuracy(counts: Counts) -> Metric:
    """The share of records whose class is predicted."""
    rate = _right(counts.predictions)
    return metric("accuracy", "", rate.value, counts.deviation, rate.interval)


def most_common_class(counts: Counts) -> tuple[Metric, Metric]:
    """The share of records in the most common class, as predicting it always would get right, and how far above it is.

    ::

        accuracy - share = (right outside the class - wrong inside it) / records

    Edge cases:
        Which class is the most common is itself read from noisy counts. The largest of noisy shares is on average too
        high; the interval of the share allows for it.
    """
    table = counts.predictions.sum(axis=0)
    groups, classes = counts.predictions.shape[0], table.shape[0]
    cells = groups * classes
    shares = [
        Proportion(float(row.sum()), float(table.sum() - row.sum()), cells, cells * (classes - 1)) for row in table
    ]
    best = int(np.argmax([share.value for share in shares]))

    def ends(spread: Spread) -> Interval:
        alone = [share.interval(spread) for share in shares]
        shared = [share.interval(spread, classes) for share in shares]
        found = max(low for low, _ in shared), max(high for _, high in alone)
        return interval.hull(shares[best].value, found)

    share = metric("share of the most common class", "", shares[best].value, counts.deviation, ends)
    right = float(np.trace(table) - table[best, best])
    wrong = float(table[best].sum() - table[best, best])
    counted = (classes - 1) * groups  # cells on either side of the difference
    margin = interval.Difference(right, wrong, float(table.sum()), counted, counted, cells * classes)
    above = metric("accuracy above that share", "", margin.value, counts.deviation, margin.interval)
    return share, above


def macro(counts: Counts) -> Metric:
    """The mean over the classes of the share that is predicted right."""
    rates = _by_class(counts)
    value = float(np.mean([rate.value for rate in rates]))
    return metric("macro accuracy", "", value, counts.deviation, lambda spread: interval.mean(rates, spread))


def worst_class(counts: Counts) -> Metric:
    """The least of the classes' accuracies.

    Edge cases:
        The least of noisy figures is on average below the least of the true ones; the interval allows for it.
    """
    return _worst("worst-class accuracy", counts, _by_class(counts))


def worst_group(counts: Counts, of: str = "") -> Metric:
    """The least of the groups' accuracies; on average too low, as the worst class's."""
    return _worst("worst-group accuracy", counts, _by_group(counts), of)


def recalls(counts: Counts) -> list[Metric]:
    """Of the records of each class, the share that is predicted right."""
    named = zip(counts.layout.classes, _by_class(counts), strict=True)
    return [metric("recall", of, rate.value, counts.deviation, rate.interval) for of, rate in named]


def precisions(counts: Counts) -> list[Metric]:
    """Of the records that are predicted each class, the share that is of it.

    Edge cases:
        a class that is never predicted, by the noisy counts    1/2, and the interval says that nothing is known
    """
    table, groups = counts.predictions.sum(axis=0), counts.predictions.shape[0]
    found = []
    for place, of in enumerate(counts.layout.classes):
        hits = float(table[place, place])
        rate = Proportion(hits, float(table[:, place].sum()) - hits, groups, groups * (len(table) - 1))
        found.append(metric("precision", of, rate.value, counts.deviation, rate.interval))
    return found


def group_accuracies(counts: Counts) -> list[Metric]:
    """The accuracy of each group of the protected attribute."""
    named = zip(counts.layout.groups, _by_group(counts), strict=True)
    attribute = counts.layout.attribute
    return [
        metric("group accuracy", f"{attribute} = {group}", rate.value, counts.deviation, rate.interval)
        for group, rate in named
    ]


def group_differences(counts: Counts) -> list[Metric]:
    """How far the accuracy of each group is above that of all other records; below 0 where it is worse.

    Groups are disjoint, so both rates are independent. The intervals share their level among the groups: one that
    leaves out 0 says that the difference is no chance, whichever group one looks at.
    """
    rates, found = _by_group(counts), []
    for place, group in enumerate(counts.layout.groups):
        others = _right(np.delete(counts.predictions, place, axis=0))
        ends = partial(interval.difference, rates[place], others, comparisons=len(rates))
        value = rates[place].value - others.value
        found.append(
            metric("group against others", f"{counts.layout.attribute} = {group}", value, counts.deviation, ends)
        )
    return found


def group_recalls(counts: Counts) -> list[Metric]:
    """Of each group's records of each class, the share that is predicted right."""
    layout, found = counts.layout, []
    for table, group in zip(counts.predictions, layout.groups, strict=True):
        for place, true in enumerate(layout.classes):
            hits = float(table[place, place])
            rate = Proportion(hits, float(table[place].sum()) - hits, 1, len(layout.classes) - 1)
            of = f"{layout.attribute} = {group}, class {true}"
            found.append(metric("group recall", of, rate.value, counts.deviation, rate.interval))
    return found


def confusion(counts: Counts) -> list[Metric]:
    """Of each true class, the share that is predicted as each class."""
    table, classes = counts.predictions.sum(axis=0), counts.layout.classes
    groups, others = counts.predictions.shape[0], len(classes) - 1
    found = []
    for place, true in enumerate(classes):
        for other, predicted in enumerate(classes):
            hits = float(table[place, other])
            rate = Proportion(hits, float(table[place].sum()) - hits, groups, groups * others)
            of = f"{true} predicted {predicted}"
            found.append(metric("confusion", of, rate.value, counts.deviation, rate.interval))
    return found


def parity(counts: Counts) -> Metric:
    """Demographic parity: the least over the greatest of the groups' shares that are predicted the second class.

    Edge cases:
        Noise pulls it down, as it does every least figure; the interval allows for it.
    """
    rates = _positive(counts)
    pairs = list(permutations(rates, 2))
    shares = [rate.value for rate in rates]
    value = min(shares) / max(shares) if max(shares) > 0 else 1.0

    def ends(spread: Spread) -> Interval:
        alone = [interval.quotient(over, under, spread) for over, under in pairs]
        shared = [interval.quotient(over, under, spread, len(pairs)) for over, under in pairs]
        return interval.hull(value, interval.lowest(alone, shared))

    return metric("demographic parity", counts.layout.attribute, value, counts.deviation, ends)


def gaps(counts: Counts) -> tuple[Metric, ...]:
    """How far apart the groups' shares predicted the second class are.

    Of records that are of the second class (equal opportunity), of those that are not (false positives), and of all.

    Edge cases:
        Noise makes a gap look larger than it is; the interval allows for it.
    """
    names = {"equal opportunity gap": [1], "false positive gap": [0], "selection gap": [0, 1]}
    return tuple(_gap(name, counts, true) for name, true in names.items())


def _gap(name: str, counts: Counts, true: list[int]) -> Metric:
    rates = [_predicted_second(table[None, true]) for table in counts.predictions]
    value = max(rate.value for rate in rates) - min(rate.value for rate in rates)

    def ends(spread: Spread) -> Interval:
        lows, highs = zip(*(rate.interval(spread, len(rates)) for rate in rates), strict=True)
        return interval.hull(value, (max(0.0, max(lows) - min(highs)), max(highs) - min(lows)))

    return metric(name, counts.layout.attribute, value, counts.deviation, ends)


def positive_differences(counts: Counts) -> list[Metric]:
    """How much more often the second class is predicted in each group than in all others: the sides of every gap.

    Of all records, of those that are of the second class, and of those that are not. Intervals as group_differences'.
    """
    layout, found = counts.layout, []
    kinds = {
        "predicted against others": [0, 1],
        "true positives against others": [1],
        "false positives against others": [0],
    }
    for name, true in kinds.items():
        for place, group in enumerate(layout.groups):
            tables = counts.predictions[[place]], np.delete(counts.predictions, place, axis=0)
            own, others = (_predicted_second(each[:, true]) for each in tables)
            ends = partial(interval.difference, own, others, comparisons=len(layout.groups))
            of = f"{layout.attribute} = {group}, class {layout.classes[1]}"
            found.append(metric(name, of, own.value - others.value, counts.deviation, ends))
    return found


def _predicted_second(table: Floats) -> Proportion:
    """The share predicted the second of two classes in a table of (groups, classes, predictions)."""
    cells = table.shape[0] * table.shape[1]
    return Proportion(float(table[:, :, 1].sum()), float(table[:, :, 0].sum()), cells, cells)


def _worst(name: str, counts: Counts, rates: list[Proportion], of: str = "") -> Metric:
    value = min(rate.value for rate in rates)

    def ends(spread: Spread) -> Interval:
        alone = [rate.interval(spread) for rate in rates]
        shared = [rate.interval(spread, len(rates)) for rate in rates]
        return interval.hull(value, interval.lowest(alone, shared))

    return metric(name, of, value, counts.deviation, ends)


def _by_class(counts: Counts) -> list[Proportion]:
    table = counts.predictions
    return [_right(table[:, [place]], place) for place in range(table.shape[1])]


def _by_group(counts: Counts) -> list[Proportion]:
    return [_right(table[None]) for table in counts.predictions]


def _positive(counts: Counts) -> list[Proportion]:
    """Of each group, the share that is predicted the second class."""
    return [_predicted_second(table[None]) for table in counts.predictions]


def _right(table: Floats, first: int = 0) -> Proportion:
    """Right against wrong in a table of (groups, classes from ``first`` on, predictions)."""
    groups, classes, predictions = table.shape
    places = np.arange(classes)
    right = float(table[:, places, places + first].sum())
    return Proportion(right, float(table.sum()) - right, groups * classes, groups * classes * (predictions - 1))
