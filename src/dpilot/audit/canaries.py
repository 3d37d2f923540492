"""The outcome of a run's canaries as checks: the lower bound on epsilon beside what is claimed."""

from __future__ import annotations

from dpilot.audit.check import Check
from dpilot.errors import InvalidInput
from dpilot.privacy.lower_bounds import LowerBound, one_run
from dpilot.records import RunRecord

__all__ = ["audit_record"]


def audit_record(record: RunRecord, *, confidence: float = 0.95) -> tuple[LowerBound, list[Check]]:
    """The lower bound that the canaries of a run prove, and whether its epsilon stands.

    Edge cases:
        bound above the claim     the claim is disproved, with the confidence
        bound below it            proves nothing: canaries that are told apart badly are no proof of privacy
    """
    if record.audit is None:
        raise InvalidInput("the run has no canaries: expected one of Trainer(..., audit=Canaries(1000)).")
    audited = record.audit
    bound = one_run(audited.scores, audited.included, delta=record.delta, confidence=confidence)
    guesses = f"{bound.correct} of {bound.guesses} guesses about {bound.canaries} canaries were right"
    said = f"epsilon is at least {bound.epsilon:.3g}, {record.epsilon:.3g} is claimed ({guesses})"
    checks = [Check(f"claim, canaries by their {audited.kind}", bound.epsilon <= record.epsilon, said)]
    if record.plan.get("sample_rate") == 1:
        gaussian = f"epsilon is at least {bound.gaussian_epsilon:.3g}, if the trade-off is a Gaussian's"
        checks.append(Check("claim, full batches", bound.gaussian_epsilon <= record.epsilon, gaussian))
    return bound, checks
