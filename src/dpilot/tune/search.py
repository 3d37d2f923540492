"""``PrivateSearchCV``: scikit-learn's randomized search, in which every fit and score is paid within one total."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key
from dpilot.linear.fitting import noise_of
from dpilot.linear.problem import state_total
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian
from dpilot.tune.paid_trials import SELECTION, PaidTrials, ScoredFit, SearchTerms, Trials, made_up, whole

__all__ = ["PrivateSearchCV"]

_MOST_KINDS = 64  # combinations that are rehearsed before anything is paid


class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """The best of several fits of a private estimator, by a noisy score on held-out records, for one (epsilon, delta).

    Args:
        estimator: one of dpilot's, with its classes declared; its epsilon and ledger are the search's business.
        param_distributions: as for RandomizedSearchCV: lists, or objects with ``rvs``.
        mode: "selection": a secret number of trials, ``trials`` on average, at random, of which only the best is ever
            shown, at the price of private selection. "composed": ``trials`` of them, each paid in full and shown.
        target_bounds: of a regressor: errors are clipped to their width in the score.

    Guarantee:
        (epsilon, delta) for everything that ``fit`` leaves on the search, ``best_estimator_`` included, charged to
        ``ledger`` before a record is read. Trials see one secret part of the records, scores the other.

    Released: ``best_estimator_``, ``best_params_``, ``best_score_``, ``privacy_``, ``epsilon_per_trial_`` (public), and
    ``cv_results_``: the selected trial, or all of them in "composed".

    Example:
        >>> from dpilot.linear import LogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(4000, 3)); y = (X[:, 0] > 0).astype(int)
        >>> search = PrivateSearchCV(LogisticRegression(classes=[0, 1]), {"fit_intercept": [True, False]}, epsilon=2.0)
        >>> search.fit(X, y).score(X, y) > 0.8, search.privacy_.spent.epsilon <= 2.0
        (True, True)
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Mapping[str, Any] | list[Mapping[str, Any]],
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        mode: str = SELECTION,
        trials: int = 10,
        held_out: float = 0.2,
        size: str | int = "public",
        target_bounds: tuple[float, float] | None = None,
        ledger: Any = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.epsilon = epsilon
        self.delta = delta
        self.mode = mode
        self.trials = trials
        self.held_out = held_out
        self.size = size
        self.target_bounds = target_bounds
        self.ledger = ledger
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Plan and pay, then search."""
        X, y = whole(self.estimator, X, y, self.size)
        terms = search_terms(self, len(y))
        plan = PaidTrials.plan(self._kinds(), made_up(X), terms)
        noise = noise_of(self.random_state)
        seeds = None if self.random_state is None else np.random.default_rng(self.random_state)
        kept: list[tuple[dict[str, Any], ScoredFit]] = []
        with plan.commit(self.ledger, noise) as (trials, costs):
            drawn = ParameterSampler(self.param_distributions, 1, random_state=np.random.RandomState(self._seed(seeds)))
            for _, receipt in zip(range(trials.count), score_receipts(trials), strict=False):
                params = next(iter(drawn))
                seed = None if seeds is None else int(seeds.integers(2**31))
                found = trials.fit(clone(self.estimator).set_params(**params), X, y, receipt, seed)
                kept = keep_trial(kept, params, found, secret=plan.is_secret)
        self.privacy_ = costs[0]
        best = max(range(len(kept)), key=lambda place: kept[place][1].score)
        self.best_params_, chosen = kept[best]
        self.best_score_, self.epsilon_per_trial_ = chosen.score, plan.epsilon
        told = chosen.estimator.set_params(epsilon=self.epsilon, ledger=self.ledger)
        self.best_estimator_ = state_total(told, self.privacy_)
        self.cv_results_ = results_of(kept)
        return self

    def predict(self, X: Any) -> Any:
        """Predictions of the selected estimator."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the selected estimator."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    @available_if(lambda self: hasattr(self.estimator, "decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Scores of the selected estimator."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.decision_function(X)

    def score(self, X: Any, y: Any) -> float:
        """The selected estimator's exact score, for public records."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))

    @property
    def classes_(self) -> Any:
        return self.best_estimator_.classes_

    @property
    def n_features_in_(self) -> Any:
        return self.best_estimator_.n_features_in_

    @property
    def feature_names_in_(self) -> Any:
        return self.best_estimator_.feature_names_in_

    def _kinds(self) -> list[Any]:
        """Candidates of every price there may be: all of a grid, or draws from laws, which no record decides."""
        spaces = self.param_distributions
        listed = [spaces] if isinstance(spaces, Mapping) else list(spaces)
        finite = all(not hasattr(values, "rvs") for space in listed for values in space.values())
        if finite and len(ParameterGrid(listed)) <= _MOST_KINDS:
            found: Any = ParameterGrid(listed)
        else:
            found = ParameterSampler(listed, _MOST_KINDS // 4, random_state=0)
        return [clone(self.estimator).set_params(**params) for params in found]

    def _seed(self, seeds: Any) -> int:
        """Candidates come from a fresh key, or from the seed of a test."""
        drawn = Chain(fresh_key("candidates")).generator("candidates") if seeds is None else seeds
        return int(drawn.integers(2**32))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = inner.estimator_type, inner.classifier_tags
        tags.regressor_tags, tags.input_tags = inner.regressor_tags, inner.input_tags
        tags.target_tags, tags.non_deterministic = inner.target_tags, True  # coins of records are secret, seed or not
        return tags


def search_terms(search: Any, records: int) -> SearchTerms:
    """What the parameters of a search declare."""
    if search.size != "public" and not isinstance(search.size, int):
        _validate.refuse("size", search.size, '"public" or a whole number')
    size = records if search.size == "public" else _validate.count(size=search.size)
    delta = min(1e-5, 1 / (10 * size)) if search.delta is None else search.delta
    budget = Budget(search.epsilon, delta)
    budget.check_size(size)
    bounds = search.target_bounds
    if not is_classifier(search.estimator) and (bounds is None or not bounds[0] < bounds[1]):
        raise InvalidInput(
            f"target_bounds is {bounds!r}: expected (low, high) of the target, to clip errors in a score."
        )
    return SearchTerms(budget, size, search.mode, search.trials, search.held_out, bounds, search.size == "public")


def score_receipts(trials: Trials) -> Any:
    """A receipt for the score of each trial."""
    drawn = trials.scores()
    while True:
        yield trials.receipt if drawn is None else drawn.of(Gaussian(trials.plan.score_multiplier))


def keep_trial(
    kept: list[tuple[dict[str, Any], ScoredFit]], params: dict[str, Any], found: ScoredFit, *, secret: bool
) -> list[tuple[dict[str, Any], ScoredFit]]:
    """All trials so far, or the best one alone where others stay secret."""
    both = [*kept, (params, found)]
    return [max(both, key=lambda each: each[1].score)] if secret else both


def results_of(kept: list[tuple[dict[str, Any], ScoredFit]]) -> dict[str, Any]:
    """The trials as scikit-learn's searches show theirs."""
    names = sorted({name for params, _ in kept for name in params})
    scores = np.array([found.score for _, found in kept])
    order = np.argsort(np.argsort(-scores, kind="stable"), kind="stable") + 1
    columns = {f"param_{name}": [params.get(name) for params, _ in kept] for name in names}
    return {"params": [params for params, _ in kept], **columns, "noisy_score": scores, "rank_test_score": order}
