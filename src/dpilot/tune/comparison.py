"""What each way of tuning leaves for the run that is kept: a table and curves from declared numbers alone, free."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from dpilot import _validate
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu
from dpilot.privacy.selection import selection
from dpilot.tune.defaults import AutopilotOptions
from dpilot.tune.scaling_plan import SHARES
from dpilot.tune.scoring import score_noise

__all__ = ["Comparison", "ComparisonRow", "compare"]


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One method: how many runs it makes, the epsilon of the run that is kept, what tuning took of mu^2, the noise of
    a score, and a remark."""

    method: str
    runs: str
    epsilon: float
    share: float
    score_noise: float | None
    remark: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """``rows`` for a table; ``curves`` name (number of trials, epsilon left) for a plot."""

    budget: Budget
    rows: tuple[ComparisonRow, ...]
    curves: dict[str, tuple[tuple[float, float], ...]]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "budget": self.budget.as_dict()}

    def __str__(self) -> str:
        lines = [f"{'method':<24}{'runs':<16}{'epsilon left':>12}{'tuning':>9}{'score noise':>13}"]
        for row in self.rows:
            noise = "" if row.score_noise is None else f"{row.score_noise:.2g}"
            lines.append(f"{row.method:<24}{row.runs:<16}{row.epsilon:>12.4g}{row.share:>9.1%}{noise:>13}")
        return "\n".join(lines)


def compare(
    budget: Budget,
    *,
    size: int,
    held_out_share: float | None = None,
    trials: int = 6,
    shares: Sequence[float] = SHARES,
    grid_share: float = 1 / 3,
    law: str = "tnb",
    shape: float = 0.0,
    subset_share: float = 0.1,
) -> Comparison:
    """The epsilon left for the final run under each method with about ``trials`` trials; full batches, exact.

    ``held_out_share`` is that of the autopilot unless given.

    Guarantee:
        Looks at declared numbers only: free.

    Example:
        >>> table = compare(Budget(1.0, 1e-5), size=50_000)
        >>> [(row.method, round(row.epsilon, 2)) for row in table.rows[:3]]
        [('data-free default', 1.0), ('linear_scaling', 0.97), ('private_selection', 0.7)]
    """
    trials = _validate.count(trials=trials, least=2)
    budget.check_size(size)
    held_out = _validate.count(size=size) * AutopilotOptions(held_out=held_out_share).share_held_out(budget, size)
    whole, delta = gdp_mu(budget), budget.delta
    select = partial(_selection_mu, budget, law, shape)
    taken = {"linear_scaling": sum(shares), "budget_split_grid": grid_share, "subset_search": subset_share}
    kept = {name: whole * math.sqrt(1 - _validate.open_unit(share=share)) for name, share in taken.items()}
    each = math.ceil(trials / len(shares))

    def row(method: str, runs: str, mu: float, scores: float | None, remark: str) -> ComparisonRow:
        noise = None if scores is None else score_noise(1, held_out, math.sqrt(scores) / whole)
        return ComparisonRow(method, runs, gdp_epsilon(mu, delta), max(0.0, 1 - (mu / whole) ** 2), noise, remark)

    rows = (
        row("data-free default", "1", whole, None, "nothing is tuned"),
        row(
            "linear_scaling",
            f"{len(shares)} x {each} + 1",
            kept["linear_scaling"],
            2 * each * len(shares),
            "half is left for metrics",
        ),
        row("private_selection", f"K, mean {trials}", select(trials), None, f"K secret, law {law}"),
        row("budget_split_grid", f"{trials} + 1", kept["budget_split_grid"], trials, f"{grid_share:.0%} on the grid"),
        row("random_search", f"{trials}", whole / math.sqrt(trials), trials, "all runs composed"),
        row("subset_search", f"{trials} + 1", kept["subset_search"], trials, "trials on one Poisson sample"),
        row("grid_oracle", "not counted", whole, None, "not private"),
    )
    laws: dict[str, Callable[[float], float]] = {name: lambda _, mu=mu: mu for name, mu in kept.items()}  # type: ignore[misc]
    laws |= {"private_selection": select, "random_search": lambda n: whole / math.sqrt(n)}
    counts = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
    curves = {name: tuple((n, gdp_epsilon(mu(n), delta)) for n in counts) for name, mu in laws.items()}
    return Comparison(budget, rows, curves)


def _selection_mu(budget: Budget, law: str, shape: float, mean: float) -> float:
    """mu of one run such that the best of K, of the given mean, fits the budget."""
    low, high = 0.0, gdp_mu(budget)
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        cost = selection(Gaussian(1 / middle), budget.delta, mean_trials=mean, law=law, shape=shape)
        low, high = (middle, high) if cost.epsilon <= budget.epsilon else (low, middle)
    return low
