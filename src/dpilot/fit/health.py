"""The first release of a fit: what share of the records can be used, in all and by column, for a small price.

A category that is written wrongly in the schema makes records null, silently, since no message may depend on one
record. A noisy count says so before the rest of the budget is spent. It is a commitment of its own: a fit that stops
here costs this and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from dpilot.fit.declaration import Declaration
from dpilot.fit.source import RecordSource
from dpilot.mechanism import Draws, Noise, gaussian_event, release
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Event
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu
from dpilot.privacy.ledger import totals

__all__ = ["Health", "NoisyShare", "health_event", "health_noise", "health_share", "release_health", "split_budget"]

SHARE: Final = 0.02
"""Of epsilon, or in a ledger that adds Gaussians of the squared mu: the most that health takes."""
_LEAST: Final = SHARE / 16
_KNOWN: Final = 1 / 200  # the deviation of the usable share: no more is paid than what tells it so well

_MOST_FLAWS: Final = 4
_QUANTILE: Final = 1.96
_CERTAIN: Final = 3.3  # standard deviations between a flawless table and the limit, or it is not judged


def _percent(share: float) -> str:
    """To one decimal, as on the page.

    >>> _percent(0.9884), _percent(1.0)
    ('98.8', '100')
    """
    return f"{100 * share:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True)
class NoisyShare:
    """A released share of the records with its 95 % interval: ``what`` of ``column`` ("" for all)."""

    what: str
    column: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        value, low, high = (_percent(each) for each in (self.value, self.low, self.high))
        return f"{value} % ({low} to {high} %)"


@dataclass(frozen=True, slots=True)
class Health:
    """Noisy shares of records: ``usable`` in all, and ``flaws`` by column and kind; whether the fit stops here.

    ``judged`` says whether the noise lets one tell a flawless table from one below the limit.
    """

    usable: NoisyShare
    flaws: tuple[NoisyShare, ...]
    stop_below: float
    judged: bool

    @property
    def stopped(self) -> bool:
        """Whether the usable share is below the limit, and the noise is small enough to say so."""
        return self.judged and self.usable.value < self.stop_below

    @property
    def loud(self) -> tuple[NoisyShare, ...]:
        """Flaws that are surely there, in more than a tenth of the records."""
        return tuple(each for each in self.flaws if each.low > 0.1)

    def sentences(self) -> tuple[str, ...]:
        """What a person should read."""
        head = f"About {self.usable} of the records can be used."
        if not self.judged:
            head = f"Too few records for this budget to say how many can be used ({self.usable})."
        return (head, *(f"Column {each.column!r}: {each.what} in about {each} of the records." for each in self.loud))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON and records."""
        plain = {"stop_below": self.stop_below, "judged": self.judged, "stopped": self.stopped}
        return {"usable": asdict(self.usable), "columns": [asdict(each) for each in self.flaws], **plain}


def health_share(budget: Budget, bound: str, size: float | None) -> float:
    """What health takes of ``budget``, from declared numbers: 2 %, halved as long as the usable share stays well known.

    >>> budget = Budget(1.0, 1e-6)
    >>> health_share(budget, "gdp", 4_000), health_share(budget, "gdp", 30_000), health_share(budget, "gdp", None)
    (0.02, 0.0025, 0.02)
    """
    share = SHARE
    while size and share > _LEAST:
        health, _ = split_budget(budget, bound, share / 2)
        if math.sqrt(2) * health_noise(health) > _KNOWN * size:
            break
        share /= 2
    return share


def split_budget(budget: Budget, bound: str, share: float = SHARE) -> tuple[Budget, Budget]:
    """The budgets of health and of the rest, which add up to ``budget`` under the ledger's ``bound``.

    Under "gdp" squared mu add, rounded down so that sums in floats stay within the total; elsewhere epsilons and
    deltas do.
    """
    if bound == "gdp":
        mu, delta = gdp_mu(budget), budget.delta
        health, rest = (gdp_epsilon(mu * math.sqrt(part) * (1 - 1e-9), delta) for part in (share, 1 - share))
        return replace(budget, epsilon=health), replace(budget, epsilon=rest)
    return totals.split_budget(budget, share)


def health_noise(budget: Budget) -> float:
    """The noise multiplier of the release, which takes all of ``budget``."""
    return (1 + 1e-9) / gdp_mu(budget)


def health_event(noise_multiplier: float) -> Event:
    """What ``release_health`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def release_health(
    source: RecordSource,
    declared: Declaration,
    *,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise,
) -> Health:
    """Count usable records and flaws, with noise.

    ::

        a record adds    u to the usable ones, if it is, and, where the size is not public, u to all;
                         f min(1, c / sqrt(k)) / c to each of its k flaws, c = 2 (four flaws) or fewer
        squares          u^2 = 1/4, f^2 = 1/2; where the size is public u^2 = 1/2, f^2 = 1/4

    Guarantee:
        The joint vector moves by at most 1 when a record is added or removed: the squares add up to 1/4 + 1/4 + 1/2.
        Where the size is public it moves by at most 1 when a record becomes null, or any other: a null record has
        flaws of its own, and of two vectors that are nowhere below 0 the squares of the difference add up to no more
        than 1/2 + 2/4. What a record adds is a function of its own cells and of the schema.
    """
    columns = {column for column, _ in source.flaws}
    most = math.sqrt(min(_MOST_FLAWS, len(columns)))
    weight, flaw_weight = (math.sqrt(share) for share in ((0.5, 0.25) if declared.public_size else (0.25, 0.5)))
    sums = np.zeros(2 + len(source.flaws))
    for usable, flaws in source.inspect():
        flawed = np.sqrt(flaws.sum(axis=1))
        scale = np.minimum(1.0, most / np.maximum(flawed, 1.0)) * flaw_weight / most
        sums[0] += weight * usable.sum()
        sums[1] += 0.0 if declared.public_size else weight * usable.size
        sums[2:] += scale @ flaws
    noisy = release(sums, bound=1.0, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)
    records, of_all = noise_multiplier / weight, noise_multiplier * most / flaw_weight
    total = max(float(noisy[1]) / weight, 1.0)
    if declared.public_size or (declared.size and not declared.unit.is_record):  # rows without an id are in no unit
        total = float(declared.size or 1)
    usable_share, deviation = float(noisy[0]) / weight / total, records / total
    flawless = deviation  # of the share in a table without a flaw
    if not declared.public_size:  # both counts are noisy; the larger deviation that a smaller total would have
        deviation *= math.sqrt(1 + min(max(usable_share, 0.0), 1.0) ** 2)
        flawless = math.sqrt(2) * records / max(total - 2 * records, 1.0)
    found = zip(source.flaws, (noisy[2:] * most / flaw_weight / total).tolist(), strict=True)
    return Health(
        usable=_noisy_share("usable", "", usable_share, deviation),
        flaws=tuple(_noisy_share(what, column, value, of_all / total) for (column, what), value in found),
        stop_below=declared.options.stop_below,
        judged=bool(1 - _CERTAIN * flawless >= declared.options.stop_below),
    )


def _noisy_share(what: str, column: str, value: float, deviation: float) -> NoisyShare:
    inside = min(max(float(value), 0.0), 1.0)
    room = _QUANTILE * float(deviation)
    return NoisyShare(what, column, inside, max(inside - room, 0.0), min(inside + room, 1.0))
