"""What a fit buys before it trains: number of records and bounds of columns, where not declared, and class counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from dpilot._arrays import Floats
from dpilot.data import bounds
from dpilot.data.rows_per_unit import buy_rows_per_unit, rows_per_unit_event
from dpilot.data.schema import Schema
from dpilot.fit.declaration import Declaration
from dpilot.fit.on_disk import RecordsOnDisk
from dpilot.fit.population import TRAIN, Parts, RecordsByUnit
from dpilot.fit.source import RecordSource
from dpilot.mechanism import Noise
from dpilot.noise import KeyedNoise
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Event
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu
from dpilot.privacy.ledger import Committed, Stage
from dpilot.statistics import count, count_event, table, table_event

__all__ = ["BOUNDS", "COUNTS", "ROWS", "SIZE", "Purchases"]

SIZE: Final = "size"
ROWS: Final = "rows per unit"
BOUNDS: Final = "bounds"
COUNTS: Final = "class counts"
_MANY: Final = 100  # columns whose bounds are bought
_SIZE_SHARE: Final = 0.005
_ROWS_SHARE: Final = 0.005
_COUNTS_SHARE: Final = 0.01
"""At epsilon 1 and delta 1e-6 noise of about 45 records: a tenth of a class of 1 % among 45,000."""


@dataclass(frozen=True, slots=True)
class Purchases:
    """The noise multiplier of each purchase, None for what is declared; ``share`` is what they take of mu^2.

    A Gaussian of multiplier s costs 1 / s^2 of the squared mu.
    """

    schema: Schema  # of the features alone
    size_noise: float | None
    bounds_noise: float | None
    share: float
    counts_noise: float | None = None
    rows_noise: float | None = None

    @classmethod
    def plan(cls, declared: Declaration, budget: Budget, *, bounds_too: bool = True) -> Purchases:
        """What has to be bought within ``budget``; not the bounds, where the learner finds them itself."""
        schema, mu = declared.schema.inputs_only(), gdp_mu(budget)
        size = _SIZE_SHARE if declared.size is None else 0.0
        limits = bounds.SHARE if bounds_too and schema.to_buy else 0.0
        counts = _COUNTS_SHARE if declared.options.buys_counts else 0.0
        rows = _ROWS_SHARE if declared.buys_rows else 0.0
        noises = [1 / (mu * math.sqrt(share)) if share else None for share in (size, limits, counts, rows)]
        return cls(schema, noises[0], noises[1], size + limits + counts + rows, *noises[2:])

    @property
    def events(self) -> dict[str, Event]:
        """What the purchases cost a record of the training part, in the order they are made."""
        events = {} if self.size_noise is None else {SIZE: count_event(self.size_noise)}
        if self.rows_noise is not None:
            events[ROWS] = rows_per_unit_event(self.rows_noise)
        if self.bounds_noise is not None:
            events[BOUNDS] = bounds.buy_event(self.schema, self.bounds_noise)
        if self.counts_noise is not None:
            events[COUNTS] = table_event(self.counts_noise)
        return events

    @property
    def reasons(self) -> tuple[str, ...]:
        """What they take, in a sentence; none where nothing is bought."""
        said = [f"{self.share:.1%} of the budget buys the {' and the '.join(self.events)}."] if self.events else []
        if self.bounds_noise is not None and len(self.schema.to_buy) > _MANY:
            said.append(
                f"{len(self.schema.to_buy):,} columns share what their bounds cost, so each is known badly: where they "
                'are one embedding, declare one vector of them (type = "vector" with columns), or rows="unit", which '
                "need no bounds."
            )
        return tuple(said)

    def stages(self, split: str) -> list[Stage]:
        """Those on all records, and the class counts on the part "train" of ``split``."""
        part = {COUNTS: (TRAIN, split)}
        return [Stage(name, event, *part.get(name, ())) for name, event in self.events.items()]

    def rest(self, budget: Budget) -> Budget:
        """What the purchases leave of ``budget`` for Gaussians on a part."""
        mu = gdp_mu(budget) * math.sqrt(1 - self.share) * (1 - 1e-9)
        return replace(budget, epsilon=gdp_epsilon(mu, budget.delta))

    def buy_size(self, source: RecordSource, declared: Declaration, committed: Committed, noise: Noise) -> float:
        """The number of units to divide by, at least 1."""
        if self.size_noise is None:
            return float(declared.size or 1)
        with committed.stage(SIZE) as receipt:
            noisy = count(source.blanks(), noise_multiplier=self.size_noise, receipt=receipt, noise=noise)
        return max(noisy, 1.0)

    def buy_rows(self, records: RecordsByUnit | RecordsOnDisk, committed: Committed, noise: KeyedNoise) -> int | None:
        """How many rows of a unit count; None where it is declared."""
        if self.rows_noise is None:
            return None
        assert records.rows is not None  # only units have a cap
        with committed.stage(ROWS) as receipt:
            sizes = records.rows.sizes
            return buy_rows_per_unit(sizes, noise_multiplier=self.rows_noise, receipt=receipt, noise=noise.spawn())

    def buy_bounds(self, source: RecordSource, size: float, committed: Committed, noise: Noise) -> Schema:
        """The schema of the features with all bounds."""
        if self.bounds_noise is None:
            return self.schema
        with committed.stage(BOUNDS) as receipt:
            bought = bounds.buy(
                self.schema,
                source.frames,
                size=size,
                noise_multiplier=self.bounds_noise,
                receipt=receipt,
                noise=noise,
            )
        return self.schema.with_bounds(bought)

    def buy_counts(self, parts: Parts, classes: int, committed: Committed, noise: KeyedNoise) -> Floats | None:
        """How many units of the training part are of each class, with noise; None where it is not asked for.

        Guarantee:
            A unit is one of its rows, drawn in secret, in one cell at most: a Gaussian of ``counts_noise``.
        """
        if self.counts_noise is None:
            return None
        with committed.stage(COUNTS) as receipt:
            return table(
                parts.drawn_targets(),
                shape=(classes,),
                noise_multiplier=self.counts_noise,
                receipt=receipt,
                noise=noise.spawn(),
            )
