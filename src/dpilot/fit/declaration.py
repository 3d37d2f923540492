"""What is declared of a fit before a record is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dpilot import _validate
from dpilot._plugins import LEARNERS, plugin_names
from dpilot.data.column import Column
from dpilot.data.rows_per_unit import MOST_ROWS
from dpilot.data.schema import Schema
from dpilot.data.types.base import BUY
from dpilot.errors import InvalidInput
from dpilot.fit.class_weights import BALANCED, CAP, DECISIONS, check_class_weight
from dpilot.fit.on_disk import count_units
from dpilot.fit.population import describe_unit
from dpilot.fit.source import RecordSource, TableSource
from dpilot.metrics.counts import Layout
from dpilot.metrics.objective import check_objective, place_objective
from dpilot.metrics.residuals import Groups
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Ledger, fit_budget
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.records import RUNNING_TIME, is_size_published, published_size

__all__ = ["MODELS", "Declaration", "FitOptions", "FitTask", "declare", "declare_fit", "resolve_size"]

MODELS: Final = ("auto", "grids", "additive", "logistic", "linear", "mlp", "finetune")


@dataclass(frozen=True, slots=True)
class FitTask:
    """What is predicted, and what is compared, by the schema; ``class_names`` where figures call classes otherwise."""

    schema: Schema
    class_names: tuple[str, ...] | None = None

    @property
    def target(self) -> Column:
        return self.schema.target

    @property
    def numeric(self) -> bool:
        """Whether the target is a number."""
        return self.target.type == "numeric"

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a record: one a class, or the number."""
        return len(self.target.categories or ("",))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The declared bounds of a numeric target; None where they are to be bought."""
        return self.target.interval if isinstance(self.target.bounds, tuple) else None

    @property
    def groups(self) -> tuple[Groups, ...]:
        """Whose figures are compared: the groups of each protected column."""
        columns = self.schema.protected_columns
        return tuple(Groups(column.categories or ("",), column.name) for column in columns)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """What is counted of held-out records, where the target has classes: a table for each protected column."""
        classes = self.classes
        return tuple(Layout(classes, each.names, each.attribute) for each in self.groups) or (Layout(classes),)

    @property
    def classes(self) -> tuple[str, ...]:
        """What figures call the classes; none of a number."""
        return self.class_names or self.target.categories or ()


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What may be chosen of a fit beside its budget: model, compute, objective of the tuning, share held out, device.

    ``epochs``: the most passes over the records of one run. ``held_out``: None leaves it to the learner.
    ``stop_below``: the usable share of the records below which the health check stops the fit.
    ``class_weight``: of the loss, by the name of the class, or "balanced" by noisy counts, which are bought; none is
    more than ``weight_cap`` times another. ``decision``: "likeliest", or "prior": by probabilities over noisy priors;
    None is "prior" where "balanced" has paid for them.
    """

    model: str = "auto"
    epochs: float | None = None
    held_out: float | None = None
    objective: str = "accuracy"
    device: str | None = None
    stop_below: float = 0.5
    class_weight: str | Mapping[str, float] | None = None
    weight_cap: float = CAP
    decision: str | None = None

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            _validate.one_of((*MODELS, *plugin_names(LEARNERS)), model=self.model)
        check_objective(self.objective)
        if self.held_out is not None:
            _validate.open_unit("It is the share kept apart for the metrics.", held_out=self.held_out)
        if self.epochs is not None:
            object.__setattr__(self, "epochs", _validate.positive(epochs=self.epochs))
        _validate.share("It is a share of the records.", stop_below=self.stop_below)
        object.__setattr__(self, "class_weight", check_class_weight(self.class_weight))
        if _validate.positive(weight_cap=self.weight_cap) < 1:
            _validate.refuse("weight_cap", self.weight_cap, "1 or more", "It is the largest weight over the least.")
        default = "prior" if self.class_weight == BALANCED else "likeliest"
        object.__setattr__(self, "decision", _validate.one_of(DECISIONS, decision=self.decision or default))

    @property
    def buys_counts(self) -> bool:
        """Whether noisy counts of the classes are needed."""
        return self.class_weight == BALANCED or self.decision == "prior"


@dataclass(frozen=True, slots=True)
class Declaration:
    """Schema, budget, size and options of a fit; ``size``, in units, is None while it is still to be bought.

    Guarantee:
        Nothing in it comes from a record's value. The number of records is in it only where the caller made it public,
        and is then listed as unprotected.
    """

    schema: Schema
    budget: Budget
    size: int | None
    options: FitOptions
    name: str
    unprotected: tuple[str, ...]
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    unit: PrivacyUnit = RECORD
    buys_rows: bool = False  # how many rows of a unit count; ``unit.rows`` is then the most

    @property
    def task(self) -> FitTask:
        return FitTask(self.schema, self.class_names)

    @property
    def public_size(self) -> bool:
        """Whether the number of records, or of units, was taken from the data."""
        return is_size_published(self.unprotected)


def declare_fit(
    source: Any,
    schema: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    allow_large_delta: bool = False,
    size: str | int = "public",
    target: str | None = None,
    protected: str | Iterable[str] | None = None,
    unit: str | None = None,
    rows_per_unit: int | str | None = None,
    missing_unit: str = "null",
    options: FitOptions | None = None,
    class_names: tuple[str, ...] | None = None,
    unprotected: tuple[str, ...] = (),
    ledger: Ledger | str | os.PathLike[str] | None = None,
) -> tuple[Declaration, RecordSource]:
    """What is declared of a fit, and the table it is of; its length is read only if it is public.

    ``unit`` names the column of ids whose rows are one unit, where the schema does not (role "unit"); the length is
    then the number of different ids. ``rows_per_unit="buy"`` leaves the cap to a noisy quantile.

    Of the delta of ``ledger`` no more is taken than the fit's part (``privacy.ledger.fit_budget``).
    """
    if not isinstance(schema, Schema):
        raise InvalidInput(f"schema is a {type(schema).__name__}: expected a Schema, such as Schema.load(path).")
    roles = schema.with_roles(target=target, protected=protected, unit=unit).pin_encoders()
    # what is no table (images) comes as a RecordSource; its class is asked, as a frame may have a column of that name
    table: RecordSource = source if hasattr(type(source), "inspect") else TableSource.of(source, roles)
    named = table.schema.unit
    buys_rows = isinstance(rows_per_unit, str)
    if isinstance(rows_per_unit, str):
        _validate.one_of((BUY,), "Or a whole number, declared.", rows_per_unit=rows_per_unit)
        rows_per_unit = MOST_ROWS
    protects = PrivacyUnit.of(None if named is None else named.name, rows_per_unit, missing_unit)
    length = 0 if size != "public" else table.length() if protects.is_record else count_units(table, protects)
    known, public = resolve_size(size, length)
    declared = declare(
        table.schema,
        epsilon=epsilon,
        delta=delta,
        allow_large_delta=allow_large_delta,
        size=known,
        public_size=public,
        name=table.name,
        options=options or FitOptions(),
        class_names=class_names,
        unprotected=unprotected,
        unit=protects,
    )
    budget = fit_budget(ledger, declared.budget)
    lessened = f"Of the ledger's delta this fit takes its part alone: {budget.delta:.4g}."
    notes = (*declared.notes, *[lessened] * (budget.delta < declared.budget.delta))
    return replace(declared, budget=budget, notes=notes, buys_rows=buys_rows), table


def declare(
    schema: Schema,
    *,
    epsilon: float,
    delta: float | None,
    allow_large_delta: bool = False,
    size: int | None,
    public_size: bool,
    name: str,
    options: FitOptions,
    class_names: tuple[str, ...] | None = None,
    unprotected: tuple[str, ...] = (),
    unit: PrivacyUnit = RECORD,
) -> Declaration:
    """Check what the caller declares, and fill in the defaults; ``unprotected`` is what else was published."""
    _check_roles(schema)
    _check_model(FitTask(schema, class_names), options)
    if options.device is not None:  # before a ledger or a folder is made; torch alone knows what is there
        from dpilot.train.job import find_device

        find_device(options.device)
    if any(column.type == "image" for column in schema.features):  # a backbone that is not there is told now
        from dpilot.fit.embeddings import embeddings_of

        embeddings_of(schema, options.device)
    budget = Budget.of_size(epsilon, delta, size, allow_large_delta=allow_large_delta)
    rule = "min(1e-5, 1/(10 size))" if size is not None else "what is usual where the size is bought"
    given = f"delta was not given: {rule} was taken, {budget.delta:.3g}." if delta is None else None
    return Declaration(
        schema=schema,
        budget=budget,
        size=size,
        options=options,
        name=name,
        unprotected=(*unprotected, *((published_size(unit), RUNNING_TIME) if public_size else (RUNNING_TIME,))),
        notes=tuple(each for each in (given, budget.check_size(size), describe_unit(unit)) if each),
        class_names=class_names,
        unit=unit,
    )


def resolve_size(size: Any, length: int) -> tuple[int | None, bool]:
    """The number to plan with, or None if it is to be bought, and whether it was taken from the data.

    >>> resolve_size("public", 70), resolve_size(100, 70), resolve_size("private", 70)
    ((70, True), (100, False), (None, False))
    """
    if isinstance(size, str):
        _validate.one_of(("public", "private"), "Or a whole number, declared.", size=size)
        if size == "private":
            return None, False
        if length == 0:
            raise InvalidInput("the table has 0 records: expected one or more.")
        return length, True
    return _validate.count('Or "public" or "private".', size=size), False


def _check_roles(schema: Schema) -> None:
    if not schema.features:
        raise InvalidInput("no column is a feature: expected one or more beside the target.")
    for group in schema.protected_columns:
        if group.type != "categorical":
            raise InvalidInput(
                f"protected is {group.name!r}, a {group.type} column: expected a categorical one. Declare its groups."
            )
    _ = schema.target


def _check_model(task: FitTask, options: FitOptions) -> None:
    """Refuse what the model cannot do, as far as declared words tell."""
    name = task.target.name
    if options.model == "additive" and task.numeric:
        raise InvalidInput(f'model is "additive" and the target {name!r} is a number: use "auto" or "grids".')
    if options.model == "grids" and options.device not in (None, "cpu"):
        _validate.refuse("device", options.device, 'None or "cpu"', "Grids run on the CPU.")
    if options.model == "linear" and not task.numeric:
        raise InvalidInput(f'model is "linear" and the target {name!r} has classes: use "logistic".')
    if options.model != "auto" and task.numeric and task.interval is None:
        raise InvalidInput(
            f'the bounds of the target {name!r} are to be bought: expected declared ones, or model="auto".'
        )
    if options.model == "finetune":
        _check_finetune(task)
    if options.objective != "accuracy" and (options.model not in ("auto", "additive") or task.numeric):
        what = (
            f'model is "{options.model}", which has no trials' if options.model != "auto" else "the target is numeric"
        )
        _validate.refuse(
            "objective", options.objective, '"accuracy", the default', f"It is what trials aim at: {what}."
        )
    if options.objective == "worst_group" and len(task.groups) > 1:
        names = [each.attribute for each in task.groups]
        raise InvalidInput(f"worst_group is asked for with protected columns {names}: expected one of them.")
    _check_classes(task, options)
    if options.model == "auto" and task.numeric:
        if options.epochs is not None:
            _validate.refuse("epochs", options.epochs, "None", "Least squares sets its own number of steps.")
        if options.device not in (None, "cpu"):
            _validate.refuse("device", options.device, 'None or "cpu"', "Least squares runs on the CPU.")


def _check_finetune(task: FitTask) -> None:
    """Refuse what no encoder of text can be fine-tuned on."""
    features = task.schema.features
    if task.numeric:
        raise InvalidInput(f'model is "finetune" and the target {task.target.name!r} is numeric: expected classes.')
    if len(features) != 1 or features[0].encoder is None:
        names = [column.name for column in features][:5]
        raise InvalidInput(
            f'model is "finetune" and the features are {names!r}: expected one column of type = "text" with '
            'encoder = "minilm", or the folder of another. Give the others role = "ignored", or use model = "auto", '
            "which takes an encoder beside other columns, and pictures."
        )


def _check_classes(task: FitTask, options: FitOptions) -> None:
    """Refuse weights, decisions and objectives of classes that are not the target's."""
    weights = options.class_weight
    if task.numeric and (weights is not None or options.decision != "likeliest"):
        raise InvalidInput(f"class weights are given and the target {task.target.name!r} is numeric: expected classes.")
    if isinstance(weights, Mapping) and not task.schema.buys_classes:
        for name in weights:
            _validate.one_of(task.classes, "It is a class.", class_weight=name)
    if task.schema.buys_classes:
        named = "class_weight" if isinstance(weights, Mapping) else "objective" if ":" in options.objective else None
        if named is not None:
            _validate.refuse(
                named, getattr(options, named), "no name of a class", "The classes are still to be bought."
            )
    elif not task.numeric:
        place_objective(options.objective, task.classes)
