"""``fit_table``: a private model of a table in a file or in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpilot.data.files import Table
from dpilot.data.schema import Schema
from dpilot.errors import DpilotError
from dpilot.fit.class_weights import CAP
from dpilot.fit.declaration import Declaration, FitOptions, declare_fit
from dpilot.fit.folder import FitFolder, open_folder
from dpilot.fit.keys import FitKeys
from dpilot.fit.learners.base import Tell, silent
from dpilot.fit.learners.networks import Network, Step, data_free_step
from dpilot.fit.model import FittedModel
from dpilot.fit.pipeline import FitResult, FitStopped, Reading, run_fit
from dpilot.privacy.ledger import Balance, Ledger, ledger_exists
from dpilot.privacy.ledger.postgres import PostgresUrl
from dpilot.privacy.ledger.store import is_postgres
from dpilot.train.payment import LEDGER
from dpilot.train.progress import Progress

__all__ = ["fit_table", "keep", "path_of", "resumable"]


def fit_table(
    source: Any,
    schema: Schema,
    *,
    epsilon: float,
    delta: float | None = None,
    allow_large_delta: bool = False,
    target: str | None = None,
    protected: str | Sequence[str] | None = None,
    unit: str | None = None,
    rows_per_unit: int | str | None = None,
    missing_unit: str = "null",
    epochs: float | None = None,
    model: str = "auto",
    objective: str = "accuracy",
    class_weight: str | Mapping[str, float] | None = None,
    weight_cap: float = CAP,
    decision: str | None = None,
    held_out: float | None = None,
    size: str | int = "public",
    stop_below: float = 0.5,
    ledger: Ledger | str | Path | None = None,
    run_folder: str | Path | None = None,
    resume: bool = False,
    step: Step = data_free_step,
    device: str | None = None,
    tell: Tell = silent,
    progress: Progress | None = None,
    reading: Reading | None = None,
    unprotected: Sequence[str] = (),
    test_seed: int | None = None,
) -> FittedModel:
    """A private model of a table, with its held-out figures, for one total (epsilon, delta).

    Args:
        source: the path of a csv or parquet file or of a folder of pictures, an opened one, or a data frame.
        schema: what is declared of its columns.
        epochs: the most passes over the records of one run.
        model: "auto" (grids where records and budget allow, else a tuned linear head for classes, least squares for
            numbers), "grids", "additive" (that head), "logistic", "linear", "mlp", or
            "finetune": low-rank adapters on the encoder of the one text.
        objective: what tuning aims at, for "auto" and classes: "accuracy", "macro", "worst_class", "worst_group", or
            the recall of a class, "recall:yes".
        class_weight: weights of the loss by class, the others 1, such as {"yes": 5}; or "balanced", by noisy counts of
            the training part, which are bought. They act before clipping, so they change no price.
        weight_cap: the most that a weight is over another; larger ones are cut to it.
        decision: "likeliest", or "prior": the class whose probability is largest over its noisy share of the training
            part, which is bought; the default, where "balanced" has bought it.
        protected: a column whose groups are compared, or several.
        unit: the column of ids whose rows are one unit (a patient), protected with all of them, where the schema has no
            column of role "unit".
        rows_per_unit: the cap: at most so many rows of a unit count; 8 by default. "buy" finds it for half a percent of
            mu^2: a noisy quantile of the numbers of rows, 64 at most.
        missing_unit: "null": rows without an id count for nothing; "row": each is a unit, protected as a row only.
        held_out: the share of the records for figures; the learner's default where None.
        stop_below: the usable share of records below which the fit stops after its health check.
        ledger: where it is paid; without one a ledger of this fit's own is made and saved with it.
        run_folder: where the fit is saved; it can go on from there after a crash, with ``resume``.
        step: the step size of a network, from declared numbers; by default it is data-free.
        reading: is told how many records of how many have been read, where their number is public.
        unprotected: what was published already and is in the schema, such as the names of class folders.
        test_seed: fixes noise and coins, and stamps the record as not private.

    Raises:
        InvalidInput: an argument is wrong; nothing was paid.
        BudgetExceeded: the ledger does not hold the whole price; nothing was paid.
        FitStopped: too few records can be used; only the health check was paid.

    Guarantee:
        That of ``pipeline.run_fit``.

    Edge cases:
        delta left out     min(1e-5, 1/(10 size)), or 1e-6 where the size is bought, and the record says so
        delta >= 1/size    refused unless ``allow_large_delta``
        size = "private"   a noisy count is bought; sampling rate and steps are then fixed without it
        a ledger again     a new split is drawn, and the price is added to what was spent: the old split would cost as
                           much, since a fit spends its epsilon on each part, and rows may have moved since

    Example:
        ``run = fit_table("adult.parquet", Schema.load("adult.toml"), epsilon=1.0); run.predict(frame)``
    """
    options = FitOptions(model, epochs, held_out, objective, device, stop_below, class_weight, weight_cap, decision)
    given: dict[str, Any] = {
        "epsilon": epsilon, "delta": delta, "allow_large_delta": allow_large_delta, "size": size, "target": target,
        "protected": [protected] if isinstance(protected, str) else protected, "unit": unit,
        "rows_per_unit": rows_per_unit, "missing_unit": missing_unit,
        "unprotected": tuple(unprotected),
    }  # fmt: skip
    schema = schema.pin_encoders() if isinstance(schema, Schema) else schema  # what a fit goes on with
    declared, table = declare_fit(source, schema, **given, options=options, ledger=ledger)
    learner = None if step is data_free_step else Network("mlp" if model == "mlp" else "linear", step)
    how: dict[str, Any] = {"ledger": ledger, "learner": learner, "tell": tell, "progress": progress, "reading": reading}
    if run_folder is None:
        return run_fit(declared, table, keys=FitKeys.draw(test_seed), **how).model
    arguments = {
        **_describe_source(source),
        **given,
        **asdict(options),
        "schema": schema.to_dict(),
        "ledger": path_of(ledger),
        "test_seed": test_seed,
    }
    with resumable(Path(run_folder), arguments, declared, resume=resume, test_seed=test_seed) as begun:
        result = run_fit(begun.settle(declared), table, folder=begun, **how)
        return keep(result, begun)


@contextmanager
def resumable(
    folder: Path, arguments: dict[str, Any], declared: Declaration, *, resume: bool, test_seed: int | None = None
) -> Iterator[FitFolder]:
    """A run folder that an interrupted fit can go on from; whatever interrupts it says what is paid and how."""
    plain = json.loads(json.dumps(arguments, default=str))
    with open_folder(folder, plain, declared.budget.delta, resume=resume, test_seed=test_seed) as begun:
        try:
            yield begun
        except FitStopped:
            begun.discard()
            raise
        except BaseException as problem:
            problem.add_note(
                f"{_describe_paid(folder, plain['ledger'])} It can go on from {folder}: dpilot fit --resume {folder}, "
                "or the same call again with checkpoint= or resume=True."
            )
            raise


def _describe_paid(folder: Path, ledger: str | None) -> str:
    path = folder / LEDGER if ledger is None else ledger
    try:
        if not ledger_exists(path):
            return "The fit has paid nothing."
        return f"What the fit has paid stays spent; of its ledger {Balance.of(Ledger.read(path))}."
    except DpilotError:  # the problem may be the ledger itself
        return "What the fit has paid stays spent."


def keep(result: FitResult, folder: FitFolder) -> FittedModel:
    """Save a finished fit in its folder, and leave no secret."""
    result.model.save(folder.path)
    folder.finish()
    return result.model


def path_of(ledger: Ledger | str | Path | None) -> str | None:
    """Which ledger it is, as text: for what a fit began with."""
    if ledger is None:
        return None
    if isinstance(ledger, Ledger):
        return str(ledger.path)
    return str(PostgresUrl.parse(ledger) if is_postgres(ledger) else Path(ledger).resolve())


def _describe_source(source: Any) -> dict[str, Any]:
    if isinstance(source, Table):
        dialect = source.dialect
        plain = {"encoding": dialect.encoding, "delimiter": dialect.delimiter}
        return {"data": str(Path(source.path).resolve()), **plain}
    return {"data": str(Path(source).resolve()) if isinstance(source, str | Path) else None}
