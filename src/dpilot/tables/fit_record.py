"""The record of a fit: declared and released values, and each decision in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dpilot.metrics.metric import Metric
from dpilot.privacy.budget import Cost
from dpilot.privacy.ledger import Committed
from dpilot.records import FitRecord, unit
from dpilot.tables.declaration import FitDeclaration
from dpilot.tables.planning import TablePlan
from dpilot.tables.training import Ready
from dpilot.train.run import Run

__all__ = ["FitFacts", "describe_data", "record_of"]

_HOW: Final = (
    "everything that touched the records in one commitment, composed on each part; the larger of both parts' totals"
)


@dataclass(frozen=True, slots=True)
class FitFacts:
    """What was declared, planned, bought and paid."""

    declared: FitDeclaration
    plan: TablePlan
    ready: Ready
    lr: float
    size: float
    cost: Cost
    committed: Committed
    name: str


def record_of(facts: FitFacts, run: Run, metrics: tuple[Metric, ...]) -> FitRecord:
    """The record of a fit."""
    declared, cost = facts.declared, facts.cost
    manner = {"lr": facts.lr, "schedule": "cosine", "optimizer": "sgd", "model": declared.model}
    return FitRecord(
        privacy={"epsilon": cost.epsilon, "delta": cost.delta, "unit": unit(declared.unprotected), "accounting": _HOW},
        data=describe_data(declared, facts.size, facts.name, declared.task.target.categories),
        plan={**facts.ready.plan.to_dict(), **manner},
        decisions=_decisions(declared, facts.plan, facts.ready, facts.lr),
        metrics=tuple(metric.record() for metric in metrics),
        thresholds=run.thresholds,
        ledger=tuple(entry.as_dict() for entry in facts.committed.entries()),
        stamps=run.record.stamps,
        unprotected=declared.unprotected,
    )


def describe_data(declared: FitDeclaration, size: float, name: str, classes: Sequence[str] | None) -> dict[str, Any]:
    """What was declared of the records, as plain data."""
    group = declared.schema.protected
    return {
        "name": name,
        "size": round(size),
        "held_out": declared.held_out,
        "target": declared.task.target.name,
        "classes": None if classes is None else list(classes),
        "protected": None if group is None else group.name,
        "features": [column.name for column in declared.schema.features],
        "bought_bounds": list(declared.schema.to_buy),
    }


def _decisions(declared: FitDeclaration, plan: TablePlan, ready: Ready, lr: float) -> tuple[str, ...]:
    held_out = declared.held_out
    return (
        *(f"{reason[0].upper()}{reason[1:]}." for reason in plan.reasons),
        *declared.notes,
        f"{held_out:.0%} of the records, each by a secret coin, are kept apart for the metrics: disjoint parts compose "
        "in parallel, so these figures cost the training nothing.",
        f"Noise of training {plan.training_noise:.4g} in each of {plan.steps:,} steps, noise of the metrics "
        f"{plan.metrics_noise:.4g}: each the least that its part's share of the budget allows.",
        "Clipping adapts from a threshold of 1 and not below 0.1, by the free signal of slack clipping.",
        f"Step size {lr:.4g}, from declared numbers alone: with {ready.numbers.parameters:,} parameters the noise "
        "of the run would carry the model about as far as its weights are long.",
        f"Model: {_MODELS[declared.model, declared.task.numeric]}.",
    )


_MODELS: Final = {
    ("logistic", False): "logistic regression on declared features",
    ("logistic", True): "linear regression on declared features",
    ("mlp", False): "a network of one hidden layer",
    ("mlp", True): "a network of one hidden layer",
}
