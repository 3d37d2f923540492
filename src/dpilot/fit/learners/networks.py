"""Linear models and small networks, trained by private stochastic gradient descent on the training part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot import _validate, clipping
from dpilot._arrays import Floats
from dpilot.clipping import Clipping
from dpilot.data.disk import DiskArray, DiskArrayBuilder
from dpilot.data.encoder import Encoded
from dpilot.data.mapped import MappedDataset
from dpilot.data.schema import Schema
from dpilot.data.units import UnitRows, UnitsOnDisk
from dpilot.fit.declaration import Declaration, FitTask
from dpilot.fit.embeddings import encoder_of
from dpilot.fit.expansion import WideRows, features_of
from dpilot.fit.figures import CountFigures, HeldOutFigures, SumFigures
from dpilot.fit.learners.base import PaidRun, Trained, kept_apart
from dpilot.fit.population import TRAIN, Parts
from dpilot.fit.purchases import Purchases
from dpilot.fit.source import RowReader, take
from dpilot.numerics.products import products
from dpilot.privacy import accountant
from dpilot.privacy.batch_rule import batch_rule
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.calibrate import noise_multiplier, scale_for
from dpilot.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Stage
from dpilot.train.batches.unit_reader import UnitsById
from dpilot.train.checkpoint import architecture
from dpilot.train.checkpoint.store import from_storable, to_storable
from dpilot.train.plan import Plan
from dpilot.train.progress import Observers
from dpilot.tune.autopilot_plan import EPOCHS, LEAST_STEPS, batch_candidates
from dpilot.tune.candidate import Candidate
from dpilot.tune.recipe import Recipe, TrialRun
from dpilot.tune.task import Trial

__all__ = ["Network", "NetworkPredictor", "StepNumbers", "data_free_step"]

TRAINING: Final = "training"
_LEAST_THRESHOLD: Final = 0.1
_SLACK: Final = 2e-3  # of epsilon that may be left unused beside something bought
_ROWS: Final = 1 << 16  # widened at a time
_UNSIZED_RATE: Final = 1 / 40  # of a run whose size is not known when it is planned

Step = Callable[["StepNumbers"], float]


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What may decide the step size: the plan's numbers, the number of parameters, and the target's kind.

    ``mean_square`` is about the squared length of a row of features, by declaration.
    """

    batch_size: float
    steps: int
    noise_multiplier: float
    parameters: int
    mean_square: float
    numeric_target: bool


def data_free_step(numbers: StepNumbers) -> float:
    """The step with which the noise alone would carry the parameters a distance of 4, in a run of constant steps.

    ::

        lr = min(4 B / (sigma sqrt(p T)), 16)

    for gradients in units of the clipping threshold: T steps of noise sigma / B in each of p coordinates make a random
    walk of length lr sigma sqrt(p T) / B. A logistic model of a table has weights of length 3 to 12, so a walk of about
    that length still leaves the signal; the cosine that ends the run takes most of the walk back.

    Edge cases:
        numeric target        a squared loss has curvature everywhere, so lr is at most 1 / (mean squared row)

    Example:
        >>> numbers = StepNumbers(1024, 400, 2.0, 240, 12.0, numeric_target=False)
        >>> round(data_free_step(numbers), 3)
        6.61

    Reference:
        4 and 16 were chosen on bank marketing, credit default, law school and the Dutch census at epsilon 0.3, 1, 4.
    """
    noise = numbers.noise_multiplier * math.sqrt(numbers.parameters * numbers.steps) / numbers.batch_size
    lr = min(4.0 / noise, 16.0)
    return min(lr, 1 / numbers.mean_square) if numbers.numeric_target else lr


@dataclass(frozen=True, slots=True)
class Network:
    """One layer ("linear") or two ("mlp"); ``step`` gives the step size from declared numbers."""

    layers: str = "linear"
    step: Step = data_free_step
    gaussian: bool = False

    def purchases(self, declared: Declaration, budget: Budget) -> Purchases:
        return Purchases.plan(declared, budget)

    def plan(self, declared: Declaration, budget: Budget, purchases: Purchases) -> NetworkPlan:
        """Batch rule for rate and steps, and the noise that the budget then asks for."""
        held_out = 0.1 if declared.options.held_out is None else declared.options.held_out
        epochs = EPOCHS if declared.options.epochs is None else declared.options.epochs
        rate, steps, reason = _rate_and_steps(budget, declared.size, held_out, epochs)
        share = purchases.share
        # 1e-9 more, so that the sum of what is bought and measured stays below the budget in floats
        figures_noise = (1 + 1e-9) / (gdp_mu(budget) * math.sqrt(1 - share))
        kind = SumFigures if declared.task.numeric else CountFigures
        bought = tuple(purchases.events.values())
        return NetworkPlan(
            network=self,
            declared=declared,
            budget=budget,
            held_out=held_out,
            sample_rate=rate,
            steps=steps,
            noise_multiplier=_noise(budget, rate, steps, bought),
            figures=kind(declared.task, figures_noise),
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """Rate, steps and noise of a run, and why."""

    network: Network
    declared: Declaration
    budget: Budget
    held_out: float
    sample_rate: float
    steps: int
    noise_multiplier: float
    figures: HeldOutFigures
    reason: str

    def stages(self, split: str) -> list[Stage]:
        return [Stage(TRAINING, _training(self.sample_rate, self.steps, self.noise_multiplier), TRAIN, split)]

    def reader(self, schema: Schema) -> RowReader:
        return encoder_of(schema, self.declared.options.device)

    def run_plan(self, size: float) -> Plan:
        """The plan of the run; ``size`` is declared or was bought, never counted in secret."""
        return Plan(
            budget=self.budget,
            size=max(1, round(size * (1 - self.held_out))),
            sample_rate=self.sample_rate,
            steps=self.steps,
            noise_multiplier=self.noise_multiplier,
            clipping=clipping_from(_LEAST_THRESHOLD),
            cost=Cost(self.budget.epsilon, self.budget.delta),
            unit=self.declared.unit,
        )

    def train(self, parts: Parts, run: PaidRun) -> Trained:
        rows, task, plan = features_of(parts.reader.schema), self.declared.task, self.run_plan(run.size)
        least = _LEAST_THRESHOLD if run.class_weights is None else math.sqrt(rows.mean_square) / 2
        plan = replace(plan, clipping=clipping_from(least), unit=run.unit)
        made = build(self.network.layers, rows.width, task.outputs)
        numbers = StepNumbers(
            batch_size=plan.expected_batch_size,
            steps=plan.steps,
            noise_multiplier=plan.noise_multiplier,
            parameters=sum(parameter.numel() for parameter in made.parameters()),
            mean_square=rows.mean_square,
            numeric_target=task.numeric,
        )
        lr = self.network.step(numbers)
        recipe = Recipe(
            model_fn=lambda: build(self.network.layers, rows.width, task.outputs),
            loss_fn=_Squared() if task.numeric else cross_entropy(run.class_weights, self.declared.options.device),
            dataset=dataset_of(parts, rows, task),
            size=float(plan.size),
            sample_rate=plan.sample_rate,
            clipping=plan.clipping,
            optimizer="sgd",
            options={"schedule": "cosine", "device": self.declared.options.device, "chunk_size": _chunk_size(plan)},
        )
        started = self.run(recipe, lr, plan, run)
        return Trained(
            predictor=NetworkPredictor(started.state.context.model, rows, task.interval),
            figures=self.figures,
            plan={
                **plan.to_dict(), "lr": lr, "schedule": "cosine", "optimizer": "sgd",
                "model": self.declared.options.model, "parameters": numbers.parameters,
            },
            decisions=self._decisions(numbers, lr, least),
            steps=tuple(started.state.records),
        )  # fmt: skip

    def run(self, recipe: Recipe, lr: float, plan: Plan, run: PaidRun) -> TrialRun:
        """All steps of ``plan``, under the receipt of training."""
        with run.committed.stage(TRAINING) as receipt:
            trial = Trial(Candidate(lr, plan.steps), plan.noise_multiplier, receipt)
            started = recipe.run(trial, plan, run.keys.trial())
            started.run_steps(Observers(progress=run.progress).of(plan.steps, 0, run.cost.epsilon, run.cost.delta, 0.0))
            started.state.finish()
        return started

    def shorten(self, size: float, rows: int) -> tuple[NetworkPlan, float]:
        steps = min(self.steps, 100)
        rate = min(1.0, self.sample_rate * size / rows)
        return replace(self, sample_rate=rate, steps=steps), self.steps / steps

    def _decisions(self, numbers: StepNumbers, lr: float, least: float) -> tuple[str, ...]:
        kind = "linear" if self.declared.task.numeric else "logistic"
        said = f"{kind} regression on declared features"
        return (
            f"{self.reason[0].upper()}{self.reason[1:]}.",
            kept_apart(self.held_out),
            f"Noise of training {self.noise_multiplier:.4g} in each of {self.steps:,} steps: the least that the budget "
            "allows.",
            f"Clipping adapts from a threshold of {max(least, 1.0):.3g} and not below {least:.3g}, by the free signal "
            "of slack clipping.",
            f"Step size {lr:.4g}, from declared numbers alone: with {numbers.parameters:,} parameters the noise "
            "of the run would carry the model about as far as its weights are long.",
            f"Model: {said if self.network.layers == 'linear' else 'a network of one hidden layer'}.",
        )


@dataclass(frozen=True, slots=True, eq=False)
class NetworkPredictor:
    """A trained module on widened rows; a number is scaled back to the target's bounds and pulled into them."""

    module: nn.Module
    rows: WideRows
    interval: tuple[float, float] | None
    kind: str = "network"

    def outputs(self, rows: Any) -> Floats:
        widened = np.asarray(self.rows.widen(rows))
        values = _apply_layers(self.module, widened)
        values = np.where(np.isfinite(widened).all(axis=1, keepdims=True), values, np.nan)
        if self.interval is None:
            return values
        lower, upper = self.interval
        return np.asarray(lower + (np.clip(values, -1.0, 1.0) + 1) / 2 * (upper - lower))

    def state(self) -> tuple[dict[str, Any], Mapping[str, Any]]:
        plain = {"layers": architecture.describe(self.module), "interval": self.interval}
        return plain, to_storable(self.module.state_dict())

    @classmethod
    def load(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor], reader: RowReader) -> NetworkPredictor:
        """The predictor that ``state`` describes."""
        module = architecture.build(plain["layers"])
        module.load_state_dict(from_storable(dict(tensors)))
        interval = None if plain["interval"] is None else (float(plain["interval"][0]), float(plain["interval"][1]))
        return cls(module, features_of(reader.schema), interval)


def build(layers: str, inputs: int, outputs: int, hidden: int = 32) -> nn.Module:
    """A fresh model; its first weights depend on no record. The last layer starts at zero.

    >>> build("linear", 3, 2)
    Linear(in_features=3, out_features=2, bias=True)
    """
    _validate.one_of(("linear", "mlp"), layers=layers)
    last = nn.Linear(inputs if layers == "linear" else hidden, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return last if layers == "linear" else nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), last)


def _apply_layers(module: nn.Module, rows: Any) -> Floats:
    """What a module of ``build`` says of each row, in float64: each row's own to the last bit, wherever it stands."""
    for layer in module if isinstance(module, nn.Sequential) else (module,):
        if isinstance(layer, nn.Linear):
            weight, bias = (each.detach().double().cpu().numpy() for each in (layer.weight, layer.bias))
            rows = products(rows, weight.T) + bias
        else:
            assert isinstance(layer, nn.Tanh)
            rows = np.tanh(rows)
    return np.asarray(rows)


def dataset_of(parts: Parts, rows: WideRows, task: FitTask) -> TensorDataset | MappedDataset | UnitsById:
    """What is trained on, as tensors, a null record before it: so that the part is never empty, whoever is in it."""
    if not isinstance(parts.train.features, DiskArray):
        return with_units(_tensors(parts.train, rows, task), parts)
    wide, target = DiskArrayBuilder(np.float32, (rows.width,)), DiskArrayBuilder(_target_type(task))
    wide.append(np.full((1, rows.width), np.nan))
    target.append(np.zeros(1))
    for start in range(0, len(parts.train.features), _ROWS):
        some = take(parts.train, slice(start, start + _ROWS))
        wide.append(np.asarray(rows.widen(cast(Any, some.features))))
        target.append(_as_target(np.asarray(some.target), task))
    return with_units(MappedDataset(wide.build(), target.build()), parts)


def with_units(table: TensorDataset | MappedDataset, parts: Parts) -> TensorDataset | MappedDataset | UnitsById:
    """The records of a part, behind a null one, or the units that they are of."""
    if parts.units is None:
        return table
    if isinstance(parts.units, UnitsOnDisk):
        return UnitsById(table, parts.units.behind_null())
    places, units = np.arange(len(parts.units.units) + 1), np.append([0], parts.units.units + 1)
    return UnitsById(table, UnitRows(places, units, parts.units.count + 1))


def _tensors(records: Encoded, rows: WideRows, task: FitTask) -> TensorDataset:
    wide = np.asarray(rows.widen(cast(Any, records.features)))
    features = np.concatenate([np.full((1, rows.width), np.nan, dtype=np.float32), wide])
    target = np.append(np.zeros(1), _as_target(np.asarray(records.target), task)).astype(_target_type(task))
    return TensorDataset(torch.from_numpy(features), torch.from_numpy(target))


def _target_type(task: FitTask) -> type[np.generic]:
    return np.float32 if task.numeric else np.int64


def _as_target(target: Floats, task: FitTask) -> Floats:
    """Codes of classes, or numbers in [-1, 1]; 0 for a null record."""
    if task.interval is not None:
        lower, upper = task.interval
        target = np.clip((target - lower) / (upper - lower) * 2 - 1, -1.0, 1.0)
    return np.nan_to_num(target, nan=0.0)


def clipping_from(least: float) -> Clipping:
    """Slack clipping with a threshold of ``least`` or more.

    With class weights it is half of a row's length, as for heads: one that went down to the gradients of the common
    classes would clip those of the rare ones to the same length, and undo the weights (docs/fit.md).
    """
    return clipping.get("bounded-slack", threshold=max(least, 1.0), floor=least, normalized=True)


def cross_entropy(class_weights: tuple[float, ...] | None, device: str | None) -> nn.Module:
    """That of each record, times the weight of its class: so before it is clipped."""
    weight = None if class_weights is None else torch.tensor(class_weights, device=device)
    return nn.CrossEntropyLoss(reduction="none", weight=weight)


class _Squared(nn.Module):
    """Half the squared error of one output."""

    reduction: Final = "none"

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output[:, 0] - target).square() / 2


def _chunk_size(plan: Plan) -> int:
    """From declared numbers: a size that was found by the clock would round a repeated run otherwise."""
    return min(1 << math.ceil(math.log2(max(plan.expected_batch_size * 1.25, 1))), 2048)


def _rate_and_steps(budget: Budget, size: int | None, held_out: float, epochs: float) -> tuple[float, int, str]:
    if size is None:
        steps = max(1, round(epochs / _UNSIZED_RATE))
        return _UNSIZED_RATE, steps, f"rate 1/{round(1 / _UNSIZED_RATE)}: fixed, as the size is not known beforehand"
    trained = max(1, round(size * (1 - held_out)))
    advice = batch_rule(
        budget, size=trained, epochs=epochs, candidates=batch_candidates(trained, epochs), min_steps=LEAST_STEPS
    )
    return advice.batch_size / trained, advice.steps, advice.reason


@lru_cache(maxsize=64)
def _noise(budget: Budget, rate: float, steps: int, bought: tuple[Event, ...]) -> float:
    """The noise of training beside what is ``bought``: composed as the ledger will compose it.

    Epsilon falls about as a power of the noise: a secant in logs finds that power. What is returned was found to cost
    no more than the budget.
    """
    sigma = noise_multiplier(budget, sample_rate=rate, steps=steps)
    if not bought:
        return sigma
    power, before = -1.0, None
    for _ in range(8):
        whole = Composed([*bought, _training(rate, steps, sigma)])
        ratio = accountant.epsilon(whole, budget.delta) / budget.epsilon
        if 1 - _SLACK <= ratio <= 1:
            return sigma
        if before is not None and sigma != before[0]:
            power = min(math.log(ratio / before[1]) / math.log(sigma / before[0]), -0.1)
        before = sigma, ratio
        sigma *= ((1 - _SLACK / 2) / ratio) ** (1 / power)
    return scale_for(
        lambda each: Composed([*bought, _training(rate, steps, each)]), budget, low=sigma / 2, high=4 * sigma
    )


def _training(rate: float, steps: int, sigma: float) -> Event:
    step = Gaussian(sigma)
    return Repeated(step if rate == 1 else PoissonSampled(rate, step), steps)
