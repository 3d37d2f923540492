"""What the canaries of a run prove, beside what is claimed: a lower bound on epsilon under an upper one."""

from __future__ import annotations

from typing import Any

from dpilot.privacy.lower_bounds import one_run
from dpilot.records import FitRecord
from dpilot.report.words import number, percent

__all__ = ["canary_bounds"]


def canary_bounds(record: FitRecord) -> dict[str, Any] | None:
    """Numbers and places of the picture, in percent of its width; None of a run without canaries."""
    if record.audit is None:
        return None
    claimed = float(record.privacy["epsilon"])
    bound = one_run(record.audit.scores, record.audit.included, delta=float(record.privacy["delta"]))
    widest = max(claimed, bound.epsilon, 1e-9)
    return {
        "canaries": f"{bound.canaries:,}",
        "guesses": f"{bound.guesses:,}",
        "correct": f"{bound.correct:,}",
        "confidence": percent(bound.confidence),
        "claimed": number(claimed),
        "lower": number(bound.epsilon),
        "held": bound.epsilon <= claimed,
        "lower_place": 4 + 92 * bound.epsilon / widest,
        "claimed_place": 4 + 92 * claimed / widest,
    }
