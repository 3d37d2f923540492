"""Self-tuned private least squares: ``LinearRegression(method="auto")`` as a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dpilot._arrays import Floats
from dpilot.data.disk import DiskArray
from dpilot.data.schema import Schema
from dpilot.fit.declaration import Declaration
from dpilot.fit.embeddings import draft_encoder, encoder_of
from dpilot.fit.figures import HeldOutFigures, ReachFigures
from dpilot.fit.learners.base import PaidRun, Trained, kept_apart
from dpilot.fit.population import TRAIN, Parts
from dpilot.fit.purchases import Purchases
from dpilot.fit.source import PlainColumns, RowReader
from dpilot.linear.declared_bounds import DeclaredBounds, parse_bounds
from dpilot.linear.fitting import RegressionPlan, plan_fit
from dpilot.linear.methods import METHODS
from dpilot.linear.model import LinearModel
from dpilot.linear.problem import CommittedRun, LinearProblem
from dpilot.linear.rows import MemoryRows, Rows
from dpilot.linear.solution import Solution
from dpilot.linear.streaming import DiskRows
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Stage

__all__ = ["LeastSquares", "LinearPredictor"]


@dataclass(frozen=True, slots=True)
class LeastSquares:
    """Least squares by the method "auto"; what is not declared of its columns it standardises itself.

    Where every feature is a number whose bounds are to be bought, and a record that lacks one is null, values are read
    as they are: their centre and width are cheaper than bounds. Else bounds are bought, and features encoded, what is
    missing by an indicator, as for every learner.
    """

    gaussian: bool = True

    def purchases(self, declared: Declaration, budget: Budget) -> Purchases:
        return Purchases.plan(declared, budget, bounds_too=not _is_plain(declared.schema))

    def plan(self, declared: Declaration, budget: Budget, purchases: Purchases) -> LeastSquaresPlan:
        options, schema = declared.options, declared.schema.inputs_only()
        held_out = 0.1 if options.held_out is None else options.held_out
        names = _names(schema)
        size = None if declared.size is None else float(max(round((1 - held_out) * declared.size), 1))
        problem = LinearProblem(len(names), True, size, budget)
        plan = plan_fit(problem, _bounds(declared, names), METHODS["auto"], taken=purchases.share, buys_size=False)
        figures = ReachFigures(declared.task, _scoring_problem(problem, purchases))
        return LeastSquaresPlan(declared, plan, held_out, figures)


@dataclass(frozen=True, slots=True)
class LeastSquaresPlan:
    """The stages of ``linear.fitting`` on the training part."""

    declared: Declaration
    plan: RegressionPlan
    held_out: float
    figures: HeldOutFigures

    def stages(self, split: str) -> list[Stage]:
        return [Stage(name, event, TRAIN, split) for name, event in self.plan.stages.items()]

    def reader(self, schema: Schema) -> RowReader:
        return PlainColumns(schema) if _is_plain(self.declared.schema) else encoder_of(schema)

    def fit(self, parts: Parts, run: PaidRun) -> tuple[LinearModel, Solution]:
        """The released model, and how it was found."""
        paid = CommittedRun(run.committed, run.keys.noise.spawn())
        size = max(run.size * (1 - self.held_out), 1.0)
        solution, scaling, _ = self.plan.run(_rows(parts), paid, size)
        return LinearModel.of(solution.theta, scaling, intercept=True), solution

    def train(self, parts: Parts, run: PaidRun) -> Trained:
        assert isinstance(self.figures, ReachFigures)
        model, solution = self.fit(parts, run)
        return Trained(
            predictor=LinearPredictor(model),
            figures=replace(self.figures, center=model.target_center, width=model.target_width),
            plan={"model": "linear regression", "method": "auto", "choice": solution.choice},
            decisions=(kept_apart(self.held_out), f"auto settled for: {solution.choice}."),
            details=solution,
        )

    def shorten(self, size: float, rows: int) -> tuple[LeastSquaresPlan, float]:
        return self, size / rows


@dataclass(frozen=True, slots=True, eq=False)
class LinearPredictor:
    """A released linear model in the units of the data."""

    model: LinearModel
    kind: str = "least squares"

    def outputs(self, rows: Any) -> Floats:
        """The predicted number; what is missing counts as the centre of its column."""
        with np.errstate(all="ignore"):
            return self.model.predict(np.asarray(rows, dtype=np.float64))[:, None]

    def state(self) -> tuple[dict[str, Any], Mapping[str, Any]]:
        plain, arrays = self.model.state()
        return plain, {name: torch.from_numpy(value) for name, value in arrays.items()}

    @classmethod
    def load(cls, plain: Mapping[str, Any], tensors: Mapping[str, Any], reader: RowReader) -> LinearPredictor:
        """The predictor that ``state`` describes."""
        del reader
        return cls(LinearModel.of_state(plain, {name: tensor.numpy() for name, tensor in tensors.items()}))


def _rows(parts: Parts) -> Rows:
    """[features | target] of the training part."""
    features, target = parts.train.features, parts.train.target
    if isinstance(features, DiskArray):
        assert isinstance(target, DiskArray)
        return DiskRows(features, target, None if parts.units is None else parts.units.units)
    table = np.column_stack([np.asarray(features, dtype=np.float64), np.asarray(target)])
    return MemoryRows.of(table, parts.train_rows)


def _is_plain(schema: Schema) -> bool:
    """Whether every feature is a number whose bounds nobody declares and that no record may lack."""
    return all(column.bounds == "buy" and column.missing == "null" for column in schema.features)


def _names(schema: Schema) -> tuple[str, ...]:
    """The encoded columns, known before the bounds are bought."""
    if _is_plain(schema):
        return tuple(column.name for column in schema.features)
    return draft_encoder(schema).names


def _bounds(declared: Declaration, names: tuple[str, ...]) -> DeclaredBounds:
    """Encoded numbers lie in [-1, 1], indicators in [0, 1]; plain ones are not known, nor is a target to be bought.

    Bought bounds lie close, and indicators are scaled by theirs: what was declared of numbers is an outer limit.
    """
    limits: dict[str, Any] = {"y": declared.task.interval}
    if _is_plain(declared.schema):
        return parse_bounds(limits, len(names))
    schema = declared.schema.inputs_only()
    numeric = {column.name for column in schema.features if column.type == "numeric"}
    limits["X"] = (draft_encoder(schema).lowest, 1.0)
    scaled = [name not in numeric or name in declared.schema.to_buy for name in names]
    return replace(parse_bounds(limits, len(names)), scaled=np.array([*scaled, False]))


def _scoring_problem(problem: LinearProblem, purchases: Purchases) -> LinearProblem:
    """The problem that figures of held-out records may take all of: what purchases from all records leave."""
    return problem if purchases.share == 0 else replace(problem, budget=purchases.rest(problem.budget))
