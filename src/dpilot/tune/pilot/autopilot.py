"""``autopilot``: one call that tunes, trains and scores inside one budget, and explains what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn

from dpilot import _validate, clipping
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.metrics.counts import Layout
from dpilot.noise import SystemNoise
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Ledger
from dpilot.records import PUBLISHED_SIZE, RUNNING_TIME, StepRecord
from dpilot.tables import preparing
from dpilot.tables.declaration import resolve_size
from dpilot.tables.fitting import commit, open_ledger
from dpilot.transfer.features import Features
from dpilot.tune.module_task import ModuleTask
from dpilot.tune.pilot.autopilot_record import RunDescription, record_run
from dpilot.tune.pilot.defaults import TUNING_SHARE, AutopilotOptions
from dpilot.tune.pilot.learners import Heads, Modules
from dpilot.tune.pilot.outcome import AutopilotResult, Tell, run_plan, silent
from dpilot.tune.pilot.pilot_plan import plan_heads, plan_module
from dpilot.tune.probe_task import THRESHOLD, ProbeTask
from dpilot.tune.task import HELD_OUT, TRAIN, MakeNoise, count_cells, fixed_noise

__all__ = ["HEAD_CLIPPING", "autopilot", "cells_of", "draw_split", "noise_for"]

HEAD_CLIPPING: Final = (
    f"clipping at {THRESHOLD:g}: on rows of unit length a gradient is at most 1.41 long, so there is nothing to adapt"
)
_MODULE_CLIPPING: Final = (
    "clipping adapts from 1, floor 0.1 (bounded-slack): its signal is free, and gradients in units of the threshold "
    "keep the step size what it is"
)


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
    ledger: Ledger | str | Path | None = None,
    device: str | None = None,
    workers: int = 1,
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
        workers: trials of a module that run at a time, in processes of their own (``ModuleTask``).
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
    options = AutopilotOptions(objective, held_out_share, tuning_share, trials, epochs)
    length = len(what) if isinstance(what, Features) else len(dataset) if hasattr(dataset, "__len__") else 0
    known, public = resolve_size(size, length)
    if known is None:
        raise InvalidInput('size is "private": expected "public", or the number of records, declared.')
    setup = _Setup(
        budget=budget,
        size=known,
        options=options,
        book=open_ledger(ledger, budget, "autopilot"),
        own=ledger is None,
        unprotected=(*unprotected, *((PUBLISHED_SIZE, RUNNING_TIME) if public else (RUNNING_TIME,))),
        device=device,
        tell=tell,
        test_seed=test_seed,
        class_names=class_names,
    )
    if isinstance(what, Features):
        return _run_heads(what, setup, groups, group_count)
    more = {"example": example, "workers": workers}
    return _run_module(what, dataset, setup, classes, loss_fn, more)


@dataclass(frozen=True, slots=True)
class _Setup:
    """What both kinds of model share."""

    budget: Budget
    size: int
    options: AutopilotOptions
    book: Ledger
    own: bool
    unprotected: tuple[str, ...]
    device: str | None
    tell: Tell
    test_seed: int | None
    class_names: tuple[str, ...] | None

    def layout(self, classes: int, groups: int = 0) -> Layout:
        """What figures are counted by."""
        names = tuple(map(str, range(classes))) if self.class_names is None else self.class_names
        return Layout(names, tuple(map(str, range(groups))), "group") if groups else Layout(names)


def draw_split(held_out: float, test_seed: int | None) -> Split:
    """Secret coins: from the operating system, or those of a test."""
    return preparing.draw_split({TRAIN: 1 - held_out, HELD_OUT: held_out}, test_seed, "autopilot split")


def noise_for(test_seed: int | None) -> MakeNoise:
    """Noise of the operating system, or that of a test."""
    return SystemNoise if test_seed is None else fixed_noise(test_seed)


def _run_heads(features: Features, setup: _Setup, groups: Any, group_count: int) -> AutopilotResult:
    options, classes = setup.options, features.classes
    cells = cells_of(options.objective, classes, group_count)
    plan = plan_heads(setup.budget, size=setup.size, classes=classes, cells=cells, options=options)
    split = draw_split(plan.held_out, setup.test_seed)
    committed = commit(setup.book, plan.stages(split.id), plan.budget)
    task = ProbeTask.of(
        features.unit(),
        split,
        size=setup.size,
        groups=groups,
        group_count=group_count,
        device=setup.device,
        noise=noise_for(setup.test_seed),
    )
    outcome = run_plan(
        plan, Heads(task), committed, setup.layout(classes, 0 if groups is None else group_count), setup.tell
    )
    description = RunDescription(
        HEAD_CLIPPING,
        "a linear head on rows of unit length, started at zero",
        {"size": setup.size, "held_out": plan.held_out, "classes": classes, "features": features.width},
        {"clipping": "constant", "threshold": task.threshold, "optimizer": "momentum"},
        setup.unprotected,
    )
    return record_run(plan, outcome, description, book=setup.book, committed=committed, own=setup.own, stamp=task.stamp)


def _run_module(
    model_fn: Any, dataset: Any, setup: _Setup, classes: int | None, loss_fn: Any, more: dict[str, Any]
) -> AutopilotResult:
    if dataset is None or not callable(model_fn):
        raise InvalidInput("what is neither Features nor a function with a data set: expected one of them.")
    count = _validate.count("Declare how many classes there are.", least=2, classes=classes)
    plan, rate = plan_module(
        setup.budget, size=setup.size, cells=cells_of(setup.options.objective, count, 0), options=setup.options
    )
    split = draw_split(plan.held_out, setup.test_seed)
    seen: list[StepRecord] = []
    task = ModuleTask.of(
        model_fn,
        nn.CrossEntropyLoss(reduction="none") if loss_fn is None else loss_fn,
        dataset,
        split,
        size=setup.size,
        classes=count,
        sample_rate=rate,
        clipping=clipping.get("bounded-slack", normalized=True),
        options={"schedule": "cosine", "device": setup.device},
        noise=noise_for(setup.test_seed),
        watch=seen.append,
        **more,
    )
    committed = commit(setup.book, plan.stages(split.id), plan.budget)
    outcome = run_plan(plan, Modules(task), committed, setup.layout(count), setup.tell)
    description = RunDescription(
        _MODULE_CLIPPING,
        f"{type(outcome.model).__name__}, {sum(each.numel() for each in outcome.model.parameters()):,} parameters",
        {"size": setup.size, "held_out": plan.held_out, "classes": count},
        {"clipping": "bounded-slack", "optimizer": "momentum", "schedule": "cosine"},
        setup.unprotected,
        thresholds=tuple(each.threshold for each in seen[-outcome.candidate.steps :]),
    )
    return record_run(plan, outcome, description, book=setup.book, committed=committed, own=setup.own, stamp=task.stamp)


def cells_of(objective: str, classes: int, groups: int) -> int:
    """How many rows the table of a score has; an objective that needs groups is refused without them."""
    return count_cells(objective, classes, groups, "a protected column, or groups= and group_count=")
