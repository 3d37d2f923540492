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
from dpilot.keys import KEY_BYTES
from dpilot.metrics.counts import Layout
from dpilot.noise import SystemNoise, seeded_noise
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Ledger
from dpilot.records import PUBLISHED_SIZE, RUNNING_TIME, StepRecord
from dpilot.tables.declared import known_size
from dpilot.tables.fitting import open_ledger
from dpilot.transfer.features import Features
from dpilot.tune.module_task import ModuleTask
from dpilot.tune.pilot.flight import Flight, Tell, charge, fly, silent
from dpilot.tune.pilot.learners import Heads, Modules
from dpilot.tune.pilot.plan import plan_heads, plan_module
from dpilot.tune.pilot.recording import Told, recorded
from dpilot.tune.pilot.terms import TUNING_SHARE, Terms
from dpilot.tune.probe_task import THRESHOLD, ProbeTask
from dpilot.tune.task import HELD_OUT, TRAIN, MakeNoise, fixed_noise

__all__ = ["HEAD_CLIPPING", "autopilot", "cells_of", "drawn_split", "noise_for"]

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
) -> Flight:
    """A model of ``what``, tuned and trained within ``budget``: nothing to choose but the budget and the compute.

    ``what`` is ``Features``, for a linear head on their unit rows, or a function that makes a fresh module, trained on
    ``dataset`` of (x, y) with y one of 0 .. ``classes`` - 1. ``epochs`` is the compute: the most passes of one run;
    ``workers`` trials of a module go at a time, in processes of their own (``ModuleTask``).

    Guarantee:
        Trials, scores, final run and figures are one commitment: all noise is fixed, and the whole price is in the
        ledger, before a record is read. Scores and figures are read on held-out records. The record explains every
        decision in words, and the share of mu^2 that went to tuning.

    Edge cases:
        trials that would be too noisy    from declared numbers alone: none are made, nothing is spent on them, and the
                                          data-free step size is used
        ``held_out_share`` None           5 % to 10 %, so that noise moves an accuracy by a tenth of a point
        ``example``                       a public batch, wanted unless ``dataset`` is a TensorDataset: it shows the
                                          form of the records, and those of another form are null
        ``class_names``                   what figures call the classes
        ``groups``                        group codes of ``Features``, for the objective "worst_group"
        ``test_seed``                     fixes coins and noise; the record is stamped as not private

    Example:
        >>> import torch
        >>> rows = torch.randn(2_000, 3)
        >>> flight = autopilot(Features.of(rows, (rows[:, 0] > 0).long(), 2), budget=Budget(2.0, 1e-5))
        >>> flight.tuned.trials, flight.spent.epsilon <= 2.0
        ((), True)
        >>> flight.model.shape, bool(flight.model[0, 1] > flight.model[0, 0])
        (torch.Size([3, 2]), True)
    """
    if not isinstance(budget, Budget):
        raise InvalidInput(f"budget is a {type(budget).__name__}: expected a Budget, such as Budget(1.0, 1e-5).")
    terms = Terms(objective, held_out_share, tuning_share, trials, epochs)
    length = len(what) if isinstance(what, Features) else len(dataset) if hasattr(dataset, "__len__") else 0
    known, public = known_size(size, length)
    if known is None:
        raise InvalidInput('size is "private": expected "public", or the number of records, declared.')
    way = _Way(
        budget=budget,
        size=known,
        terms=terms,
        book=open_ledger(ledger, budget, "autopilot"),
        own=ledger is None,
        unprotected=(*unprotected, *((PUBLISHED_SIZE, RUNNING_TIME) if public else (RUNNING_TIME,))),
        device=device,
        tell=tell,
        test_seed=test_seed,
        class_names=class_names,
    )
    if isinstance(what, Features):
        return _fly_heads(what, way, groups, group_count)
    more = {"example": example, "workers": workers}
    return _fly_module(what, dataset, way, classes, loss_fn, more)


@dataclass(frozen=True, slots=True)
class _Way:
    """What both kinds of flight share."""

    budget: Budget
    size: int
    terms: Terms
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


def drawn_split(held_out: float, test_seed: int | None) -> Split:
    """Secret coins: from the operating system, or those of a test."""
    shares = {TRAIN: 1 - held_out, HELD_OUT: held_out}
    if test_seed is None:
        return Split.draw(shares)
    return Split(shares, seeded_noise(test_seed).state.generator("autopilot split").bytes(KEY_BYTES))


def noise_for(test_seed: int | None) -> MakeNoise:
    """Noise of the operating system, or that of a test."""
    return SystemNoise if test_seed is None else fixed_noise(test_seed)


def _fly_heads(features: Features, way: _Way, groups: Any, group_count: int) -> Flight:
    terms, classes = way.terms, features.classes
    cells = cells_of(terms.objective, classes, group_count)
    plan = plan_heads(way.budget, size=way.size, classes=classes, cells=cells, terms=terms)
    split = drawn_split(plan.held_out, way.test_seed)
    committed = charge(plan, way.book, split.id)
    task = ProbeTask.of(
        features.unit(),
        split,
        size=way.size,
        groups=groups,
        group_count=group_count,
        device=way.device,
        noise=noise_for(way.test_seed),
    )
    flown = fly(plan, Heads(task), committed, way.layout(classes, 0 if groups is None else group_count), way.tell)
    told = Told(
        HEAD_CLIPPING,
        "a linear head on rows of unit length, started at zero",
        {"size": way.size, "held_out": plan.held_out, "classes": classes, "features": features.width},
        {"clipping": "constant", "threshold": task.threshold, "optimizer": "momentum"},
        way.unprotected,
    )
    return recorded(plan, flown, told, book=way.book, committed=committed, own=way.own, stamp=task.stamp)


def _fly_module(
    model_fn: Any, dataset: Any, way: _Way, classes: int | None, loss_fn: Any, more: dict[str, Any]
) -> Flight:
    if dataset is None or not callable(model_fn):
        raise InvalidInput("what is neither Features nor a function with a data set: expected one of them.")
    count = _validate.count("Declare how many classes there are.", least=2, classes=classes)
    plan, rate = plan_module(way.budget, size=way.size, cells=cells_of(way.terms.objective, count, 0), terms=way.terms)
    split = drawn_split(plan.held_out, way.test_seed)
    seen: list[StepRecord] = []
    task = ModuleTask.of(
        model_fn,
        nn.CrossEntropyLoss(reduction="none") if loss_fn is None else loss_fn,
        dataset,
        split,
        size=way.size,
        classes=count,
        sample_rate=rate,
        clipping=clipping.get("bounded-slack", normalized=True),
        options={"schedule": "cosine", "device": way.device},
        noise=noise_for(way.test_seed),
        watch=seen.append,
        **more,
    )
    committed = charge(plan, way.book, split.id)
    flown = fly(plan, Modules(task), committed, way.layout(count), way.tell)
    told = Told(
        _MODULE_CLIPPING,
        f"{type(flown.model).__name__}, {sum(each.numel() for each in flown.model.parameters()):,} parameters",
        {"size": way.size, "held_out": plan.held_out, "classes": count},
        {"clipping": "bounded-slack", "optimizer": "momentum", "schedule": "cosine"},
        way.unprotected,
        thresholds=tuple(each.threshold for each in seen[-flown.candidate.steps :]),
    )
    return recorded(plan, flown, told, book=way.book, committed=committed, own=way.own, stamp=task.stamp)


def cells_of(objective: str, classes: int, groups: int) -> int:
    """How many rows the table of a score has; an objective that needs groups is refused without them."""
    if objective == "worst_group" and groups < 1:
        raise InvalidInput(
            "worst_group is asked for without groups: expected a protected column, or groups= and group_count=."
        )
    return {"accuracy": 1, "worst_group": groups}.get(objective, classes)
