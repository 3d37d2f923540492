"""``fit_table``: prepare, commit, train, score, record."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpilot.data import bounds
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.mechanism import SYSTEM, Noise, seeded_noise
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Committed, Ledger, Stage, as_ledger
from dpilot.statistics import count
from dpilot.tables import preparing
from dpilot.tables.declaration import HELD_OUT, FitDeclaration, declare, resolve_size
from dpilot.tables.fit_record import FitFacts, record_of
from dpilot.tables.planning import BOUNDS, METRICS, SIZE, TablePlan, plan_fit
from dpilot.tables.preparing import TableSource
from dpilot.tables.table_metrics import noisy_metrics
from dpilot.tables.table_run import TableRun
from dpilot.tables.training import StepNumbers, data_free_step, ready, train
from dpilot.train.payment import LEDGER
from dpilot.train.progress import Progress
from dpilot.train.run import Run

__all__ = ["Manner", "Step", "buy", "commit", "declare_fit", "fit_table", "open_ledger"]

Step = Callable[[StepNumbers], float]


@dataclass(frozen=True, slots=True)
class Manner:
    """How a fit is carried out, beside its privacy: step size, device, progress display, and the seed of a test."""

    step: Step = data_free_step
    device: str | None = None
    progress: Progress | None = None
    test_seed: int | None = None

    @property
    def noise(self) -> Noise:
        return SYSTEM if self.test_seed is None else seeded_noise(self.test_seed + 1)


@dataclass(frozen=True, slots=True)
class _CommittedFit:
    """A fit whose price is on disk: what it is of, its plan, its ledger and commitment, and its split."""

    declared: FitDeclaration
    table: TableSource
    plan: TablePlan
    book: Ledger
    committed: Committed
    split: Split
    manner: Manner


@np.errstate(all="ignore")  # whatever the caller set: an underflow would reveal one record
def fit_table(
    source: Any,
    schema: Schema,
    *,
    epsilon: float,
    delta: float | None = None,
    allow_large_delta: bool = False,
    target: str | None = None,
    protected: str | None = None,
    epochs: float | None = None,
    model: str = "logistic",
    held_out: float = HELD_OUT,
    size: str | int = "public",
    ledger: Ledger | str | Path | None = None,
    run_folder: str | Path | None = None,
    step: Step = data_free_step,
    device: str | None = None,
    progress: Progress | None = None,
    test_seed: int | None = None,
) -> TableRun:
    """A private model of a table, with its held-out metrics, for one total (epsilon, delta).

    ``source`` is the path of a csv or parquet file, or a data frame. ``step`` gives the step size from declared
    numbers; by default it is data-free. Without ``ledger`` a precommitted one of this budget is made and saved with the
    run. ``test_seed`` fixes noise and coins, and stamps the record as not private.

    Guarantee:
        All noise is fixed from declared numbers and the whole price is in the ledger, as one commitment, before a value
        is read: bounds and size that are bought, training, metrics. Training reads the part "train" only, metrics
        the part "held-out" only. No value of a record raises, and all that leaves is declared or released.

    Edge cases:
        delta left out     min(1e-5, 1/(10 size)), or 1e-6 where the size is bought, and the record says so
        delta >= 1/size    refused unless ``allow_large_delta``
        size = "private"   a noisy count is bought; sampling rate and steps are then fixed without it
        a ledger again     a new split is drawn, and the price is added to what was spent: the old split would cost as
                           much, since a fit spends its epsilon on each part, and rows may have moved since

    Example:
        ``run = fit_table("adult.parquet", Schema.load("adult.toml"), epsilon=1.0); run.predict(frame)``
    """
    total = {"epsilon": epsilon, "delta": delta, "allow_large_delta": allow_large_delta}
    given = {**total, "target": target, "protected": protected}
    declared, table = declare_fit(source, schema, size, epochs=epochs, model=model, held_out=held_out, **given)
    manner = Manner(step, device, progress, test_seed)
    book = open_ledger(ledger, declared.budget, table.name, run_folder)
    fitted = _fit(_commit(declared, table, book, manner), own=ledger is None)
    if run_folder is not None:
        fitted.save(run_folder)
    return fitted


def declare_fit(source: Any, schema: Schema, size: str | int, **given: Any) -> tuple[FitDeclaration, TableSource]:
    """What is declared of a fit, and the table it is of; its length is read only if it is public."""
    if not isinstance(schema, Schema):
        raise InvalidInput(f"schema is a {type(schema).__name__}: expected a Schema, such as Schema.load(path).")
    roles = schema.with_roles(target=given.pop("target"), protected=given.pop("protected"))
    table = TableSource.of(source, roles)
    known, public = resolve_size(size, table.length() if size == "public" else 0)
    return declare(roles, size=known, public_size=public, **given), table


def _commit(declared: FitDeclaration, table: TableSource, book: Ledger, manner: Manner) -> _CommittedFit:
    """Plan everything from declared numbers, and pay for all of it at once."""
    plan = plan_fit(declared)
    split = preparing.draw_split(declared.shares, manner.test_seed)
    committed = commit(book, plan.stages(declared, split.id), declared.budget)
    return _CommittedFit(declared, table, plan, book, committed, split, manner)


def commit(book: Ledger, stages: list[Stage], budget: Budget) -> Committed:
    """Put the price of everything on disk, as one commitment, before a record is read."""
    return book.commit(stages, delta=budget.delta if book.bound == "basic" else None)


def _fit(fit: _CommittedFit, *, own: bool) -> TableRun:
    """Read, train, score and record."""
    declared, plan, manner, committed = fit.declared, fit.plan, fit.manner, fit.committed
    noises = {SIZE: plan.size_noise, BOUNDS: plan.bounds_noise}
    size, encoder = buy(declared, fit.table, committed, noises, lambda: manner.noise)
    prepared = preparing.prepare(fit.table, encoder, fit.split)
    made = ready(declared, plan, prepared.expansion, size)
    lr = manner.step(made.numbers)
    cost = fit.book.spent() if own else Cost(declared.budget.epsilon, declared.budget.delta)
    run = train(
        made,
        prepared.train,
        lr,
        committed=committed,
        split=fit.split.id,
        numeric_target=declared.task.numeric,
        device=manner.device,
        progress=_total_progress(manner.progress, cost),
        test_seed=manner.test_seed,
    )
    with committed.stage(METRICS) as receipt:
        metrics = noisy_metrics(
            run.model,
            prepared.held_out,
            declared.task,
            noise_multiplier=plan.metrics_noise,
            receipt=receipt,
            noise=manner.noise,
        )
    facts = FitFacts(declared, plan, made, lr, size, cost, committed, fit.table.name)
    record = replace(run.record, epsilon=cost.epsilon, delta=cost.delta)  # not of training alone
    whole = Run(run.model, record, fit.book if own else committed)
    return TableRun(whole, encoder, record_of(facts, run, metrics))


def _total_progress(progress: Progress | None, cost: Cost) -> Progress | None:
    """A display that shows what the whole fit costs, not its training alone."""
    if progress is None:
        return None
    return lambda update: progress(replace(update, epsilon=cost.epsilon, delta=cost.delta))


def open_ledger(
    ledger: Ledger | str | Path | None, budget: Budget, name: str, folder: str | Path | None = None
) -> Ledger:
    """The ledger to pay in: the given one, the one at a path (made if it is not there), or one of this fit's own."""
    if ledger is not None:
        return as_ledger(ledger, budget, name)
    home = Path(tempfile.mkdtemp(prefix="dpilot-fit-")) if folder is None else Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    book = Ledger.open(home / LEDGER, dataset=name, budget=budget, mode="precommitted")
    if folder is None:
        weakref.finalize(book, shutil.rmtree, home, ignore_errors=True)
    return book


def buy(
    declared: FitDeclaration,
    table: TableSource,
    committed: Committed,
    noises: Mapping[str, float | None],
    make_noise: Callable[[], Noise],
) -> tuple[float, Encoder]:
    """The number of records to divide by, at least 1, and the encoder: bought where they are not declared.

    Guarantee:
        Each purchase is one noisy release at its multiplier in ``noises``, under the stage committed for it.
    """
    size, schema = float(declared.size or 1), declared.schema
    if (sigma := noises[SIZE]) is not None:
        with committed.stage(SIZE) as receipt:
            noisy = count(table.blanks(), noise_multiplier=sigma, receipt=receipt, noise=make_noise())
        size = max(noisy, 1.0)
    if (sigma := noises[BOUNDS]) is not None:
        with committed.stage(BOUNDS) as receipt:
            schema = schema.with_bounds(
                bounds.buy(schema, table.frames, size=size, noise_multiplier=sigma, receipt=receipt, noise=make_noise())
            )
    return size, Encoder(schema)
