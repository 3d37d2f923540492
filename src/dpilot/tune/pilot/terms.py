"""What a flight may be told beside the budget; every default is stated and defended in docs/autopilot.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dpilot import _validate
from dpilot.metrics.objective import OBJECTIVES
from dpilot.tune.scaling_plan import SHARES

__all__ = ["BAND", "HELD_OUT_SHARE", "SCORE_SHARE", "TOO_NOISY", "TUNING_SHARE", "Terms"]

HELD_OUT_SHARE: Final = 0.1
TUNING_SHARE: Final = sum(SHARES)
SCORE_SHARE: Final = 0.5
BAND: Final = 10.0
TOO_NOISY: Final = 0.01


@dataclass(frozen=True, slots=True)
class Terms:
    """Objective, shares, trials of a stage, and compute (``epochs``: the most passes over the records of one run).

    ``held_out``: share of the records, by secret coins, that scores and figures are read on. ``tuning``: share of mu^2
    that trials take. Scores take half of what the held-out records may cost, final figures the other half.

    Example:
        >>> Terms().shares == SHARES, Terms(tuning=0.0).trials
        (True, 3)
    """

    objective: str = "accuracy"
    held_out: float = HELD_OUT_SHARE
    tuning: float = TUNING_SHARE
    trials: int = 3
    epochs: float | None = None

    def __post_init__(self) -> None:
        _validate.one_of(OBJECTIVES, objective=self.objective)
        checked: dict[str, Any] = {
            "held_out": _validate.open_unit("It is the share kept apart for scores.", held_out_share=self.held_out),
            "tuning": _validate.share("It is the part of mu^2 for trials.", tuning_share=self.tuning),
            "trials": _validate.count(trials=self.trials, least=2),
        }
        if self.epochs is not None:
            checked["epochs"] = _validate.positive(epochs=self.epochs)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def shares(self) -> tuple[float, ...]:
        """Of mu^2, for each stage of trials; the later one has more."""
        return tuple(self.tuning * share / TUNING_SHARE for share in SHARES)
