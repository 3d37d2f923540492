"""``autopilot``: one call that tunes, trains and scores inside one budget, and explains what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from torch import nn

from dpilot import _validate, clipping
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES
from dpilot.metrics.counts import Layout, noisy_counts
from dpilot.metrics.figures import Figures
from dpilot.metrics.metric import Metric
from dpilot.metrics.objective import place_objective
from dpilot.metrics.scores import scores
from dpilot.noise import SystemNoise, seeded_noise
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Committed, Ledger, commitment, describe_ledger
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.records import BY_PARTS, RUNNING_TIME, FitRecord, StepRecord, published_size
from dpilot.train.batches.unit_reader import check_ids, rows_by_id
from dpilot.transfer.features import Features
from dpilot.tune.autopilot_plan import METRICS, AutopilotPlan, plan_heads, plan_module
from dpilot.tune.autopilot_record import Outcome, curves_of, explain, plan_of, trials_of
from dpilot.tune.defaults import TUNING_SHARE, AutopilotOptions
from dpilot.tune.module_task import ModuleTask, protected_unit
from dpilot.tune.probe_task import ProbeTask, head_threshold
from dpilot.tune.ray_crew import RayExecutor
from dpilot.tune.record import Tuned
from dpilot.tune.scaling import chosen, final_run, search
from dpilot.tune.task import HELD_OUT, TRAIN, MakeNoise, Task, count_cells, fixed_noise

__all__ = [
    "AutopilotResult", "Tell", "autopilot", "cells_of", "describe_head_clipping", "draw_split", "run_trials", "silent",
]  # fmt: skip

_MODULE_CLIPPING: Final = (
    "clipping adapts from 1, floor 0.1 (bounded-slack): its signal is free, and gradients in units of the threshold "
    "keep the step size what it is"
)
_HOW: Final = f"everything that touched the records, tuning included: {BY_PARTS}"

Tell = Callable[[str], None]
"""Called with each message, made of what was declared or released: for a screen."""


def silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class AutopilotResult:
    """What the autopilot hands out: the tuned model with its story, and the record that a report is made from.

    Everything in it was declared or released, and may be shown.
    """

    tuned: Tuned
    record: FitRecord = field(repr=False)
    metrics: tuple[Metric, ...] = field(repr=False)

    @property
    def model(self) -> Any:
        return self.tuned.model

    @property
    def spent(self) -> Cost:
        """The total, tuning and figures included."""
        return self.tuned.spent

    @property
    def decisions(self) -> tuple[str, ...]:
        return self.record.decisions

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the report, one HTML page; it costs nothing. ``options``: see ``FitRecord.write_report``."""
        return self.record.write_report(path, **options)

    def __str__(self) -> str:
        return f"{self.tuned}\n{Figures(self.metrics)}"

    def _repr_html_(self) -> str:
        return self.record.summary_table("autopilot")


def autopilot(
    what: Features | Callable[[], nn.Module],
    dataset: Any = None,
    budget: Budget | None = None,
    *,
    classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
    size: str | int = "public",
    objective: str = "accuracy",
    held_out_share: float | None = None,
    tuning_share: float = TUNING_SHARE,
    trials: int = 3,
    epochs: float | None = None,
    groups: Any = None,
    group_count: int = 0,
    loss_fn: Any = None,
    example: Any = None,
    units: Any = None,
    rows_per_unit: int | None = None,
    unit: str | PrivacyUnit = RECORD,
    ledger: Ledger | str | Path | None = None,
    device: str | None = None,
    workers: int = 1,
    executor: str | RayExecutor = "processes",
    tell: Tell = silent,
    test_seed: int | None = None,
    unprotected: tuple[str, ...] = (),
) -> AutopilotResult:
    """A model of ``what``, tuned and trained within ``budget``: nothing to choose but the budget and the compute.

    Args:
        what: ``Features``, for a linear head on their unit rows, or a function that makes a fresh module.
        dataset: of (x, y) with y one of 0 .. ``classes`` - 1, for a module.
        budget: the total, tuning and figures included.
        class_names: what figures call the classes.
        size: "public", or the number of records, declared.
        held_out_share: share of the records for scores and figures; None: 5 % to 10 %, so that noise moves an
            accuracy by a tenth of a point.
        tuning_share: part of mu^2 for trials, of which each stage has ``trials``.
        epochs: the compute, the most passes over the records of one run.
        groups: group codes of ``Features``, below ``group_count``, for the objective "worst_group".
        example: a public batch, wanted unless ``dataset`` is a TensorDataset: it shows the form of the records, and
            those of another form are null.
        units: of a module's ``dataset``, one id for each row: protects persons with all their rows, of which
            ``rows_per_unit`` count, instead of rows. ``size`` is then their number, and ``unit`` what they are called.
        workers: trials of a module that run at a time, in processes of their own (``ModuleTask``).
        executor: "processes" on this machine, or "ray": workers on a Ray cluster.
        tell: called with each message of progress.
        test_seed: fixes coins and noise; the record is stamped as not private.

    Returns:
        The tuned model, its figures and the record of the run: declared and released values only.

    Raises:
        InvalidInput: an argument is wrong; nothing was paid.
        BudgetExceeded: the ledger does not hold the whole price; nothing was written.

    Guarantee:
        Trials, scores, final run and figures are one commitment: all noise is fixed, and the whole price is in the
        ledger, before a record is read. Scores and figures are read on held-out records. The record explains every
        decision in words, and the share of mu^2 that went to tuning.

    Edge cases:
        trials that would be too noisy    from declared numbers alone: none are made, nothing is spent on them, and the
                                          data-free step size is used

    Example:
        >>> import torch
        >>> rows = torch.randn(2_000, 3)
        >>> result = autopilot(Features.of(rows, (rows[:, 0] > 0).long(), 2), budget=Budget(2.0, 1e-5))
        >>> result.tuned.trials, result.spent.epsilon <= 2.0
        ((), True)
        >>> result.model.shape, bool(result.model[0, 1] > result.model[0, 0])
        (torch.Size([3, 2]), True)
    """
    if not isinstance(budget, Budget):
        raise InvalidInput(f"budget is a {type(budget).__name__}: expected a Budget, such as Budget(1.0, 1e-5).")
    objective = objective if class_names is None else place_objective(objective, class_names)
    options = AutopilotOptions(objective, held_out_share, tuning_share, trials, epochs)
    protected = _protected_unit(what, size, units, unit, rows_per_unit)
    known = _declared_size(size, lambda: _count(what if isinstance(what, Features) else dataset, units, protected))
    run = _AutopilotRun(
        budget=budget,
        size=known,
        options=options,
        ledger=ledger,
        unprotected=(*unprotected, *([published_size(protected)] if size == "public" else []), RUNNING_TIME),
        device=device,
        tell=tell,
        test_seed=test_seed,
        class_names=class_names,
        unit=protected,
    )
    if isinstance(what, Features):
        return _run_heads(what, run, groups, group_count)
    more = {"example": example, "workers": workers, "executor": executor, "units": units}
    return _run_module(what, dataset, run, classes, loss_fn, more)


def run_trials(plan: AutopilotPlan, task: Task, committed: Committed, tell: Tell = silent) -> Outcome:
    """Run the trials and the final run that were planned and paid.

    Guarantee:
        Trials and final run draw on the part "train", scores on "held-out". Which (lr, steps) the final run uses
        depends on releases alone, and not its price. Nothing is run twice, nothing is left out.
    """
    scaling = plan.scaling
    if scaling.rounds:
        shown = " and ".join(f"{epsilon:.2g}" for epsilon in scaling.epsilons)
        tell(f"{len(scaling.rounds)} stages of {plan.options.trials} trials, at epsilon {shown} each")
    result = search(scaling, task, committed)
    for note in result.notes:
        tell(note)
    candidate, notes = chosen(result.law, scaling.final_epsilon, scaling.box, scaling.split)
    tell(f"final run: {candidate.steps} steps of {candidate.lr:.4g} at epsilon {scaling.final_epsilon:.4g}")
    kept: list[StepRecord] = []
    model = final_run(scaling, task, committed, candidate, kept.extend)
    return Outcome(model, candidate, result, notes, tuple(kept))


def describe_head_clipping(threshold: float) -> str:
    """Why the clipping of linear heads is as it is."""
    bounded = "on rows scaled to length 1 a gradient is at most 1.41 long, so there is nothing to adapt"
    return f"clipping at {threshold:g}: {bounded}"


def draw_split(held_out: float, test_seed: int | None) -> Split:
    """Secret coins: from the operating system, or those of a test."""
    shares = {TRAIN: 1 - held_out, HELD_OUT: held_out}
    if test_seed is None:
        return Split.draw(shares)
    return Split(shares, seeded_noise(test_seed).state.generator("autopilot split").bytes(KEY_BYTES))


def cells_of(objective: str, classes: int, groups: int) -> int:
    """How many rows the table of a score has; an objective that needs groups is refused without them."""
    return count_cells(objective, classes, groups, "a protected column, or groups= and group_count=")


@dataclass(frozen=True, slots=True)
class _AutopilotRun:
    """What both kinds of model share."""

    budget: Budget
    size: int
    options: AutopilotOptions
    ledger: Ledger | str | Path | None
    unprotected: tuple[str, ...]
    device: str | None
    tell: Tell
    test_seed: int | None
    class_names: tuple[str, ...] | None
    unit: PrivacyUnit

    @property
    def noise(self) -> MakeNoise:
        return SystemNoise if self.test_seed is None else fixed_noise(self.test_seed)

    def layout(self, classes: int, groups: int = 0) -> Layout:
        """What figures are counted by."""
        names = tuple(map(str, range(classes))) if self.class_names is None else self.class_names
        return Layout(names, tuple(map(str, range(groups))), "group") if groups else Layout(names)

    def carry_out(
        self,
        plan: AutopilotPlan,
        split: Split,
        make_task: Callable[[], ProbeTask | ModuleTask],
        layout: Layout,
        describe: Callable[[Outcome], _Words],
    ) -> AutopilotResult:
        """Commit, read, run, score and record."""
        paid = commitment(
            plan.stages(split.id), plan.budget, self.ledger, dataset="autopilot", size=self.size, unit=self.unit
        )
        with paid as (committed, cost):
            task = make_task()
            outcome = run_trials(plan, task, committed, self.tell)
            with committed.stage(METRICS) as receipt:
                counts = noisy_counts(
                    task.predictions(outcome.model),
                    layout,
                    noise_multiplier=plan.metrics_noise,
                    receipt=receipt,
                    noise=task.noise(),
                )
            metrics = scores(counts)
            self.tell(f"held-out accuracy {metrics[0].value:.3f}, noise included")
            return self._record(plan, outcome, metrics, describe(outcome), committed, cost, task.stamp)

    def _record(
        self, plan: AutopilotPlan, outcome: Outcome, metrics: tuple[Metric, ...], words: _Words,
        committed: Committed, cost: Cost, stamp: str,
    ) -> AutopilotResult:  # fmt: skip
        tuned = Tuned(
            method="autopilot",
            model=outcome.model,
            candidate=outcome.candidate,
            epsilon=plan.scaling.final_epsilon,
            budget=plan.budget,
            spent=cost,
            entries=committed.entries(),
            decisions=explain(plan, outcome, clipping=words.clipping, model=words.model),
            stamps=(stamp,),
            trials=outcome.search.trials,
            law=outcome.search.law,
            unprotected=self.unprotected,
            released=outcome.steps,
        )
        record = FitRecord.of(
            epsilon=cost.epsilon,
            delta=cost.delta,
            accounting=_HOW,
            unit=committed.unit,
            tuning="inside" if outcome.search.trials else "none",
            head=committed.head(),
            paid_in=describe_ledger(committed, own=self.ledger is None),
            data={"size": self.size, "held_out": plan.held_out, **words.data},
            plan={**plan_of(plan, outcome), **words.plan},
            decisions=tuned.decisions,
            metrics=tuple(metric.record() for metric in metrics),
            thresholds=tuple(step.threshold for step in words.steps),
            steps=words.steps,
            ledger=tuple(entry.as_dict() for entry in tuned.entries),
            stamps=(stamp,),
            unprotected=self.unprotected,
            curves=curves_of(plan, outcome),
            trials=trials_of(outcome),
        )
        return AutopilotResult(tuned, record, metrics)


@dataclass(frozen=True, slots=True)
class _Words:
    """What the kind of model adds: sentences, lines for data and plan, the steps."""

    clipping: str
    model: str
    data: dict[str, Any]
    plan: dict[str, Any]
    steps: tuple[StepRecord, ...] = ()


def _protected_unit(
    what: Any, size: str | int, units: Any, unit: str | PrivacyUnit, rows_per_unit: int | None
) -> PrivacyUnit:
    """Whom a run protects: for Features the unit of their rows, whose number is declared."""
    if not isinstance(what, Features):
        return protected_unit(units, unit, rows_per_unit)
    if units is not None or unit not in (RECORD, RECORD.name) or rows_per_unit is not None:
        raise InvalidInput(
            "units are named with Features: expected them with a module and its data set. Give features.by_unit(...)."
        )
    if isinstance(size, str) and not what.protects.is_record:
        _validate.refuse("size", size, "the number of units, declared", "Rows by_unit do not tell it.")
    return what.protects


def _count(dataset: Any, units: Any, unit: PrivacyUnit) -> int:
    """How many records, or units, there are."""
    length = len(dataset) if hasattr(dataset, "__len__") else 0
    if units is None:
        return length
    check_ids(dataset, units, unit)
    return rows_by_id(units, unit, bytes(KEY_BYTES)).count  # whichever rows count, there are as many units


def _declared_size(size: str | int, count: Callable[[], int]) -> int:
    if isinstance(size, str):
        _validate.one_of(("public",), "Or the number of records, declared.", size=size)
        if (length := count()) == 0:
            raise InvalidInput("there are 0 records: expected one or more.")
        return length
    return _validate.count('Or "public".', size=size)


def _run_heads(features: Features, run: _AutopilotRun, groups: Any, group_count: int) -> AutopilotResult:
    options, classes = replace(run.options, threshold=head_threshold(features.protects)), features.classes
    cells = cells_of(options.objective, classes, group_count)
    plan = plan_heads(run.budget, size=run.size, classes=classes, cells=cells, options=options)
    split = draw_split(plan.held_out, run.test_seed)

    def make_task() -> ProbeTask:
        more = {"groups": groups, "group_count": group_count, "device": run.device, "noise": run.noise}
        return ProbeTask.of(features.unit(), split, size=run.size, threshold=options.threshold, **more)

    words = _Words(
        describe_head_clipping(options.threshold),
        "a linear head on rows of unit length, started at zero",
        {"classes": classes, "features": features.width},
        {"clipping": "constant", "threshold": options.threshold, "optimizer": "momentum"},
    )
    layout = run.layout(classes, 0 if groups is None else group_count)
    return run.carry_out(plan, split, make_task, layout, lambda _: words)


def _run_module(
    model_fn: Any, dataset: Any, run: _AutopilotRun, classes: int | None, loss_fn: Any, more: dict[str, Any]
) -> AutopilotResult:
    if dataset is None or not callable(model_fn):
        raise InvalidInput("what is neither Features nor a function with a data set: expected one of them.")
    count = _validate.count("Declare how many classes there are.", least=2, classes=classes)
    plan, rate = plan_module(
        run.budget, size=run.size, cells=cells_of(run.options.objective, count, 0), options=run.options
    )
    seen: list[StepRecord] = []
    split = draw_split(plan.held_out, run.test_seed)
    task = ModuleTask.of(
        model_fn,
        nn.CrossEntropyLoss(reduction="none") if loss_fn is None else loss_fn,
        dataset,
        split,
        size=run.size,
        classes=count,
        sample_rate=rate,
        clipping=clipping.get("bounded-slack", normalized=True),
        options={"schedule": "cosine", "device": run.device},
        noise=run.noise,
        watch=seen.append,
        unit=run.unit,
        **more,
    )

    def describe(outcome: Outcome) -> _Words:
        parameters = sum(each.numel() for each in outcome.model.parameters())
        return _Words(
            _MODULE_CLIPPING,
            f"{type(outcome.model).__name__}, {parameters:,} parameters",
            {"classes": count},
            {"clipping": "bounded-slack", "optimizer": "momentum", "schedule": "cosine", "parameters": parameters},
            steps=tuple(seen[-outcome.candidate.steps :]),
        )

    return run.carry_out(plan, split, lambda: task, run.layout(count), describe)
