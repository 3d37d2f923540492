"""The autopilot's linear head on rows of unit length: trials, a law through them, and one run where it points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import torch

from dpilot._arrays import Floats
from dpilot.data.disk import DiskArray, DiskArrayBuilder
from dpilot.data.encoder import Encoded, Encoder
from dpilot.data.schema import Schema
from dpilot.data.sparse import SparseRows
from dpilot.fit.declaration import Declaration
from dpilot.fit.embeddings import encoder_of
from dpilot.fit.expansion import RowMap, WideRows, rows_of
from dpilot.fit.figures import CountFigures, HeldOutFigures
from dpilot.fit.grids.levels import Levels, TableColumn, columns_of
from dpilot.fit.grids.training import MARGINALS, MARGINALS_SHARE, release_marginals
from dpilot.fit.images import Scatterer
from dpilot.fit.learners.base import PaidRun, Trained
from dpilot.fit.population import TRAIN, Parts
from dpilot.fit.purchases import Purchases
from dpilot.fit.source import RowReader, take
from dpilot.mechanism import gaussian_event
from dpilot.metrics.objective import place_objective
from dpilot.numerics.products import products
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Stage
from dpilot.transfer.features import DiskValues, Features
from dpilot.tune.autopilot_plan import AutopilotPlan, plan_heads
from dpilot.tune.autopilot_record import curves_of, explain, plan_of, trials_of
from dpilot.tune.defaults import AutopilotOptions
from dpilot.tune.pilot import cells_of, describe_head_clipping, run_trials
from dpilot.tune.probe_task import THRESHOLD, ProbeTask, head_threshold

__all__ = ["HeadPredictor", "Heads"]

_ROWS: Final = 1 << 15  # widened at a time
_CELLS: Final = 1 << 22  # that are predicted from at a time


@dataclass(frozen=True, slots=True)
class Heads:
    """Logistic regression on unit rows of the widened features, full batch, its step size tuned.

    Which model a table gets costs nothing: it is this one whatever the data. ``marginals``: numbers are widened along
    their private quantiles, for 6 % of the squared mu.
    """

    gaussian: bool = True
    image_shape: tuple[int, ...] | None = None  # of the records, where they are images
    marginals: bool = False

    def purchases(self, declared: Declaration, budget: Budget) -> Purchases:
        return Purchases.plan(declared, budget)

    def plan(self, declared: Declaration, budget: Budget, purchases: Purchases) -> HeadsPlan:
        chosen, task = declared.options, declared.task
        objective = place_objective(chosen.objective, task.classes)
        # with class weights 0.5, as for records: a lower one clips all classes to one length, and undoes the weights
        threshold = head_threshold(declared.unit) if chosen.class_weight is None else THRESHOLD
        options = AutopilotOptions(objective, chosen.held_out, epochs=chosen.epochs, threshold=threshold)
        groups = len(task.groups[0].names) if task.groups else 0
        bought = MARGINALS_SHARE * (1 - purchases.share) if self.marginals else 0.0
        plan = plan_heads(
            budget,
            size=declared.size,
            classes=task.outputs,
            cells=cells_of(options.objective, task.outputs, groups),
            options=options,
            taken=purchases.share + bought,
        )
        if not bought:
            return HeadsPlan(declared, plan, CountFigures(task, plan.metrics_noise), self.image_shape)
        # marginals are those of the training part: on the other one figures have as much more of the squared mu
        more = gdp_mu(budget) ** 2 * bought * (1 - 1e-9)
        figures = CountFigures(task, (plan.metrics_noise**-2 + more) ** -0.5)
        return HeadsPlan(declared, plan, figures, marginals_noise=more**-0.5)


@dataclass(frozen=True, slots=True)
class HeadsPlan:
    """Trials, scores and the final run."""

    declared: Declaration
    plan: AutopilotPlan
    figures: HeldOutFigures
    image_shape: tuple[int, ...] | None = None
    marginals_noise: float | None = None

    @property
    def held_out(self) -> float:
        return self.plan.held_out

    def stages(self, split: str) -> list[Stage]:
        noise = self.marginals_noise
        bought = [] if noise is None else [Stage(MARGINALS, gaussian_event(noise), TRAIN, split)]
        return [*bought, *self.plan.scaling.stages(split)]

    def reader(self, schema: Schema) -> RowReader:
        if self.image_shape is not None:
            return Scatterer(self.image_shape, self.declared.task.outputs)
        return encoder_of(schema, self.declared.options.device)

    def train(self, parts: Parts, run: PaidRun) -> Trained:
        rows, classes = self._rows(parts, run), self.declared.task.outputs
        plan = self.plan if self.declared.size is not None else self.plan.resize(run.size, classes)
        task = self._task(parts, rows, run)
        outcome = run_trials(plan, task, run.committed, run.tell)
        model = f"logistic regression on rows of unit length, {rows.shapes}: chosen unseen, which costs nothing"
        if self.marginals_noise is not None:
            model += f"; the quantiles were bought, for {MARGINALS_SHARE:.0%} of the budget of training"
        threshold = plan.options.threshold
        about = {"clipping": "constant", "threshold": threshold, "optimizer": "momentum", "model": "linear head"}
        about["objective"] = self.declared.options.objective
        return Trained(
            predictor=HeadPredictor(outcome.model.double().cpu().numpy(), rows),
            figures=self.figures,
            plan={**plan_of(plan, outcome), **about},
            decisions=explain(plan, outcome, clipping=describe_head_clipping(threshold), model=model),
            trials=trials_of(outcome),
            curves=curves_of(plan, outcome),
            details=outcome,
        )

    def shorten(self, size: float, rows: int) -> tuple[HeadsPlan, float]:
        return self, size / rows

    def _rows(self, parts: Parts, run: PaidRun) -> RowMap:
        """How rows are widened, once marginals are bought."""
        if self.marginals_noise is None:
            return rows_of(parts.reader)
        assert isinstance(parts.reader, Encoder)
        columns = _numbers(parts.reader)
        with run.committed.stage(MARGINALS) as receipt:
            bought = release_marginals(
                [(column, cast(Any, parts.train.features)) for column in columns],
                parts.train_weights,
                size=max(run.size * (1 - self.held_out), 1.0),
                noise_multiplier=self.marginals_noise,
                receipt=receipt,
                noise=run.keys.noise.spawn(),
            )
        return WideRows(parts.reader, Levels(columns, bought))

    def _task(self, parts: Parts, rows: RowMap, run: PaidRun) -> ProbeTask:
        """Both parts as unit rows."""
        classes, share = self.declared.task.outputs, self.plan.held_out
        train, held_out = (_unit_features(part, rows, classes) for part in (parts.train, parts.held_out))
        if parts.units is not None:
            train = train.with_shares(parts.units, run.unit)
        group = parts.held_out.group if self.plan.options.objective == "worst_group" else None
        return ProbeTask(
            train,
            held_out,
            run.size * (1 - share),
            run.size * share,
            run.split,
            None if group is None else torch.from_numpy(group[:, 0]),
            0 if group is None else len(self.declared.task.groups[0].names),
            threshold=self.plan.options.threshold,
            device=self.declared.options.device,
            noise=run.keys.noise.spawn,
            class_weights=run.class_weights,
        )


def _unit_features(part: Encoded, rows: RowMap, classes: int) -> Features:
    """Widened rows of unit length, some at a time: the table is held once as it was read and once as it is learnt."""
    if isinstance(part.features, SparseRows):
        return Features.of_sparse(rows.widen(part.features), part.target, classes)
    length = len(part.features)
    blocks = (take(part, slice(start, start + _ROWS)) for start in range(0, length, _ROWS))
    made = (Features.of(rows.widen(cast(Any, some.features)), some.target, classes).unit() for some in blocks)
    width = rows.widen(cast(Any, part.features[:0])).shape[1]
    if isinstance(part.features, DiskArray):
        return _store(made, width, classes, labels_too=isinstance(part.target, DiskArray))
    values, labels = torch.empty(length, width), torch.empty(length, dtype=torch.int64)
    for start, found in zip(range(0, length, _ROWS), made, strict=True):
        values[start : start + _ROWS], labels[start : start + _ROWS] = found.values, found.labels
    return Features(values, labels, classes)


def _store(made: Iterator[Features], width: int, classes: int, *, labels_too: bool) -> Features:
    """Features on disk, a piece at a time."""
    values, labels = DiskArrayBuilder(np.float32, (width,)), DiskArrayBuilder(np.int64)
    for found in made:
        values.append(found.values.numpy())
        labels.append(found.labels.numpy())
    stored: Any = DiskValues(labels.build(), torch.int64)
    return Features(cast(Any, DiskValues(values.build())), stored if labels_too else stored[:], classes)


@dataclass(frozen=True, slots=True, eq=False)
class HeadPredictor:
    """Weights (d, classes) on unit rows of the widened features."""

    weights: Floats
    rows: RowMap
    kind: str = "head"

    def outputs(self, rows: Any) -> Floats:
        """Logits, nan in the row of a null record."""
        some = max(_CELLS // max(rows.shape[1], 1), 1)
        starts = range(0, max(len(rows), 1), some)
        return np.concatenate([self._outputs(rows[start : start + some]) for start in starts])

    def _outputs(self, rows: Any) -> Floats:
        values = np.asarray(self.rows.widen(rows), dtype=np.float64)
        known = np.isfinite(values).all(axis=1, keepdims=True)
        values = np.where(known, values, 0.0)
        lengths = np.linalg.norm(values, axis=1, keepdims=True)
        return np.where(known, products(values / np.where(lengths > 0, lengths, 1.0), self.weights), np.nan)

    def state(self) -> tuple[dict[str, Any], Mapping[str, Any]]:
        weights = {"weights": torch.from_numpy(self.weights)}
        levels = self.rows.levels if isinstance(self.rows, WideRows) else None
        return {}, weights if levels is None else {**weights, MARGINALS: torch.from_numpy(levels.flat)}

    @classmethod
    def load(cls, plain: Mapping[str, Any], tensors: Mapping[str, Any], reader: RowReader) -> HeadPredictor:
        """The predictor that ``state`` describes."""
        del plain
        rows = rows_of(reader)
        if MARGINALS in tensors and isinstance(reader, Encoder):
            rows = WideRows(reader, Levels.of_flat(_numbers(reader), tensors[MARGINALS].numpy()))
        return cls(tensors["weights"].numpy(), rows)


def _numbers(encoder: Encoder) -> tuple[TableColumn, ...]:
    """The columns that are widened."""
    return tuple(column for column in columns_of(encoder) if column.interval is not None)
