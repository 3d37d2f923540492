"""What a fit buys from all records before it trains: their number and the bounds of columns, where not declared."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from dpilot.data import bounds
from dpilot.data.schema import Schema
from dpilot.fit.declaration import Declaration
from dpilot.fit.source import RecordSource
from dpilot.mechanism import Noise
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Event
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu
from dpilot.privacy.ledger import Committed, Stage
from dpilot.statistics import count, count_event

__all__ = ["BOUNDS", "SIZE", "Purchases"]

SIZE: Final = "size"
BOUNDS: Final = "bounds"
_SIZE_SHARE: Final = 0.005


@dataclass(frozen=True, slots=True)
class Purchases:
    """The noise multiplier of each purchase, None for what is declared; ``share`` is what they take of mu^2.

    A Gaussian of multiplier s costs 1 / s^2 of the squared mu.
    """

    schema: Schema  # of the features alone
    size_noise: float | None
    bounds_noise: float | None
    share: float

    @classmethod
    def plan(cls, declared: Declaration, budget: Budget, *, bounds_too: bool = True) -> Purchases:
        """What has to be bought within ``budget``; not the bounds, where the learner finds them itself."""
        schema, mu = declared.schema.inputs_only(), gdp_mu(budget)
        size = _SIZE_SHARE if declared.size is None else 0.0
        limits = bounds.SHARE if bounds_too and schema.to_buy else 0.0
        noises = [1 / (mu * math.sqrt(share)) if share else None for share in (size, limits)]
        return cls(schema, noises[0], noises[1], size + limits)

    @property
    def events(self) -> dict[str, Event]:
        """What the purchases cost all records, in the order they are made."""
        events = {} if self.size_noise is None else {SIZE: count_event(self.size_noise)}
        if self.bounds_noise is None:
            return events
        return {**events, BOUNDS: bounds.buy_event(self.schema, self.bounds_noise)}

    @property
    def reasons(self) -> tuple[str, ...]:
        """What they take, in a sentence; none where nothing is bought."""
        return (f"{self.share:.1%} of mu^2 buys the {' and the '.join(self.events)}.",) if self.events else ()

    @property
    def stages(self) -> list[Stage]:
        return [Stage(name, event) for name, event in self.events.items()]

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
