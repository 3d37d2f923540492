"""The one release that all figures of a classifier come from: counts of held-out records.

A record adds, in one joint vector of L2 norm 1::

    sqrt(1 - share)   to its cell (group, class, prediction)
    sqrt(share)       to its cell (class, bin of the score), where there are two classes

Two tables rather than one fine (group, class, bin) table: the noise of a sum grows with the number of its cells, so an
accuracy read from the fine table would be noisier by the root of the bins for each prediction and class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot import _validate
from dpilot._arrays import Floats, Indices
from dpilot.errors import InvalidInput
from dpilot.mechanism import EXACT, Draws, Noise, gaussian_event, release
from dpilot.privacy.events import Event
from dpilot.statistics.rows import real_numbers

SHARE: Final = 0.5
_ROWS: Final = 1 << 16  # counted at a time
STEP: Final = 1.0
EDGES: Final = tuple(float(1 / (1 + math.exp(-STEP * place))) for place in range(-6, 7))
"""Between the bins of the score: even steps of 1 in the log odds from -6 to 6, with probability 1/2 in the middle.

Privately trained models are overconfident: on bank marketing, credit default, law school and the Dutch census at
epsilon 1, half to four fifths of the scores lay beyond log odds of 4. Of seven layouts this one had the least error
there, noise and binning together (0.3 to 2.4 points of area at 2,000 to 6,000 held-out records).
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """What is counted: the declared names of groups (one for "no attribute") and classes."""

    classes: tuple[str, ...]
    groups: tuple[str, ...] = ("",)
    attribute: str = ""

    def __post_init__(self) -> None:
        for name in ("classes", "groups"):
            if not getattr(self, name) or len(set(getattr(self, name))) < len(getattr(self, name)):
                _validate.refuse(name, getattr(self, name), "one name or more, all different")

    @property
    def has_scores(self) -> bool:
        """Whether there is a score to rank by: that of the second of two classes."""
        return len(self.classes) == 2

    @property
    def share(self) -> float:
        """The part of the squared sensitivity that the score's table takes."""
        return SHARE if self.has_scores else 0.0


@dataclass(frozen=True, slots=True)
class Scored:
    """Held-out records as a model sees them: true class, group and the probability of each class.

    A record with anything that is not finite, or a code that is none of the declared, is the null record.
    """

    target: Floats
    probabilities: Any  # (records, classes), in memory or on disk
    group: Floats | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of held-out records, noisy or exact, with the standard deviation of the noise in a cell of each table."""

    layout: Layout
    predictions: Floats
    deviation: float
    scores: Floats | None = None
    score_deviation: float = 0.0

    @property
    def exact(self) -> bool:
        return self.deviation == 0


def counts_event(noise_multiplier: float) -> Event:
    """What ``noisy_counts`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def noisy_counts(
    scored: Scored, layout: Layout, *, noise_multiplier: float, receipt: Draws, noise: Noise = EXACT
) -> Counts:
    """The counts that may be shown: both tables in one release.

    Guarantee:
        That of ``noisy_tables``.

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> scored = Scored(np.ones(1000), np.tile([0.2, 0.8], (1000, 1)))
        >>> paid = Receipt(counts_event(2.0))
        >>> counts = noisy_counts(scored, Layout(("no", "yes")), noise_multiplier=2.0, receipt=paid)
        >>> bool(abs(counts.predictions[0, 1, 1] - 1000) < 20), round(counts.deviation, 3)
        (True, 2.828)
    """
    (counts,) = noisy_tables([scored], [layout], noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)
    return counts


def noisy_tables(
    scored: Sequence[Scored],
    layouts: Sequence[Layout],
    *,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise = EXACT,
) -> tuple[Counts, ...]:
    """The counts by each of k attributes, of the same records and classes: all tables in one release.

    Guarantee:
        One record adds sqrt((1 - share) / k) to a cell of each of the k tables, and sqrt(share) to one of the score's:
        in squared L2 the joint vector moves by (1 - share) + share = 1. A Gaussian of ``noise_multiplier``.

    Edge cases:
        One table of all attributes crossed would have marginals noisier by the root of the product of the other
        attributes' groups, which is never less than the root of k: tables of their own are never worse.
    """
    share, tables = layouts[0].share, [_tables(each, layout) for each, layout in zip(scored, layouts, strict=True)]
    weight, score_weight = math.sqrt((1 - share) / len(layouts)), math.sqrt(share)
    scores = tables[0][1]
    vector = [
        *(predictions * weight for predictions, _ in tables),
        *([] if scores is None else [scores * score_weight]),
    ]
    bound = math.sqrt((1 - share) + share)
    noisy = release(vector, bound=bound, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)
    ranked = None if scores is None else noisy[-1] / score_weight
    deviation, score_deviation = (bound * noise_multiplier / each if each else 0.0 for each in (weight, score_weight))
    return tuple(
        Counts(layout, table / weight, deviation, ranked, score_deviation)
        for layout, table in zip(layouts, noisy, strict=False)
    )


def pool(counts: Sequence[Counts]) -> Counts:
    """The counts of all records, from the tables of several attributes: the mean of what each adds up to.

    ::

        a cell of all records is the sum of g_j noisy ones in table j, of variance s^2 g_j: weighted by 1 / g_j, the
        mean has the least variance, s^2 / (1 / g_1 + ... + 1 / g_k)
    """
    first = counts[0]
    weights = [1 / each.predictions.shape[0] for each in counts]
    sums = [each.predictions.sum(axis=0, keepdims=True) for each in counts]
    predictions = sum(weight * table for weight, table in zip(weights, sums, strict=True)) / sum(weights)
    deviation = first.deviation / math.sqrt(sum(weights))
    return Counts(Layout(first.layout.classes), np.asarray(predictions), deviation, first.scores, first.score_deviation)


def exact_counts(scored: Scored, layout: Layout) -> Counts:
    """The counts themselves, of every score that occurs: for records that are declared public, and no others."""
    predictions, _ = _tables(scored, layout)
    _, target, probabilities = _valid(scored, layout)
    scores = np.stack(by_score(probabilities[:, 1], target)) if layout.has_scores else None
    return Counts(layout, predictions, 0.0, scores, 0.0)


def by_score(scores: Floats, positive: Floats) -> tuple[Floats, Floats]:
    """How many records of each of two classes have each score that occurs, in the order of the scores."""
    found, places = np.unique(scores, return_inverse=True)
    first, second = (np.bincount(places[positive == which], minlength=found.size) for which in (0.0, 1.0))
    return first.astype(np.float64), second.astype(np.float64)


def _tables(scored: Scored, layout: Layout, rows: int = _ROWS) -> tuple[Floats, Floats | None]:
    """Both tables: whole numbers, so that it does not matter how many records are counted at a time."""
    count, classes = len(scored.target), len(layout.classes)
    shape = len(layout.groups), classes, classes
    predictions, scores = np.zeros(shape), np.zeros((2, len(EDGES) + 1))
    for start in range(0, max(count, 1), rows):
        group, target, probabilities = _valid(scored, layout, slice(start, start + rows))
        places = group.astype(np.int64), target.astype(np.int64), np.argmax(probabilities, axis=1)
        predictions += _count_table(places, shape)
        if layout.has_scores:
            bins = np.searchsorted(EDGES, probabilities[:, 1], side="right")
            scores += _count_table((places[1], bins), scores.shape)
    return predictions, scores if layout.has_scores else None


def _valid(scored: Scored, layout: Layout, rows: slice = slice(None)) -> tuple[Floats, Floats, Floats]:
    """Group, class and probabilities of those records among ``rows`` that are not null."""
    count, others = len(scored.target), [each for each in (scored.probabilities, scored.group) if each is not None]
    target = real_numbers(scored.target[rows], "targets")
    group = np.zeros_like(target) if scored.group is None else real_numbers(scored.group[rows], "groups")
    probabilities = real_numbers(scored.probabilities[rows], "probabilities")
    shape = (target.size, len(layout.classes))
    if any(len(each) != count for each in others) or probabilities.shape != shape or group.shape != target.shape:
        raise InvalidInput(  # how many there are is protected
            f"probabilities are of {probabilities.shape[1:]} classes, or not as many as targets and groups: expected "
            f"one of each record for each of {len(layout.classes)} classes, and one group."
        )
    kept = _is_code(target, len(layout.classes)) & _is_code(group, len(layout.groups))
    kept &= np.isfinite(probabilities).all(axis=1)
    return group[kept], target[kept], probabilities[kept]


def _is_code(values: Floats, count: int) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        return np.asarray((values >= 0) & (values < count) & (values == np.floor(values)))


def _count_table(places: tuple[Indices, ...], shape: tuple[int, ...]) -> Floats:
    flat = np.ravel_multi_index(places, shape)
    return np.bincount(flat, minlength=math.prod(shape)).astype(np.float64).reshape(shape)
