"""Trials that compose: fixed stages whose noise is all calibrated before the first, and when they beat selection.

Full-batch Gaussian stages of mu_1, ..., mu_k and a final run of mu_f are together sqrt(sum mu_i^2 + mu_f^2)-GDP.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dpilot import _validate
from dpilot.privacy.events import Composed, Event, Repeated


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of two ways to try several runs costs less: ``method`` is "compose" or "select"; ``reason`` says why."""

    method: str
    composed_epsilon: float
    selected_epsilon: float
    bound: str
    reason: str


def stages_mu(stages: Iterable[float]) -> float:
    """mu of all stages together, trials and final run: the square root of the sum of squares.

    >>> stages_mu([3.0, 4.0])
    5.0
    """
    return math.hypot(*(_validate.non_negative(mu=mu) for mu in stages))


def leftover_mu(total: float, trials: Iterable[float]) -> float:
    """The largest mu left for the final run when ``trials`` have taken theirs out of ``total``.

    Guarantee:
        stages_mu([*trials, leftover_mu(total, trials)]) <= total, in floats too.

    Example:
        >>> round(leftover_mu(5.0, [3.0]), 12)
        4.0
    """
    total = _validate.positive(total=total)
    taken = tuple(trials)
    spent = stages_mu(taken)
    if spent >= total:
        _validate.refuse("trials", spent, f"a total mu below {total}", "Run fewer trials, or cheaper ones.")
    left = math.sqrt((total - spent) * (total + spent))
    while stages_mu([*taken, left]) > total:
        left = math.nextafter(left, 0.0)
    return left


def cheaper(
    trial: Event,
    delta: float,
    *,
    trials: int,
    law: str = "tnb",
    shape: float = 0.0,
    stages: Iterable[Event] | None = None,
) -> Choice:
    """Whether to compose or to select, at equal noise in the run that is kept.

    Without ``stages``: ``trials`` full runs of ``trial``, all released, against the best of K with E[K] = trials.
    With ``stages``: these cheap trials and then one ``trial``, against the same selection.

    Edge cases:
        equal costs    compose: the number of trials is then certain, and every score is released

    Example:
        >>> from dpilot.privacy.events import Gaussian
        >>> cheaper(Gaussian(3.73063), 1e-5, trials=10).method
        'select'
        >>> cheaper(Gaussian(4.2), 1e-5, trials=6, stages=[Gaussian(30.0)] * 6).method
        'compose'
    """
    from dpilot.privacy import accountant, selection

    count = _validate.count(trials=trials, least=2)
    cheap = None if stages is None else tuple(stages)
    together: Event = Repeated(trial, count) if cheap is None else Composed([*cheap, trial])
    composed = accountant.epsilon(together, delta)
    selected = selection.selection(trial, delta, mean_trials=count, law=law, shape=shape)
    method = "select" if selected.epsilon < composed else "compose"
    what = f"{count} full trials" if cheap is None else f"{len(cheap)} cheap trials and one full run"
    reason = (
        f"Composing {what} costs epsilon {composed:.4g} at delta {delta:.4g}; releasing the best of a secret number of "
        f"full runs, {count} on average, costs {selected.epsilon:.4g} ({selected.bound} bound): {method}."
    )
    return Choice(method, composed, selected.epsilon, selected.bound, reason)
