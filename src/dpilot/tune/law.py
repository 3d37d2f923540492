"""The fitted law r(epsilon): how far a run should walk at each budget. Paid for once; predicting from it is free."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu

__all__ = ["VARIABLES", "Prediction", "ScalingLaw"]

VARIABLES: Final = ("epsilon", "mu")
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Prediction:
    """r at one epsilon, and a sentence for every guard that had to step in."""

    r: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """A polynomial of ``degree`` through ``points`` (epsilon, r), in epsilon or in mu, kept within [low, high].

    ::

        degree d >= 1   r(x) = a_0 + a_1 x + ... + a_d x^d, least squares in the points
        degree 0        r(x) = c x, c the geometric mean of r_i / x_i: proportional, one point is enough

    Guarantee:
        Points were released, so predictions are free, at every epsilon and as often as one likes. No prediction is
        negative, infinite or outside [low, high], whatever the points are.

    Edge cases:
        fewer points than degree + 1              the highest degree that they allow
        falling law, or one that is not positive  proportional instead: a larger budget affords a longer walk
        below the smallest or far above           extrapolated by the same law, then clipped to [low, high]
        no point at all                           the constant ``fallback``

    Example:
        >>> law = ScalingLaw(points=((0.1, 10.0), (0.2, 20.0)), low=1.0, high=500.0, fallback=30.0)
        >>> round(law.predict(0.88), 6)
        88.0
        >>> law.explain(8.0).notes
        ('r = 800 at epsilon 8 lies above the grid: 500, its end, is used.',)
        >>> ScalingLaw.from_json(law.to_json()) == law
        True

    Reference:
        Panda et al. 2024, section 4.2 (Taylor polynomial of r) and Table 15 (degree 2).
    """

    points: tuple[tuple[float, float], ...]
    low: float
    high: float
    fallback: float
    degree: int = 1
    variable: str = "epsilon"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        _validate.one_of(VARIABLES, variable=self.variable)
        _validate.count(least=0, degree=self.degree)
        points = tuple((_validate.positive(epsilon=x), _validate.positive(r=r)) for x, r in self.points)
        if len({x for x, _ in points}) != len(points):
            raise InvalidInput(f"points are {points}: expected one r for each epsilon.")
        if not 0 < self.low <= self.fallback <= self.high < math.inf:
            raise InvalidInput(f"low, fallback, high are {self.low}, {self.fallback}, {self.high}: expected an order.")
        _validate.open_unit(delta=self.delta)
        object.__setattr__(self, "points", points)

    def predict(self, epsilon: float) -> float:
        """r at ``epsilon``; free."""
        return self.explain(epsilon).r

    def explain(self, epsilon: float) -> Prediction:
        """r at ``epsilon``, and which guards stepped in."""
        epsilon = _validate.positive(epsilon=epsilon)
        if not self.points:
            return Prediction(self.fallback, (f"no trial could be ranked: the data-free r = {self.fallback:.4g}.",))
        r, notes = self._extrapolate(epsilon)
        inside = min(max(r, self.low), self.high)
        if inside != r:
            side = "above" if r > inside else "below"
            notes += (f"r = {r:.4g} at epsilon {epsilon:.4g} lies {side} the grid: {inside:.4g}, its end, is used.",)
        return Prediction(inside, notes)

    def curves(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """The law and the points it was fitted to, r against mu, to be drawn."""
        if not self.points:
            return {}
        least, most = self.points[0][0] / 2, max(1.0, 4 * self.points[-1][0])
        grid = [least * (most / least) ** (place / 39) for place in range(40)]

        fitted = tuple((epsilon, self.predict(epsilon)) for epsilon in grid)
        return self.drawn({"fitted": fitted, "best trials": self.points})

    def drawn(self, series: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, tuple[tuple[float, float], ...]]:
        """Named series of (epsilon, r), at the mu that is that epsilon."""
        return {
            f"step size times steps (r) against mu: {name}": tuple(
                (gdp_mu(Budget(epsilon, self.delta)), r) for epsilon, r in points
            )
            for name, points in series.items()
        }

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    def to_json(self) -> str:
        """One JSON document that reads back bit for bit."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ScalingLaw:
        """The inverse of to_json; data only."""
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise InvalidInput(f"the law is not of format {FORMAT}: a newer dpilot may have written it.")
            return cls(points=tuple((x, r) for x, r in data.pop("points")), **data)
        except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as problem:
            raise InvalidInput(f"the law is not what to_json wrote ({problem!r}).") from None

    def _extrapolate(self, epsilon: float) -> tuple[float, tuple[str, ...]]:
        degree = min(self.degree, len(self.points) - 1)
        if degree == 0:
            note = "one point only: r grows in proportion to the budget." if self.degree else ""
            return self._proportional(epsilon), (note,) if note else ()
        r, sound = self._polynomial(epsilon, degree)
        if sound:
            return r, ()
        shape = "falls as the budget grows" if r < max(each for _, each in self.points) else "is not monotone"
        return self._proportional(epsilon), (
            f"the fitted degree-{degree} law {shape} (r = {r:.4g} at epsilon {epsilon:.4g}), which noise explains "
            "better than the task: r grows in proportion to the budget instead.",
        )

    def _polynomial(self, epsilon: float, degree: int) -> tuple[float, bool]:
        """The value there, and whether the law rises from the first point to the last and on to ``epsilon``."""
        x = np.array([self._variable(each) for each, _ in self.points])
        target, scale = self._variable(epsilon), float(x.max())
        fitted = np.polynomial.Polynomial.fit(x / scale, [r for _, r in self.points], degree, domain=[0, 1])
        low, high = min(float(x.min()), target) / scale, max(scale, target) / scale
        slopes = fitted.deriv()(np.linspace(low, high, 200))
        r = float(fitted(target / scale))
        return r, bool((slopes >= 0).all()) and r > 0

    def _proportional(self, epsilon: float) -> float:
        logs = [math.log(r / self._variable(each)) for each, r in self.points]
        return math.exp(sum(logs) / len(logs)) * self._variable(epsilon)

    def _variable(self, epsilon: float) -> float:
        return epsilon if self.variable == "epsilon" else gdp_mu(Budget(epsilon, self.delta))
