"""Fits of private estimators as trials of a search that pays for every look: planned without records, paid at once.

A trial is one fit on a secret part of the records and one noisy score on the rest. What a fit costs is found by a
rehearsal: the same estimator, fitted to made-up numbers of the same width and declared size, commits the same events,
because no estimator's events depend on its records.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.utils import _safe_indexing

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.data.cells import Cells
from dpilot.data.frames import columns_of, is_frame
from dpilot.data.splits import Split
from dpilot.data.values import attempt
from dpilot.errors import DpilotError, InvalidInput
from dpilot.keys import Chain, fresh_key, public_generator
from dpilot.linear.classifier import codes
from dpilot.linear.inputs import numbers, target_cells, whole_table
from dpilot.linear.problem import CommittedRun, Privacy, commit_stages
from dpilot.mechanism import Draws, Noise, release
from dpilot.privacy import accountant
from dpilot.privacy.amplification import joint_noise_multiplier
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Composed, Event, Gaussian, OneOf, RepeatAndSelect, Repeated
from dpilot.privacy.ledger import Ledger, Stage
from dpilot.privacy.receipt import TrialReceipts
from dpilot.privacy.trials import law_of
from dpilot.records import PUBLISHED_SIZE, RUNNING_TIME
from dpilot.tune.outlays import least_factor, whole_outlay
from dpilot.tune.task import HELD_OUT, TRAIN

__all__ = ["COMPOSED", "SELECTION", "PaidTrials", "ScoredFit", "SearchTerms"]

SELECTION: Final = "selection"
COMPOSED: Final = "composed"
_TRIALS: Final = "search: trials"
_SCORES: Final = "search: scores"
_MADE_UP: Final = 64  # records of a rehearsal
_ROUNDING: Final = 1 - 1e-9  # of the joint noise of Gaussians, downwards
_SHARE: Final = 0.05  # to which the epsilon of a trial is found


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """What a search declares: its total, how it pays, and how many trials it makes (on average, in selection)."""

    budget: Budget
    size: int
    mode: str = SELECTION
    trials: int = 10
    held_out: float = 0.2
    target_bounds: tuple[float, float] | None = None
    public_size: bool = False

    def __post_init__(self) -> None:
        _validate.one_of((SELECTION, COMPOSED), mode=self.mode)
        _validate.count(trials=self.trials)
        _validate.open_unit(held_out=self.held_out)
        if self.mode == SELECTION and self.trials < 2:
            _validate.refuse("trials", self.trials, "at least 2 on average", 'mode="composed" takes 1.')

    def joint(self, event: Event) -> Event:
        """What all trials cost together, of which one costs ``event``."""
        return RepeatAndSelect(event, float(self.trials)) if self.mode == SELECTION else Repeated(event, self.trials)

    @property
    def train_size(self) -> int:
        return max(1, round(self.size * (1 - self.held_out)))

    @property
    def unprotected(self) -> tuple[str, ...]:
        """What a search does not protect."""
        time = "running time, which grows with the secret number of trials" if self.mode == SELECTION else RUNNING_TIME
        return (PUBLISHED_SIZE, time) if self.public_size else (time,)


@dataclass(frozen=True, slots=True)
class ScoredFit:
    """A fitted estimator with its noisy score, a mean over held-out records; -inf where the fit came to nothing."""

    estimator: Any
    score: float


@dataclass(frozen=True, slots=True)
class PaidTrials:
    """A search that was planned: the epsilon of each trial, its event, and the noise of each score."""

    terms: SearchTerms
    epsilon: float
    events: tuple[Event, ...]
    score_multiplier: float
    columns: Any

    @classmethod
    def plan(cls, candidates: Sequence[Any], columns: Any, terms: SearchTerms) -> PaidTrials:
        """The most that each trial may cost so that all fit the budget; ``columns`` is a made-up X of the right form.

        ``candidates`` are estimators, one of each kind of price there may be.

        Guarantee:
            Declared numbers and made-up records only. By bisection over the trials' epsilon; what comes out fits.
        """
        unlike = _one_of_each([(each, rehearse(each, terms.budget.epsilon, columns, terms)) for each in candidates])

        def events(epsilon: float) -> tuple[Event, ...]:
            return joint_prices([rehearse(each, epsilon, columns, terms) for each in unlike], terms)

        def fits(found: tuple[Event, ...]) -> bool:
            joint = terms.joint(found[0] if len(found) == 1 else OneOf(found))
            return accountant.epsilon(joint, terms.budget.delta) <= terms.budget.epsilon

        low, high = 0.0, terms.budget.epsilon
        kept: tuple[Event, ...] = ()
        while not kept or high > low * (1 + _SHARE):
            middle = high / 4 if low == 0 else math.sqrt(low * high)
            found = events(middle)
            if fits(found):
                low, kept = middle, found
            else:
                high = middle
            if high < 1e-4 * terms.budget.epsilon:
                raise InvalidInput(f"no trial however small fits {terms.budget} {terms.trials} times: expected fewer.")
        least = whole_outlay(terms.budget).noise_multiplier
        factor = least_factor(lambda f: terms.joint(Gaussian(least * f)), terms.budget, sampled=False)
        return cls(terms, low, kept, least * factor, columns)

    @contextmanager
    def commit(self, ledger: Any, noise: Noise) -> Iterator[tuple[Trials, list[Privacy]]]:
        """Pay for the whole search, then run it."""
        split = Split.draw({TRAIN: 1 - self.terms.held_out, HELD_OUT: self.terms.held_out})
        event = self.events[0] if len(self.events) == 1 else OneOf(self.events)
        stages = [
            Stage(_TRIALS, self.terms.joint(event), TRAIN, split.id),
            Stage(_SCORES, self.terms.joint(Gaussian(self.score_multiplier)), HELD_OUT, split.id),
        ]
        paid = {"ledger": ledger, "noise": noise, "unprotected": self.terms.unprotected}
        charged = commit_stages(stages, self.terms.budget, **paid)
        with charged as (run, costs), run.stage(_TRIALS), run.stage(_SCORES) as receipt:
            yield Trials(self, run, split, receipt, _count(self.terms)), costs

    def covers(self, event: Event) -> bool:
        """Whether a trial that commits ``event`` was planned."""
        return any(_covers(planned, event) for planned in self.events)

    @property
    def is_secret(self) -> bool:
        return self.terms.mode == SELECTION


@dataclass(frozen=True, slots=True)
class Trials:
    """The trials of a search that was paid; ``count`` is secret in selection."""

    plan: PaidTrials
    run: CommittedRun
    split: Split
    receipt: Any
    count: int

    def scores(self) -> TrialReceipts | None:
        """What scores of a selection are drawn from."""
        event = self.plan.terms.joint(Gaussian(self.plan.score_multiplier))
        return TrialReceipts(self.receipt, event, trials=self.count) if isinstance(event, RepeatAndSelect) else None

    def fit(self, candidate: Any, X: Any, y: Cells, receipt: Draws, seed: int | None = None) -> ScoredFit:
        """Fit one candidate to its part of the records, and score it on the rest; X and y as ``whole`` gives them.

        Edge cases:
            a price that was not planned    the worst score: not run where made-up records show it, and the events that
                                            the fit has committed are looked at again before anything of it is kept
            a fit that stops by its health  the worst score
            warnings                        none: how many there are would tell how many trials
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._fit(candidate, X, y, receipt, seed)

    def _fit(self, candidate: Any, X: Any, y: Cells, receipt: Draws, seed: int | None) -> ScoredFit:
        plan, parts = self.plan, self.split.indices(len(y))
        quiet = rehearse_quietly(candidate, plan.epsilon, plan.columns, plan.terms)
        if quiet is None or not plan.covers(quiet):
            return ScoredFit(candidate, -math.inf)
        train = parts[TRAIN]
        with tempfile.TemporaryDirectory(prefix="dpilot-") as folder:
            made = _paid_within(candidate, plan.epsilon, plan.terms, Path(folder) / "trial.ledger", seed)
            fitted = attempt(made.fit, _safe_indexing(X, train), y[train], otherwise=None)
            if fitted is None or not plan.covers(_committed(made.ledger)):
                return ScoredFit(candidate, -math.inf)
        held = parts[HELD_OUT]
        values = _scores(fitted, _safe_indexing(X, held), y[held], plan.terms)
        noisy = release(
            float(values.sum()),
            bound=0.5,
            noise_multiplier=plan.score_multiplier,
            receipt=receipt,
            noise=self.run.noise,
        )
        return ScoredFit(fitted, 0.5 + noisy / (plan.terms.size * plan.terms.held_out))


def rehearse(estimator: Any, epsilon: float, columns: Any, terms: SearchTerms) -> Event:
    """What a fit of ``estimator`` will commit at ``epsilon``, from a fit to made-up records."""
    _check_estimator(estimator)
    with tempfile.TemporaryDirectory(prefix="dpilot-") as folder:
        path = Path(folder) / "rehearsal.ledger"
        made = _paid_within(estimator, epsilon, terms, path, seed=0)
        _fit_silently(made, columns, made_up_target(estimator, len(columns)))
        return _committed(path)


def _committed(ledger: str | Path) -> Event:
    return Composed(entry.event for entry in Ledger.read(ledger).entries())


def rehearse_quietly(estimator: Any, epsilon: float, columns: Any, terms: SearchTerms) -> Event | None:
    """The same, None where that is refused: a candidate of a search may be any combination."""
    try:
        return rehearse(estimator, epsilon, columns, terms)
    except (DpilotError, ValueError, TypeError):
        return None


def joint_prices(events: Sequence[Event], terms: SearchTerms) -> tuple[Event, ...]:
    """Events that cover these: one Gaussian where all are compositions of Gaussians, which are one (Dong et al., 2022).

    >>> terms = SearchTerms(Budget(1.0, 1e-5), 1000)
    >>> joint_prices([Gaussian(3.0), Repeated(Gaussian(4.0), 4)], terms)
    (Gaussian(noise_multiplier=1.999999998),)
    """
    sigmas = [joint_noise_multiplier(event) for event in events]
    known = [sigma for sigma in sigmas if sigma is not None]
    if len(known) == len(events):
        return (Gaussian(min(known) * _ROUNDING),)
    found = tuple(dict.fromkeys(events))
    if terms.mode == COMPOSED and len(found) > 1:
        raise InvalidInput(
            f"the candidates have {len(found)} prices, of sampled batches: expected one where trials are composed, as "
            'each is paid before it is drawn. Search at one number of steps and batch size, or mode="selection".'
        )
    return found


def _covers(planned: Event, event: Event) -> bool:
    sigma = joint_noise_multiplier(event)
    if isinstance(planned, Gaussian) and sigma is not None:
        return sigma >= planned.noise_multiplier
    return event == planned


def whole(estimator: Any, X: Any, y: Any, size: Any) -> tuple[Any, Cells]:
    """X and y as they are split: read as a whole, so that no part of them is read by a row of its own.

    Numbers in an array, or a frame where they have names; what a schema or ``text`` describes stays the frame it is.
    """
    described = getattr(estimator, "schema", None) is not None or getattr(estimator, "text", None) is not None
    target = target_cells(y)
    table = X if described and is_frame(X) else whole_table(X, getattr(estimator, "bounds", None), size)
    if len(table) != len(target):
        raise InvalidInput("X and y have inconsistent numbers of rows: expected one target for each row.")
    return table, target


def made_up(X: Any) -> Any:
    """Made-up numbers with the columns of X, and nothing of its values."""
    drawn = public_generator(0).normal(size=(_MADE_UP, np.shape(X)[1]))
    if not is_frame(X):
        return drawn
    import pandas as pd

    return pd.DataFrame(drawn, columns=[name for name, _ in columns_of(X)])


def made_up_target(estimator: Any, count: int) -> Any:
    """Made-up targets: the declared classes in turn, or numbers."""
    if not is_classifier(estimator):
        return public_generator(1).normal(size=count)
    classes = np.asarray(estimator.classes)
    return classes[np.arange(count) % len(classes)]


def _paid_within(estimator: Any, epsilon: float, terms: SearchTerms, ledger: Path, seed: int | None) -> Any:
    total = {"epsilon": epsilon, "delta": terms.budget.delta, "size": terms.train_size, "allow_large_delta": True}
    return clone(estimator).set_params(**total, ledger=str(ledger), random_state=seed)


def _fit_silently(estimator: Any, X: Any, y: Any) -> Any:
    """The fit without a word: what it says would tell how many there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, y)


def _scores(fitted: Any, X: Any, y: Any, terms: SearchTerms) -> Floats:
    """One number in [-1/2, 1/2] a record, from its own prediction: right or wrong, or one minus its clipped error."""
    predicted = np.asarray(fitted.predict(X))
    if is_classifier(fitted):
        truth, found = codes(target_cells(y), fitted.classes_), codes(predicted, fitted.classes_)
        right: Floats = np.where(truth == found, 0.5, -0.5)  # a label of no class is nan, and equals none
        return right
    assert terms.target_bounds is not None
    low, high = terms.target_bounds
    error = np.abs(numbers(target_cells(y)) - predicted.astype(np.float64)) / (high - low)
    bounded: Floats = 0.5 - np.where(np.isfinite(error), np.clip(error, 0.0, 1.0), 1.0)
    return bounded


def _count(terms: SearchTerms) -> int:
    if terms.mode == COMPOSED:
        return terms.trials
    law = law_of(RepeatAndSelect(Gaussian(1.0), float(terms.trials)))
    return law.draw(Chain(fresh_key("trials")).generator("trials"))


def _one_of_each(found: list[tuple[Any, Event]]) -> list[Any]:
    """One estimator for each event."""
    return list({event: estimator for estimator, event in found}.values())


def _check_estimator(estimator: Any) -> None:
    wanted = {"epsilon", "delta", "size", "unit", "ledger", "random_state", "allow_large_delta"}
    if not hasattr(estimator, "get_params") or not wanted <= set(estimator.get_params()):
        raise InvalidInput(
            f"the estimator is a {type(estimator).__name__}: expected one of dpilot's, whose fits are paid by epsilon. "
            "Another one's fit would not be counted."
        )
    schema = getattr(estimator, "schema", None)
    if estimator.unit is not None or (schema is not None and schema.unit is not None):
        raise InvalidInput("the estimator protects units: expected records, as the search splits rows.")
    if getattr(estimator, "checkpoint", None) is not None:
        raise InvalidInput(
            f"checkpoint is {str(estimator.checkpoint)!r}: expected None, as each trial is a fit of its own. Trials "
            "would go on with one another."
        )
    if is_classifier(estimator) and (estimator.classes is None or isinstance(estimator.classes, str)):
        raise InvalidInput(
            f"classes is {estimator.classes!r}: expected the list of them, as the search splits records."
        )
