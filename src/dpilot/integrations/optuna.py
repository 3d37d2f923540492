"""Optuna: a search whose trials are paid for, over private estimators.

::

    import optuna
    from dpilot.integrations.optuna import search
    from dpilot.linear import LogisticRegression

    def suggest(trial):                                   # what to fit: nothing is trained here
        return LogisticRegression(classes=[0, 1], fit_intercept=trial.suggest_categorical("intercept", [True, False]))

    found = search(suggest, X, y, epsilon=2.0, ledger="adult.ledger")              # mode="selection"
    found.best_estimator, found.study.best_params, found.privacy

In "selection" candidates are drawn at random, a secret number of them is run, and the study shows the selected one
alone. In "composed" every trial is paid in full, so every score is shown and any sampler of Optuna may learn from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import NopPruner
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial

from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key
from dpilot.linear.fitting import noise_of
from dpilot.linear.problem import Privacy, state_total
from dpilot.tune.paid_trials import COMPOSED, SELECTION, PaidTrials, ScoredFit, made_up, whole
from dpilot.tune.search import score_receipts, search_terms

__all__ = ["Found", "search"]

_REHEARSED = 16  # candidates that are drawn to see what a trial costs

Suggest = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: the fitted estimator, the study that may be shown, and what all of it cost."""

    best_estimator: Any
    study: optuna.Study
    privacy: Privacy
    epsilon_per_trial: float


def search(
    suggest: Suggest,
    X: Any,
    y: Any,
    *,
    epsilon: float = 1.0,
    delta: float | None = None,
    mode: str = SELECTION,
    trials: int = 10,
    study: optuna.Study | None = None,
    held_out: float = 0.2,
    size: str | int = "public",
    target_bounds: tuple[float, float] | None = None,
    ledger: Any = None,
    random_state: Any = None,
) -> Found:
    """The best of several fits of what ``suggest(trial)`` gives, an estimator of dpilot's, within one (epsilon, delta).

    Args:
        trials: their number; in "selection" the mean of their secret number.
        study: one to go on with, made for "maximize", without a pruner; its sampler is used in "composed" only.

    Guarantee:
        That of PrivateSearchCV: all is charged before a record is read, and what is in the study is released. All
        trials cost the same: what is suggested may not depend on what a trial costs.

    Edge cases:
        a pruner                          refused: when a trial is stopped would tell of its records
        a sampler that learns, and        refused: it would learn from scores that are never released
        "selection"
        a candidate that does not run     the worst score
    """
    made = _check_study(study, mode)
    hidden = _Draws(random_state)
    drawn = [_suggestion(suggest, hidden.ask())[0] for _ in range(_REHEARSED)]
    X, y = whole(drawn[0], X, y, size)
    given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "mode": mode, "trials": trials, "held_out": held_out}
    terms = search_terms(SimpleNamespace(**given, size=size, target_bounds=target_bounds, estimator=drawn[0]), len(y))
    plan = PaidTrials.plan(drawn, made_up(X), terms)
    ask = hidden.ask if plan.is_secret else made.ask
    best: tuple[ScoredFit, Any] | None = None
    with plan.commit(ledger, noise_of(random_state)) as (paid, costs):
        for place, receipt in zip(range(paid.count), score_receipts(paid), strict=False):
            estimator, trial = _suggestion(suggest, ask())
            seed = None if random_state is None else place
            fit = paid.fit(estimator, X, y, receipt, seed)
            if not plan.is_secret:
                failed = fit.score == -math.inf
                made.tell(trial, None if failed else fit.score, state=TrialState.FAIL if failed else None)
            if best is None or fit.score > best[0].score:
                best = fit, trial
    assert best is not None  # both laws run at least one trial
    if plan.is_secret:
        made.add_trial(_finish_trial(best[1], best[0].score))
    return Found(
        state_total(best[0].estimator.set_params(epsilon=epsilon, ledger=ledger), costs[0]),
        made,
        costs[0],
        plan.epsilon,
    )


class _Draws:
    """Candidates at random, one study for each, so that none is told of another."""

    def __init__(self, random_state: Any) -> None:
        self._chain = Chain(fresh_key("candidates")).generator("candidates")
        if random_state is not None:
            self._chain = np.random.default_rng(random_state)

    def ask(self) -> Any:
        with _quietly():
            sampler = RandomSampler(seed=int(self._chain.integers(2**31)))
            return optuna.create_study(direction="maximize", sampler=sampler, pruner=NopPruner()).ask()


@contextmanager
def _quietly() -> Iterator[None]:
    """Optuna says when a study is made: here, how many candidates there are."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _suggestion(suggest: Suggest, trial: Any) -> tuple[Any, Any]:
    estimator = suggest(trial)
    if hasattr(estimator, "privacy_"):
        raise InvalidInput("suggest gave an estimator that was fitted: expected one to fit. The search pays and fits.")
    return estimator, trial


def _finish_trial(trial: Any, score: float) -> Any:
    """The selected trial as the only one of a study."""
    laws: dict[str, BaseDistribution] = trial.distributions
    value = {"state": TrialState.FAIL} if score == -math.inf else {"value": score}
    return create_trial(params=trial.params, distributions=laws, **value)


def _check_study(study: optuna.Study | None, mode: str) -> optuna.Study:
    if study is None:
        with _quietly():
            sampler = None if mode == COMPOSED else RandomSampler()
            return optuna.create_study(direction="maximize", pruner=NopPruner(), sampler=sampler)
    if not isinstance(study.pruner, NopPruner):
        raise InvalidInput(
            f"the study prunes ({type(study.pruner).__name__}): expected optuna.pruners.NopPruner(), as the moment at "
            "which a trial is stopped would tell of its records, and what it spent stays spent."
        )
    if mode == SELECTION and not isinstance(study.sampler, RandomSampler):
        raise InvalidInput(
            f"the study samples by {type(study.sampler).__name__}, which learns from scores: expected RandomSampler() "
            'in mode="selection", where only the selected score is released, or mode="composed".'
        )
    if study.direction != optuna.study.StudyDirection.MAXIMIZE:
        raise InvalidInput('the study minimizes: expected direction="maximize", as scores are of what is right.')
    return study
