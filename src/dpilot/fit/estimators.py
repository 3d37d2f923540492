"""What the two estimators share: the checkpoint folder, the noise of tests, and scores that are paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpilot import _validate
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit.declaration import Declaration, FitOptions, declare_fit
from dpilot.fit.folder import ARGUMENTS
from dpilot.fit.keys import FitKeys
from dpilot.fit.learners.base import Learner
from dpilot.fit.model import FIT, plain_labels
from dpilot.fit.pipeline import FitResult, run_fit
from dpilot.fit.source import RecordSource
from dpilot.fit.table import keep, path_of, resumable
from dpilot.linear.fitting import noise_of
from dpilot.linear.problem import Privacy
from dpilot.metrics.metric import Metric
from dpilot.noise import KeyedNoise
from dpilot.privacy.notices import warn_of_refusal

__all__ = ["PrivateScore", "check_schema", "declare_estimator", "fit_estimator", "refuse_arguments", "test_seed_of"]


@dataclass(frozen=True, slots=True)
class PrivateScore:
    """Noisy figures of private records, and what they cost."""

    metrics: tuple[Metric, ...]
    privacy: Privacy

    def __getitem__(self, name: str) -> Metric:
        return {each.name: each for each in self.metrics}[_validate.one_of([m.name for m in self.metrics], name=name)]


def check_schema(schema: Any) -> None:
    """Refuse what is no schema."""
    if not isinstance(schema, Schema):
        _validate.refuse("schema", schema, "a Schema", "See Schema.from_toml.")


def refuse_arguments(given: Mapping[str, Any]) -> None:
    """Refuse what ``fit`` does not take, weights of records above all."""
    if "sample_weight" in given:
        raise InvalidInput(
            "sample_weight is given: expected none, as every record counts alike, and a weight would multiply what one "
            'record can move. Leave it out; for rare classes see objective="macro".'
        )
    if given:
        raise InvalidInput(f"fit takes no {sorted(given)[0]!r}: expected X and y alone.")


def test_seed_of(random_state: Any) -> int | None:
    """A seed from the estimator's ``random_state``, which is warned of; None for noise of the operating system."""
    noise = noise_of(random_state)
    return int(noise.state.generator("fit").integers(2**31)) if isinstance(noise, KeyedNoise) else None


def declare_estimator(
    estimator: Any, table: Any, schema: Schema, *, objective: str = "accuracy", **more: Any
) -> tuple[Declaration, RecordSource]:
    """What the estimator's parameters declare of a fit of ``table``; ``more``: arguments of ``declare_fit``."""
    return declare_fit(
        table,
        schema,
        epsilon=estimator.epsilon,
        delta=estimator.delta,
        allow_large_delta=estimator.allow_large_delta,
        size=estimator.size,
        options=FitOptions("auto", estimator.epochs, None, objective, estimator.device, estimator.stop_below),
        ledger=estimator.ledger,
        **more,
    )


def fit_estimator(
    estimator: Any,
    declared: Declaration,
    source: RecordSource,
    *,
    labels: tuple[Any, ...] | None = None,
    learner: Learner | None = None,
) -> FitResult:
    """Fit by the estimator's own parameters: in its checkpoint folder, where it has one.

    Edge cases:
        an unfinished fit in the folder    goes on, if its parameters are the same
    """
    seed = test_seed_of(estimator.random_state)
    how: dict[str, Any] = {"ledger": estimator.ledger, "learner": learner}
    if estimator.checkpoint is None:
        with warn_of_refusal():
            return _with_labels(run_fit(declared, source, keys=FitKeys.draw(seed), **how), labels)
    folder = Path(estimator.checkpoint)
    resume = (folder / ARGUMENTS).exists() and not (folder / FIT).exists()
    names = ("schema", "classes", "ledger", "random_state", "checkpoint")
    settings = {name: value for name, value in estimator.get_params().items() if name not in names}
    arguments = {
        "estimator": type(estimator).__name__, **settings, "declared": declared.schema.to_dict(), "seed": seed,
        "ledger": path_of(estimator.ledger), "labels": plain_labels(labels),
    }  # fmt: skip
    with warn_of_refusal(), resumable(folder, arguments, declared, resume=resume, test_seed=seed) as begun:
        result = _with_labels(run_fit(begun.settle(declared), source, folder=begun, **how), labels)
        keep(result, begun)
        return result


def _with_labels(result: FitResult, labels: tuple[Any, ...] | None) -> FitResult:
    return result if labels is None else replace(result, model=replace(result.model, labels=labels))
