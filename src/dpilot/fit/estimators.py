"""What the two estimators share: parameters, the checkpoint folder, the noise of tests, scores that are paid for.

Neither file of the estimators imports torch, which takes longer than all else together: the first fit does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from dpilot import _validate
from dpilot._arrays import Indices
from dpilot.data.cells import Cells
from dpilot.data.rows_per_unit import MOST_ROWS
from dpilot.data.schema import Schema
from dpilot.data.types.base import BUY
from dpilot.data.units import UnitRowsBuilder
from dpilot.errors import InvalidInput
from dpilot.fit.arrays import free_name
from dpilot.fit.declaration import Declaration, FitOptions, declare_fit
from dpilot.fit.source import RecordSource
from dpilot.linear.fitting import noise_of
from dpilot.linear.inputs import unit_ids
from dpilot.linear.parameters import PrivateEstimator
from dpilot.linear.problem import Privacy, commit_stages
from dpilot.mechanism import Draws, Noise
from dpilot.metrics.metric import Metric
from dpilot.noise import KeyedNoise
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Event
from dpilot.privacy.ledger import Stage
from dpilot.privacy.notices import warn_of_refusal
from dpilot.privacy.unit import PrivacyUnit
from dpilot.records import RUNNING_TIME, FitRecord

if TYPE_CHECKING:
    from dpilot.fit.learners.base import Learner
    from dpilot.fit.model import FittedModel
    from dpilot.fit.pipeline import FitResult

__all__ = ["AutoEstimator", "PaidFigures", "PrivateScore", "check_schema", "refuse_arguments", "test_seed_of"]


@dataclass(frozen=True, slots=True)
class PrivateScore:
    """Noisy figures of private records, and what they cost."""

    metrics: tuple[Metric, ...]
    privacy: Privacy

    def __getitem__(self, name: str) -> Metric:
        return {each.name: each for each in self.metrics}[_validate.one_of([m.name for m in self.metrics], name=name)]


@dataclass(frozen=True, slots=True)
class PaidFigures:
    """What figures cost, and how they are released once that is paid."""

    event: Event
    release: Callable[[Draws, Noise], tuple[Metric, ...]]


def check_schema(schema: Any) -> None:
    """Refuse what is no schema."""
    if not isinstance(schema, Schema):
        _validate.refuse("schema", schema, "a Schema", "See Schema.from_toml.")


def refuse_arguments(given: Mapping[str, Any]) -> None:
    """Refuse what ``fit`` does not take, weights of records above all."""
    if "sample_weight" in given:
        raise InvalidInput(
            "sample_weight is given: expected none, as every record counts alike, and a weight would multiply what one "
            'record can move. Leave it out; for rare classes see class_weight="balanced".'
        )
    if given:
        raise InvalidInput(f"fit takes no {sorted(given)[0]!r}: expected X, y and units alone.")


def test_seed_of(random_state: Any) -> int | None:
    """A seed from the estimator's ``random_state``, which is warned of; None for noise of the operating system."""
    noise = noise_of(random_state)
    return int(noise.state.generator("fit").integers(2**31)) if isinstance(noise, KeyedNoise) else None


@dataclass(eq=False, repr=False, kw_only=True)
class AutoEstimator(PrivateEstimator):
    """The parameters of AutoClassifier and AutoRegressor, and what both do with a finished fit."""

    schema: Any = None
    protected: str | list[str] | None = None
    epochs: float | None = None
    device: str | None = None
    checkpoint: Any = None
    stop_below: float = 0.5

    def _most_rows(self) -> int:
        """That of ``rows_per_unit="buy"`` is the most that can be bought."""
        return MOST_ROWS if self.rows_per_unit == BUY else super()._most_rows()

    def record(self) -> FitRecord:
        """The fit as the report and the command line see it: declared and released values only."""
        check_is_fitted(self)
        record: FitRecord = self.record_
        return record

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the report of the fit, one HTML page; it costs nothing. ``options``: see ``FitRecord.write_report``."""
        return self.record().write_report(path, **options)

    def save(self, folder: str | Path) -> Path:
        """Write the fitted model to ``folder``, as data; ``dpilot.load(folder)`` predicts from it."""
        check_is_fitted(self)
        fitted: FittedModel = self.fitted_
        return fitted.save(folder)

    def _declare(
        self, table: Any, schema: Schema, *, chosen: Mapping[str, Any] | None = None, **more: Any
    ) -> tuple[Declaration, RecordSource]:
        """What the parameters declare of a fit of ``table``; ``chosen`` are options, ``more`` arguments."""
        return declare_fit(
            table,
            schema,
            rows_per_unit=None if schema.unit is None else self.rows_per_unit,
            missing_unit=self.missing_unit,
            epsilon=self.epsilon,
            delta=self.delta,
            allow_large_delta=self.allow_large_delta,
            size=self.size,
            options=FitOptions(epochs=self.epochs, device=self.device, stop_below=self.stop_below, **(chosen or {})),
            ledger=self.ledger,
            **more,
        )

    def _take_ids(self, X: Any, units: Any) -> tuple[Any, Cells | None]:
        """A table without the column of its units' ids, and those ids, from there or apart as ``units``."""
        declared = None if self.schema is None else self.schema.unit
        return unit_ids(X, self._unit(None if declared is None else declared.name, units), units)

    def _without_ids(self, ids: Cells | None) -> Schema:
        """The declared schema, in which the column of the units' ids is no feature and need not be there."""
        schema: Schema = self.schema
        unnamed = ids is None or schema.unit is not None
        return schema.with_roles(protected=self.protected, unit=None if unnamed else self.unit).without_unit()

    def _with_ids(self, table: dict[str, Any], schema: Schema, ids: Cells | None) -> tuple[dict[str, Any], Schema]:
        """The columns of a table with the ids of its units as one more."""
        if ids is None:
            return table, schema
        if len(ids) != len(next(iter(table.values()))):
            raise InvalidInput("X and units have inconsistent numbers of rows: expected one id for each row.")
        declared = None if self.schema is None else self.schema.unit
        used = [name for name, column in schema.columns.items() if column.role != "ignored"]
        name = free_name(declared.name if declared else self.unit or "unit", used)
        return {**table, name: ids}, schema.with_roles(unit=name)

    def _fit_records(
        self,
        declared: Declaration,
        source: RecordSource,
        *,
        labels: tuple[Any, ...] | None = None,
        learner: Learner | None = None,
    ) -> FitResult:
        """Fit, in the checkpoint folder where there is one, and keep what every fit releases.

        Edge cases:
            an unfinished fit in the folder    goes on, if its parameters are the same
        """
        from dpilot.fit.folder import ARGUMENTS
        from dpilot.fit.keys import FitKeys
        from dpilot.fit.model import FIT
        from dpilot.fit.pipeline import run_fit
        from dpilot.fit.table import keep, resumable

        seed = test_seed_of(self.random_state)
        how: dict[str, Any] = {"ledger": self.ledger, "learner": learner}
        with warn_of_refusal():
            if self.checkpoint is None:
                result = _with_labels(run_fit(declared, source, keys=FitKeys.draw(seed), **how), labels)
            else:
                folder = Path(self.checkpoint)
                resume = (folder / ARGUMENTS).exists() and not (folder / FIT).exists()
                arguments = self._arguments(declared, labels, seed)
                with resumable(folder, arguments, declared, resume=resume, test_seed=seed) as begun:
                    result = _with_labels(run_fit(begun.settle(declared), source, folder=begun, **how), labels)
                    keep(result, begun)
        self.fitted_, self.record_, self.health_ = result.model, result.model.record, result.health
        stamps = " ".join(result.model.record.stamps)
        self.privacy_ = Privacy(
            declared.budget, result.cost, result.entries, declared.unprotected, stamps, declared.unit,
            result.model.record.privacy["ledger"],
        )  # fmt: skip
        return result

    def _arguments(self, declared: Declaration, labels: tuple[Any, ...] | None, seed: int | None) -> dict[str, Any]:
        """What a fit must begin with again to go on in its folder."""
        from dpilot.fit.model import plain_labels
        from dpilot.fit.table import path_of

        apart = ("schema", "classes", "ledger", "random_state", "checkpoint")
        settings = {name: value for name, value in self.get_params().items() if name not in apart}
        return {
            "estimator": type(self).__name__, **settings, "declared": declared.schema.to_dict(), "seed": seed,
            "ledger": path_of(self.ledger), "labels": plain_labels(labels),
        }  # fmt: skip

    def _rows_to_score(self, X: Any, units: Any, length: int) -> Indices | slice:
        """The rows that figures read: all, or where units are protected one of each, drawn in secret."""
        unit: PrivacyUnit = self.privacy_.unit
        if unit.is_record and units is not None:
            raise InvalidInput("units are given, and the model protects records: expected none. Fit it with units.")
        _, ids = unit_ids(X, unit, units)
        if ids is None:
            return slice(None)
        if len(ids) != length:
            raise InvalidInput("X and units have inconsistent numbers of rows: expected one id for each row.")
        missing = () if self.schema is None else self.schema.missing_values
        builder = UnitRowsBuilder(unit, self._unit_key(), missing=missing)
        builder.add(ids)
        return builder.build().drawn

    def _score_privately(
        self, figures: Callable[[Budget], PaidFigures], epsilon: float, delta: float | None, ledger: Any
    ) -> PrivateScore:
        """Charge figures for an (epsilon, delta) of their own, to ``ledger`` or the estimator's, and release them."""
        budget = Budget(epsilon, self.privacy_.budget.delta if delta is None else delta)
        paid, noise = figures(budget), noise_of(self.random_state)
        stages, book = [Stage("private score", paid.event)], self.ledger if ledger is None else ledger
        charged = commit_stages(
            stages, budget, ledger=book, noise=noise, unprotected=(RUNNING_TIME,), unit=self.privacy_.unit
        )
        with charged as (run, costs), run.stage("private score") as receipt:
            found = paid.release(receipt, noise)
        return PrivateScore(found, costs[0])


def _with_labels(result: FitResult, labels: tuple[Any, ...] | None) -> FitResult:
    return result if labels is None else replace(result, model=replace(result.model, labels=labels))
