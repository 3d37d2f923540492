"""One fit: declare -> plan -> (classes ->) health -> commit -> buy -> train -> score -> record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit import learners
from dpilot.fit.class_purchase import ClassPurchase
from dpilot.fit.class_weights import ClassWeights, resolve_class_weights
from dpilot.fit.declaration import Declaration
from dpilot.fit.figures import softmax
from dpilot.fit.folder import FitFolder
from dpilot.fit.health import Health, health_event, health_noise, health_share, release_health, split_budget
from dpilot.fit.influence import find_influences
from dpilot.fit.keys import FitKeys
from dpilot.fit.learners.base import Learner, LearnerPlan, PaidRun, Tell, Trained, silent
from dpilot.fit.learners.shifted import shift
from dpilot.fit.model import FittedModel
from dpilot.fit.on_disk import RecordsOnDisk, is_too_large
from dpilot.fit.payment import Payments, open_payments
from dpilot.fit.population import HELD_OUT, TRAIN, RecordsByUnit
from dpilot.fit.purchases import Purchases
from dpilot.fit.source import RecordSource, RowReader, Seen, TableSource
from dpilot.metrics.metric import Metric
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Committed, Entry, Ledger, Stage, describe_ledger, ledger_exists
from dpilot.privacy.unit import PrivacyUnit
from dpilot.records import BY_PARTS, FitRecord
from dpilot.train.progress import Progress

__all__ = ["METRICS", "FitPlan", "FitResult", "FitStopped", "plan_fit", "run_fit"]

METRICS: Final = "held-out metrics"
_HOW: Final = f"the health check, then everything else that touched the records, tuning included: {BY_PARTS}"


Reading = Callable[[int, int], None]
"""Called with how many records of how many have been read: for a screen."""


@dataclass(frozen=True, slots=True)
class FitPlan:
    """What a fit will cost and do, fixed from declared numbers: health, purchases, training and figures.

    Where ``classes`` are bought, ``declared`` is what is left of the fit, with two imagined ones until they are known.

    Guarantee:
        Health and the rest together cost no more than the declared budget in a ledger of ``bound``. On each part, what
        is bought from all records and what is spent on the part cost no more than ``rest``; disjoint parts compose in
        parallel, so both may use all of it.
    """

    declared: Declaration
    health_share: float
    health: Budget
    rest: Budget
    purchases: Purchases
    learned: LearnerPlan
    classes: ClassPurchase | None = None

    def health_stages(self, name: str) -> list[Stage]:
        """The first commitment; ``name`` is that of the fit's key."""
        return [Stage(f"health of fit {name}", health_event(health_noise(self.health)))]

    def stages(self, split: str) -> list[Stage]:
        """The second commitment: all of the rest."""
        figures = Stage(METRICS, self.learned.figures.event, HELD_OUT, split)
        return [*self.purchases.stages(split), *self.learned.stages(split), figures]

    def commitments(self, name: str, split: str) -> tuple[tuple[list[Stage], Budget], tuple[list[Stage], Budget]]:
        """Those of health and of all the rest, each with its price."""
        return (self.health_stages(name), self.health), (self.stages(split), self.rest)

    @property
    def shares(self) -> dict[str, float]:
        """The expected shares of the parts."""
        return {TRAIN: 1 - self.learned.held_out, HELD_OUT: self.learned.held_out}


@dataclass(frozen=True, slots=True, eq=False)
class FitResult:
    """The model, and what else a door may want to keep of what was released."""

    model: FittedModel
    trained: Trained = field(repr=False)
    metrics: tuple[Metric, ...] = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)
    cost: Cost
    health: Health


class FitStopped(InvalidInput):
    """The health of the data was below the limit, or (``health`` None) fewer than two classes were found.

    Nothing but the health check was paid, and the classes where they were bought.
    """

    def __init__(self, health: Health | None, cost: Cost, left: Cost, why: str = "") -> None:
        self.health, self.cost, self.left = health, cost, left
        super().__init__(why if health is None else _describe_illness(health, cost, left))


def _describe_illness(health: Health, cost: Cost, left: Cost) -> str:
    flaws = " ".join(health.sentences()[1:])
    unreadable = any(each.what == "unreadable" for each in health.loud)
    encoding = ", of a csv file check --encoding and --delimiter too" if unreadable else ""
    return (
        f"only about {health.usable} of the records can be used, below the limit of {health.stop_below:.0%}: "
        f"stopped after the health check, which cost epsilon {cost.epsilon:.3g}; {left.epsilon:.6g} is left. "
        f"{flaws} Correct the schema (dpilot schema check){encoding}, or lower the limit (stop_below, "
        "--stop-below)."
    )


def plan_fit(declared: Declaration, bound: str, learner: Learner | None = None) -> FitPlan:
    """Everything that decides the privacy of a fit that is paid in a ledger of ``bound``."""
    if declared.schema.buys_classes:
        classes = ClassPurchase.plan(declared.budget)
        return replace(plan_fit(classes.settle(declared), bound, learner), classes=classes)
    chosen = learner or learners.learner(declared)
    share = health_share(declared.budget, bound, declared.size)
    health, rest = split_budget(declared.budget, bound, share)
    purchases = chosen.purchases(declared, rest)
    return FitPlan(declared, share, health, rest, purchases, chosen.plan(declared, rest, purchases))


@np.errstate(all="ignore")  # whatever the caller set: an underflow would reveal one record
def run_fit(
    declared: Declaration,
    source: RecordSource,
    *,
    ledger: Ledger | str | Path | None = None,
    folder: FitFolder | None = None,
    keys: FitKeys | None = None,
    learner: Learner | None = None,
    tell: Tell = silent,
    progress: Progress | None = None,
    reading: Reading | None = None,
) -> FitResult:
    """Carry out a fit, new or interrupted; ``folder`` is where it can go on from after a crash.

    ``reading`` is told how many records of how many have been read, where their number is public, and else nothing.

    Guarantee:
        All noise is fixed from declared numbers, and from the classes where these are bought, which is paid for and
        done before anything else. The price of the health check is in the ledger before a value is read,
        and that of all the rest, as one commitment, once the health is known and before anything else is released.
        Training reads the part "train" only, figures the part "held-out" only; a unit lies in one part, with all its
        rows. No value of a record raises, but for
        FitStopped, which a noisy release decides; and all that leaves is declared or released.
    """
    gaussian = not declared.schema.buys_classes and (learner or learners.learner(declared)).gaussian
    keys = keys or (FitKeys.draw() if folder is None else folder.keys)
    repeat = folder.log.frozen if folder is not None and folder.resumed else None
    home = None if folder is None else folder.path
    total, bound = declared.budget, _bound_of(ledger, gaussian)
    plan = plan_fit(declared, bound, learner)
    payments = open_payments(ledger, total, declared.name, home, gaussian=gaussian, repeat=repeat, unit=declared.unit)
    if plan.classes is not None:
        plan.classes.check_bound(bound)
        payments.check_room(
            plan.classes.commitment(keys.name), *plan.commitments(keys.name, keys.split(plan.shares).id)
        )
        classes = _buy_classes(plan.classes, source, declared.unit, payments, keys)
        declared, source = plan.classes.settle(declared, classes), _with_classes(source, classes)
        plan = replace(plan_fit(declared, bound, learner), classes=plan.classes)
    split = keys.split(plan.shares)
    health_price, rest_price = plan.commitments(keys.name, split.id)
    payments.check_room(health_price, rest_price)
    health_paid = payments.commit(*health_price)
    records = _group(source, declared.unit, keys)
    health = _check_health(plan, records.sample, payments, health_paid, keys, tell)
    committed = payments.commit(*rest_price)
    cost = payments.cost(total)
    size = plan.purchases.buy_size(records.sample, declared, committed, keys.noise.spawn())
    rows = plan.purchases.buy_rows(records, committed, keys.noise)
    unit = declared.unit if rows is None else replace(declared.unit, rows=rows)
    reader = plan.learned.reader(plan.purchases.buy_bounds(records.sample, size, committed, keys.noise.spawn()))
    parts = records.first(source, rows).parts(reader, split, _seen(declared, reading))
    counts = plan.purchases.buy_counts(parts, declared.task.outputs, committed, keys.noise)
    weights = _class_weights(plan, counts)
    run = PaidRun(committed, keys, split.id, size, cost, tell, progress, weights.weights, unit)
    trained = plan.learned.train(parts, run)
    predictor = shift(trained.predictor, weights.offsets)
    if declared.task.numeric:  # one number a record
        outputs: Any = np.asarray(parts.score(predictor.outputs))
    else:
        outputs = parts.score(lambda some: softmax(predictor.outputs(some)))
    with committed.stage(METRICS) as receipt:
        metrics = trained.figures.release(parts.held_out, outputs, receipt, keys.noise.spawn())
    entries = _entries(plan, keys, payments, committed)
    record = _record(plan, trained, weights, metrics, health, entries, payments, cost, size, keys.noise.stamp, unit)
    own = payments.book if payments.own else None
    model = FittedModel(_with_bought(declared.schema, reader), reader, predictor, record, health, own)
    return FitResult(
        replace(model, record=replace(record, influences=find_influences(model))),
        trained,
        metrics,
        entries,
        cost,
        health,
    )


def _seen(declared: Declaration, reading: Reading | None) -> Seen | None:
    """Who is told of records that were read; nobody where their number, or that of rows of units, is protected."""
    total = declared.size
    if reading is None or total is None or not declared.public_size or not declared.unit.is_record:
        return None
    return lambda done: reading(done, total)


def _with_bought(schema: Schema, reader: RowReader) -> Schema:
    """The declared schema with the bounds that were bought, those that a learner found otherwise left out."""
    columns = reader.schema.columns
    bought = {name: columns[name].interval for name in schema.to_buy if isinstance(columns[name].bounds, tuple)}
    return schema.with_bounds(bought) if bought else schema


def _class_weights(plan: FitPlan, counts: Floats | None) -> ClassWeights:
    options = plan.declared.options
    return resolve_class_weights(
        plan.declared.task.classes,
        options.class_weight,
        options.decision,
        counts=counts,
        deviation=plan.purchases.counts_noise or 0.0,
        cap=options.weight_cap,
    )


def _bound_of(ledger: Ledger | str | Path | None, gaussian: bool) -> str:
    """How the ledger adds commitments up: that of one's own by squared mu, where all is Gaussian."""
    if isinstance(ledger, Ledger):
        return ledger.bound
    if ledger is None:
        return "gdp" if gaussian else "basic"
    return Ledger.read(ledger).bound if ledger_exists(ledger) else "basic"


def _group(source: RecordSource, unit: PrivacyUnit, keys: FitKeys) -> RecordsOnDisk | RecordsByUnit:
    how = (unit, keys.unit_rows)
    return RecordsOnDisk.of(source, *how) if is_too_large(source) else RecordsByUnit.of(source, *how)


def _buy_classes(
    purchase: ClassPurchase, source: RecordSource, unit: PrivacyUnit, payments: Payments, keys: FitKeys
) -> list[str]:
    """The classes, paid for alone before a value is read; fewer than two end the fit."""
    paid = payments.commit(*purchase.commitment(keys.name))
    found = purchase.buy(_group(source, unit, keys).sample, paid, keys.noise.spawn())
    if len(found) < 2:
        (entry,) = paid.entries()
        left = payments.book.remaining()
        why = (
            f"{len(found)} classes were found, and two or more are needed: one shows from about "
            f"{purchase.threshold:.0f} records on. Stopped after that, which cost epsilon {entry.cost.epsilon:.3g}; "
            f"{left.epsilon:.6g} is left. Declare the classes, or give more epsilon."
        )
        raise FitStopped(None, entry.cost, left, why)
    return found


def _with_classes(source: RecordSource, classes: Sequence[str]) -> RecordSource:
    assert isinstance(source, TableSource)  # of arrays and images classes are known before there is a source
    return replace(source, schema=source.schema.with_classes(classes))


def _check_health(
    plan: FitPlan, source: RecordSource, payments: Payments, committed: Committed, keys: FitKeys, tell: Tell
) -> Health:
    """Release the health check, which is paid for alone, and stop where it is below the limit."""
    with committed.stage(plan.health_stages(keys.name)[0].purpose) as receipt:
        health = release_health(
            source,
            plan.declared,
            noise_multiplier=health_noise(plan.health),
            receipt=receipt,
            noise=keys.noise.spawn(),
        )
    for sentence in health.sentences():
        tell(sentence)
    if health.stopped:
        (entry,) = committed.entries()
        raise FitStopped(health, entry.cost, payments.book.remaining())
    return health


def _entries(plan: FitPlan, keys: FitKeys, payments: Payments, committed: Committed) -> tuple[Entry, ...]:
    alone = [] if plan.classes is None else plan.classes.commitment(keys.name)[0]
    first = {stage.purpose for stage in (*alone, *plan.health_stages(keys.name))}
    return (*(entry for entry in payments.book.entries() if entry.purpose in first), *committed.entries())


def _record(
    plan: FitPlan, trained: Trained, weights: ClassWeights, metrics: tuple[Metric, ...], health: Health,
    entries: tuple[Entry, ...], payments: Payments, cost: Cost, size: float, stamp: str, unit: PrivacyUnit,
) -> FitRecord:  # fmt: skip
    declared = plan.declared
    groups = [each.attribute for each in declared.task.groups]
    classes = declared.class_names or declared.task.target.categories
    return FitRecord.of(
        epsilon=cost.epsilon,
        delta=cost.delta,
        accounting=_HOW if plan.classes is None else f"the classes, then {_HOW}",
        unit=unit,
        tuning="inside" if trained.trials else "none",
        head=payments.book.head(),
        paid_in=describe_ledger(payments.book, own=payments.own),
        data={
            "name": declared.name,
            "size": round(size),
            "held_out": plan.learned.held_out,
            "target": declared.task.target.name,
            "classes": None if classes is None else list(classes),
            "protected": groups[0] if len(groups) == 1 else groups or None,
            "features": [column.name for column in declared.schema.features],
            "bought_bounds": list(declared.schema.to_buy),
        },
        plan={
            "model": declared.options.model,
            **({} if unit.is_record else {"unit": unit.to_dict()}),
            **trained.plan,
            **weights.plain(),
        },
        decisions=_decisions(plan, trained, weights, health, unit, payments.book.bound),
        metrics=tuple(metric.record() for metric in metrics),
        thresholds=trained.thresholds,
        ledger=tuple(entry.as_dict() for entry in entries),
        stamps=(stamp,),
        unprotected=declared.unprotected,
        curves=trained.curves,
        health=health.to_dict(),
        steps=trained.steps,
        trials=trained.trials,
    )


def _decisions(
    plan: FitPlan, trained: Trained, weights: ClassWeights, health: Health, unit: PrivacyUnit, bound: str
) -> tuple[str, ...]:
    """The choices of the fit in the order they were made, after what the learner says in short, if it does."""
    first, *others = trained.decisions
    summary, rest = ((first,), others) if first.startswith("In short") else ((), trained.decisions)
    return (
        *summary,
        *plan.declared.notes,
        *([] if plan.classes is None else [plan.classes.reason(plan.declared.task.classes)]),
        *(
            [f"Rows per unit: {unit.rows} were bought, as about nine units of ten have no more."]
            * plan.declared.buys_rows
        ),
        f"{100 * plan.health_share:.2g} % of {'mu²' if bound == 'gdp' else 'epsilon'} went to the health check. "
        f"{health.sentences()[0]}",
        *plan.purchases.reasons,
        *weights.reasons,
        *rest,
    )
