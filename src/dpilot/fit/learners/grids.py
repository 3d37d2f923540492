"""Grids: an additive model on private quantiles, then cells of screened pairs and triples of columns beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.data.disk import DiskArray, map_rows
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.data.sparse import SparseRows
from dpilot.fit.declaration import Declaration
from dpilot.fit.embeddings import draft_encoder, encoder_of
from dpilot.fit.figures import CountFigures, HeldOutFigures, SumFigures
from dpilot.fit.grids.design import CodesOnDisk, Design, TableRows, additive_design, grid_design, screen_cells
from dpilot.fit.grids.levels import Levels, Marginal, TableColumn, cell_edges, columns_of, dense_columns
from dpilot.fit.grids.model import GridPredictor, dense_rows
from dpilot.fit.grids.screen import choose_grids, choose_walk, count_screened, pair_energies, rank_columns
from dpilot.fit.grids.training import (
    MARGINALS,
    MARGINALS_SHARE,
    MOST_WORSE,
    THRESHOLD,
    ClassResidual,
    GridWeights,
    NumberResidual,
    Residual,
    Steps,
    descend,
    release_comparison,
    release_marginals,
    release_pairs,
)
from dpilot.fit.learners.base import PaidRun, Trained, kept_apart
from dpilot.fit.learners.least_squares import LeastSquares, LeastSquaresPlan
from dpilot.fit.population import TRAIN, Parts
from dpilot.fit.purchases import Purchases
from dpilot.fit.source import RowReader
from dpilot.metrics.interval import quantile
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Event, Gaussian, Repeated
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu
from dpilot.privacy.ledger import Stage
from dpilot.records import MetricRecord
from dpilot.tune.defaults import MOMENTUM, default_held_out, head_defaults

__all__ = ["GridOptions", "Grids", "GridsPlan"]

MAIN: Final = "additive model"
SCREEN: Final = "screen of pairs"
FINAL: Final = "model of grids"
COMPARISON: Final = "comparison of walks"
_SHARES: Final = {MARGINALS: MARGINALS_SHARE, MAIN: 0.20, SCREEN: 0.08, FINAL: 0.64, COMPARISON: 0.02}
_LINEAR_SHARE: Final = 0.3  # for linear regression, which the rest then corrects, where the target is a number
_MOST_PAIRS: Final = 20  # that the screen is believed about
_LEAST_SPREAD: Final = 2.0**-10  # of the declared interval of a number
_UNKNOWN: Final = 10_000  # records, where the size is bought
_WAVE_ROWS: Final = 1 << 30  # bytes of waves, beyond which there are none
_SHORT: Final = 0.6  # of the mean of a walk: the shortest of the three that are compared


@dataclass(frozen=True, slots=True)
class GridOptions:
    """How many grids of pairs and of triples, and waves; the shares of the squared length of a row; data-free walks.

    ``reach``: how far noise alone may move the prediction of a number, in spreads. ``main`` and ``final``: the walks of
    the additive model and of grids over that of ``head_defaults``; how much of the latter is taken is compared.
    """

    pairs: int = 120
    triples: int = 60
    waves: int = 150
    shares: tuple[float, float, float, float] = (0.30, 0.35, 0.15, 0.20)
    main: float = 1.0
    final: float = 2.0
    reach: float = 0.2


@dataclass(frozen=True, slots=True)
class Grids:
    """Sums of tables of columns, pairs and triples, full batch; every setting is fixed without looking."""

    options: GridOptions = GridOptions()
    gaussian: bool = True

    def purchases(self, declared: Declaration, budget: Budget) -> Purchases:
        return Purchases.plan(declared, budget)

    def plan(self, declared: Declaration, budget: Budget, purchases: Purchases) -> GridsPlan:
        """The noise of each stage, by its share of what purchases leave of the squared mu."""
        task, size = declared.task, _UNKNOWN if declared.size is None else declared.size
        held_out = default_held_out(budget, size) if declared.options.held_out is None else declared.options.held_out
        mu = gdp_mu(budget) * math.sqrt(1 - purchases.share) * (1 - 1e-9)
        figures = (SumFigures if task.numeric else CountFigures)(task, 1 / mu)
        linear = None
        if task.numeric:
            part = replace(budget, epsilon=gdp_epsilon(mu * math.sqrt(_LINEAR_SHARE) * (1 - 1e-9), budget.delta))
            options = replace(declared.options, held_out=held_out)
            linear = LeastSquares().plan(replace(declared, options=options), part, replace(purchases, share=0.0))
            mu *= math.sqrt(1 - _LINEAR_SHARE)
        columns = columns_of(draft_encoder(declared.schema.inputs_only()))
        numbers = task.numeric or any(column.number is not None for column in columns)
        used = {MARGINALS: numbers, MAIN: True} | dict.fromkeys((SCREEN, FINAL, COMPARISON), len(columns) > 1)
        shares = {name: share for name, share in _SHARES.items() if used[name]}
        each = {name: mu * math.sqrt(share / sum(shares.values())) * (1 - 1e-9) for name, share in shares.items()}
        trained = size * (1 - held_out)
        steps: dict[str, Steps] = {
            name: self._steps(each[name], trained, declared, factor)
            for name, factor in ((MAIN, self.options.main), (FINAL, self.options.final))
            if name in each
        }
        noises = {name: 1 / value for name, value in each.items()}
        return GridsPlan(declared, self.options, held_out, noises, steps, figures, linear)

    def _steps(self, mu: float, size: float, declared: Declaration, factor: float) -> Steps:
        """A walk from declared numbers: that of linear heads, or that at which noise moves a number by ``reach``."""
        task, epochs = declared.task, declared.options.epochs
        if task.numeric:
            few, most = 100, 400
            largest = 2 * (1 + MOMENTUM) / THRESHOLD
            walk = self.options.reach * (1 - MOMENTUM) * mu * size / THRESHOLD
        else:
            box = head_defaults(mu, size, task.outputs, epochs, threshold=THRESHOLD)
            (few, most), (_, largest), walk = box.box.steps, box.box.lr, box.walk
        most = most if epochs is None else max(1, min(most, int(epochs)))
        walk = min(factor * walk, largest * most)
        steps = min(max(math.ceil(walk / largest), few), most)
        return Steps(walk / steps, steps, math.sqrt(steps) / mu)


@dataclass(frozen=True, slots=True)
class GridsPlan:
    """The stages of a fit of grids and their noise, fixed before a record is read."""

    declared: Declaration
    options: GridOptions
    held_out: float
    noises: dict[str, float]
    steps: dict[str, Steps]
    figures: HeldOutFigures
    linear: LeastSquaresPlan | None = None

    @property
    def events(self) -> dict[str, Event]:
        """What each stage costs the training part."""
        return {name: self._event(name) for name in self.noises}

    def _event(self, name: str) -> Event:
        if name not in self.steps:
            return Gaussian(self.noises[name])
        return Repeated(Gaussian(self.steps[name].noise_multiplier), self.steps[name].steps)

    def stages(self, split: str) -> list[Stage]:
        own = [Stage(name, event, TRAIN, split) for name, event in self.events.items()]
        return own if self.linear is None else [*self.linear.stages(split), *own]

    def reader(self, schema: Schema) -> RowReader:
        return encoder_of(schema, self.declared.options.device)

    def shorten(self, size: float, rows: int) -> tuple[GridsPlan, float]:
        return self, size / rows

    def train(self, parts: Parts, run: PaidRun) -> Trained:
        assert isinstance(parts.reader, Encoder)
        columns, dense, task = columns_of(parts.reader), dense_columns(parts.reader), self.declared.task
        features: Any = parts.train.features
        if isinstance(features, SparseRows):  # of wide hashed texts, which are multiplied as they are
            features = features.toarray()
        target = _target(parts)
        size = max(run.size * (1 - self.held_out), 1.0)
        weights, linear = parts.train_weights, None
        if self.linear is not None:
            linear = self.linear.fit(parts, run)[0]
            model = linear
            target = map_rows(lambda some, own: own - model.predict(some.astype(np.float64)), features, target)
        marginals = self._marginals(columns, features, target, weights, size, run)
        centre, spread = _place_target(marginals[-1], self._reach) if self._reach is not None else (0.0, 1.0)
        levels = Levels(columns, marginals[:-1] if task.numeric else marginals)
        rows = _table_rows(features, weights, levels, dense)
        residual: Residual = (
            NumberResidual(map_rows(lambda own: (np.nan_to_num(own) - centre) / spread, target))
            if task.numeric
            else ClassResidual(
                map_rows(lambda own: np.nan_to_num(own).astype(np.int64), target), task.outputs, run.class_weights
            )
        )
        base = additive_design(columns, len(dense), sum(each.stop - each.start for each in dense))
        outputs = 1 if task.numeric else task.outputs - 1
        main = self._descend(MAIN, rows, base, residual, outputs, None, size, run).last
        found = _Learnt(base, base.tables(main), main[base.features.shape[1] :], self._noise(MAIN, base, size))
        decisions: tuple[str, ...] = ()
        tried: tuple[MetricRecord, ...] = ()
        if SCREEN in self.noises:
            found, decisions, tried = self._interact(rows, levels, residual, found, size, run)
        predictor = GridPredictor(
            levels, replace(found.design, features=None), dense, found.tables, found.beside, found.noise,
            0 if task.numeric else task.outputs, centre, spread, task.interval, linear,
        )  # fmt: skip
        return Trained(
            predictor=predictor,
            figures=self.figures,
            plan=self._record(),
            decisions=(kept_apart(self.held_out), *self._reasons(), *decisions),
            trials=tried,
            details=predictor,
        )

    @property
    def _reach(self) -> float | None:
        """How far a number may be from what linear regression says of it: the length of its declared interval."""
        interval = self.declared.task.interval
        return None if interval is None else interval[1] - interval[0]

    def _marginals(
        self,
        columns: tuple[TableColumn, ...],
        features: Any,
        target: Any,
        weights: Floats | DiskArray,
        size: float,
        run: PaidRun,
    ) -> tuple[Marginal, ...]:
        """Those of the numbers, and last that of what linear regression leaves of a numeric target."""
        if MARGINALS not in self.noises:
            return ()
        numbers: list[tuple[TableColumn, Any]] = [(column, features) for column in columns if column.number is not None]
        if self._reach is not None:
            reach = self._reach
            numbers.append((_LEFT, map_rows(lambda own: np.clip(own / reach, -1.0, 1.0)[:, None], target)))
        with run.committed.stage(MARGINALS) as receipt:
            return release_marginals(
                numbers,
                weights,
                size=size,
                noise_multiplier=self.noises[MARGINALS],
                receipt=receipt,
                noise=run.keys.noise.spawn(),
            )

    def _descend(
        self,
        stage: str,
        rows: TableRows,
        design: Design,
        residual: Residual,
        outputs: int,
        start: _Learnt | None,
        size: float,
        run: PaidRun,
    ) -> GridWeights:
        with run.committed.stage(stage) as receipt:
            return descend(
                rows,
                design,
                residual,
                outputs,
                self.steps[stage],
                start=None if start is None else start.tables,
                start_beside=None if start is None else start.beside,
                size=size,
                receipt=receipt,
                noise=run.keys.noise.spawn(),
            )

    def _interact(
        self, rows: TableRows, levels: Levels, residual: Residual, main: _Learnt, size: float, run: PaidRun
    ) -> tuple[_Learnt, tuple[str, ...], tuple[MetricRecord, ...]]:
        """Screen pairs by the residuals of the additive model, learn grids on top of it, and choose how far to go."""
        columns = levels.columns
        kept = rank_columns(levels, main.tables)[: count_screened(self.noises[SCREEN], size)]
        pairs = tuple(combinations(sorted(kept), 2))
        cells = screen_cells(columns, pairs)
        noise = self.noises[SCREEN] * math.sqrt(len(pairs))
        with run.committed.stage(SCREEN) as receipt:
            sums = release_pairs(
                rows, cells, residual, main.design, main.tables, main.beside,
                noise_multiplier=self.noises[SCREEN], receipt=receipt, noise=run.keys.noise.spawn(),
            )  # fmt: skip
        energy = pair_energies(cells, sums, noise)
        chosen = choose_grids(pairs, energy, len(columns), self.options.pairs, self.options.triples, _MOST_PAIRS)
        waves = self.options.waves if 2 * self.options.waves * size < _WAVE_ROWS else 0
        design = grid_design(
            columns, main.design, chosen.pairs, chosen.triples, chosen.columns, waves, self.options.shares
        )
        start = main.carry_to(design)
        descent = self._descend(FINAL, rows, design, residual, main.tables.shape[1], start, size, run)
        found, told, tried = self._choose_walk(rows, residual, start, descent, size, run)
        best = [pairs[place] for place in np.argsort(-energy, kind="stable")[:5] if energy[place] > 0]
        named = ", ".join(f"{columns[a].name} x {columns[b].name}" for a, b in best) or "none stood out"
        said = f"Screened {len(pairs):,} pairs of columns by the residuals of the additive model; first: {named}."
        return found, (said, told), tried

    def _choose_walk(
        self, rows: TableRows, residual: Residual, start: _Learnt, descent: GridWeights, size: float, run: PaidRun
    ) -> tuple[_Learnt, str, tuple[MetricRecord, ...]]:
        """The last step, the mean of all, or a part of it: noise hurts more where classes overlap."""
        noise = self._noise(FINAL, start.design, size)
        walks = {
            f"{100 * _SHORT:.0f} % of the mean": start.add(_SHORT * descent.mean, _SHORT * noise / math.sqrt(3)),
            "the mean": start.add(descent.mean, noise / math.sqrt(3)),
            "the last step": start.add(descent.last, noise),
        }
        with run.committed.stage(COMPARISON) as receipt:
            worse = release_comparison(
                rows, residual, start.design, [(each.tables, each.beside) for each in walks.values()],
                noise_multiplier=self.noises[COMPARISON], receipt=receipt, noise=run.keys.noise.spawn(),
            )  # fmt: skip
        name, found = list(walks.items())[choose_walk(worse, size, 1 / self.noises[FINAL])]
        room = quantile() * MOST_WORSE * math.sqrt(len(worse)) * self.noises[COMPARISON] / size
        tried = tuple(
            MetricRecord("loss above that of the shortest walk", each, loss, around, around)
            for each, loss in zip(list(walks)[1:], (worse / size).tolist(), strict=True)
            for around in [(loss - room, loss + room)]
        )
        said = (
            f"Of the walk of grids {name} of its steps is taken, by a paid comparison of three on the records that "
            "they learnt from: there a longer one looks better in any case, so it has to be so by a margin."
        )
        return found, said, tried

    def _noise(self, stage: str, design: Design, size: float) -> Floats:
        """The standard deviation of privacy noise in each cell's table, as if no gradient had pulled it back."""
        steps = self.steps[stage]
        each = steps.lr / (1 - MOMENTUM) * steps.noise_multiplier * math.sqrt(steps.steps) * THRESHOLD / size
        lengths = np.sqrt(np.asarray(design.features.multiply(design.features).sum(axis=1)).ravel())
        return np.asarray(each * lengths)

    def _record(self) -> dict[str, Any]:
        each = {name: {"lr": steps.lr, "steps": steps.steps} for name, steps in self.steps.items()}
        about = {"model": "grids", "clipping": "constant", "threshold": THRESHOLD, "optimizer": "momentum"}
        tuning = self._share(SCREEN, COMPARISON) * (1.0 if self.linear is None else 1 - _LINEAR_SHARE)
        return {**about, "descents": each, "tuning_share": tuning}

    def _share(self, *names: str) -> float:
        """The part of the squared mu of training that some of its releases take."""
        return sum(1 / self.noises[name] ** 2 for name in names if name in self.noises) / sum(
            1 / noise**2 for noise in self.noises.values()
        )

    def _reasons(self) -> tuple[str, ...]:
        shares = ", ".join(f"{name} {100 * self._share(name):.0f} %" for name in self.noises)
        steps = " and ".join(f"{each.steps} steps of {each.lr:.3g}" for each in self.steps.values())
        return (
            f"Training goes, as parts of its own budget, to {shares}.",
            f"Full batch, clipping at {THRESHOLD:g} on rows of length 1; {steps}, from declared numbers alone.",
            "Model: tables of columns, of pairs and triples of them, and waves, added up. This form was chosen without "
            "looking, the pairs by the paid screen.",
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Learnt:
    """Released so far: tables of the cells of ``design``, weights of what is beside them, and noise of the tables."""

    design: Design
    tables: Floats
    beside: Floats
    noise: Floats

    def add(self, weights: Floats, noise: Floats) -> _Learnt:
        """With more weights of the same design, which hold ``noise``."""
        features = self.design.features.shape[1]
        return _Learnt(
            self.design,
            self.tables + self.design.tables(weights),
            self.beside + weights[features:],
            np.sqrt(self.noise**2 + noise**2),
        )

    def carry_to(self, design: Design) -> _Learnt:
        """The same on the cells of a larger design, which begins with these; texts and vectors keep their outputs."""
        more = design.cells.width - len(self.tables)
        outputs = self.tables.shape[1]
        tables = np.concatenate([self.tables, np.zeros((more, outputs))])
        beside = np.zeros((design.beside, outputs))
        if self.design.dense_width:
            scale = math.sqrt(self.design.dense_share / design.dense_share)
            beside[-self.design.dense_width :] = self.beside * scale
        return _Learnt(design, tables, beside, np.append(self.noise, np.zeros(more)))


_LEFT: Final = TableColumn("what is left of the target", number=0, interval=(-1.0, 1.0))


def _target(parts: Parts) -> Any:
    assert parts.train.target is not None
    return parts.train.target


def _table_rows(features: Any, weights: Floats | DiskArray, levels: Levels, dense: tuple[slice, ...]) -> TableRows:
    """The records as levels, those on disk some at a time."""
    beside = map_rows(lambda some: dense_rows(some, dense), features) if dense else None
    if isinstance(features, DiskArray):
        return TableRows(CodesOnDisk(map_rows(lambda some: levels.codes(some).T, features)), weights, beside)
    return TableRows(levels.codes(features), weights, beside)


def _place_target(marginal: Marginal, reach: float) -> tuple[float, float]:
    """The middle and the spread of a noisy marginal, half of what lies between its 16 % and 84 %: tails are noise."""
    edges, ends = cell_edges(_LEFT), np.append(0.0, np.cumsum(marginal.shares))
    low, middle, high = np.interp([0.16, 0.5, 0.84], ends / ends[-1], edges).tolist()
    return middle * reach, max((high - low) / 2, _LEAST_SPREAD) * reach
