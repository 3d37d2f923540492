"""What a flight may be told beside the budget; every default is stated and defended in docs/autopilot.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dpilot import _validate
from dpilot.metrics.objective import OBJECTIVES
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu
from dpilot.tune.scaling_plan import SHARES

__all__ = ["SCORE_SHARE", "TUNING_SHARE", "Terms", "held_out_share"]

TUNING_SHARE: Final = sum(SHARES)
SCORE_SHARE: Final = 0.5
_LEAST_HELD_OUT: Final = 0.05
_MOST_HELD_OUT: Final = 0.1
_FIGURE_NOISE: Final = 0.001


@dataclass(frozen=True, slots=True)
class Terms:
    """Objective, shares, trials of a stage, and compute (``epochs``: the most passes over the records of one run).

    ``held_out``: share of the records, by secret coins, that scores and figures are read on; None: ``held_out_share``.
    ``tuning``: share of mu^2 that trials take. Scores take half of what the held-out records may cost, final figures
    the other half.

    Example:
        >>> Terms().shares == SHARES, Terms(tuning=0.0).trials
        (True, 3)
    """

    objective: str = "accuracy"
    held_out: float | None = None
    tuning: float = TUNING_SHARE
    trials: int = 3
    epochs: float | None = None

    def __post_init__(self) -> None:
        _validate.one_of(OBJECTIVES, objective=self.objective)
        checked: dict[str, Any] = {
            "tuning": _validate.share("It is the part of mu^2 for trials.", tuning_share=self.tuning),
            "trials": _validate.count(trials=self.trials, least=2),
        }
        if self.held_out is not None:
            kept = _validate.open_unit("It is the share kept apart for scores.", held_out_share=self.held_out)
            checked["held_out"] = kept
        if self.epochs is not None:
            checked["epochs"] = _validate.positive(epochs=self.epochs)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def shares(self) -> tuple[float, ...]:
        """Of mu^2, for each stage of trials; the later one has more."""
        return tuple(self.tuning * share / TUNING_SHARE for share in SHARES)

    def kept(self, budget: Budget, size: float) -> float:
        """The share of the records that is held out."""
        return held_out_share(budget, size) if self.held_out is None else self.held_out


def held_out_share(budget: Budget, size: float) -> float:
    """As many records as let noise move an accuracy by a tenth of a point, but 5 % to 10 % of all.

    ::

        figures have half of mu^2, so noise moves a rate in h n records by 1 / (mu h n)
        set to 0.001:    h = 1000 / (mu n), at least 0.05, at most 0.1

    A record that is held out is not trained on: 10 % lose 10 % of mu n.

    Example:
        >>> held_out_share(Budget(1.0, 1e-5), 5_000), held_out_share(Budget(1.0, 1e-5), 200_000)
        (0.1, 0.05)

    Reference:
        On data of their own (benchmarks/tune, "defaults") 2 % and 5 % lost the same, 10 % a little more, 20 % much.
    """
    return min(max(1 / (_FIGURE_NOISE * gdp_mu(budget) * size), _LEAST_HELD_OUT), _MOST_HELD_OUT)
