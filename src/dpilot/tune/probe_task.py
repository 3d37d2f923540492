"""Linear heads on cached features: all trials of a stage are fitted together, as one batched product a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.mechanism import Draws
from dpilot.metrics.counts import Scored
from dpilot.noise import SystemNoise
from dpilot.privacy.unit import PrivacyUnit
from dpilot.sampling import PoissonSampler
from dpilot.statistics.histogram import table
from dpilot.transfer.features import Features
from dpilot.transfer.numbers import as_numbers
from dpilot.transfer.probe import Head, fit_heads, predict, scores
from dpilot.tune.task import HELD_OUT, TRAIN, MakeNoise, Trial, count_cells, exact_counts, require_distinct

__all__ = ["THRESHOLD", "ProbeTask", "head_threshold"]

THRESHOLD: Final = 0.5
"""Of gradients of unit rows, which are at most 1.41 long; defended in docs/autopilot.md."""


def head_threshold(unit: PrivacyUnit) -> float:
    """The threshold of a head on unit rows: half as large for means of several rows, which are shorter.

    Reference:
        1/4 was the best of 1/8, 1/4, 0.35 and 1/2 on persons of alike and of unlike rows (benchmarks/persons).
    """
    return THRESHOLD if unit.rows in (None, 1) else THRESHOLD / 2


@dataclass(frozen=True, slots=True, eq=False)
class ProbeTask:
    """Full-batch private gradient descent on linear heads; a model is a (d, classes) tensor of weights.

    ``train_features`` and ``held_out`` are the two parts; ``size`` and ``held_out_size`` their declared expected sizes.
    ``groups`` are the group codes of the held-out records, for the objective "worst_group". ``class_weights`` multiply
    the loss before clipping; they are declared or released.

    Guarantee:
        Each trial has noise of its own and draws each step from its own receipt; there is no sampling, so a trial of
        T steps of multiplier s is (sqrt(T) / s)-GDP, exactly.

    Example:
        >>> from dpilot.privacy.events import Gaussian, Repeated
        >>> from dpilot.privacy.receipt import Receipt
        >>> from dpilot.tune.candidate import Candidate
        >>> features = Features.of([[1.0, 0.0], [0.0, 1.0]] * 500, [0, 1] * 500, classes=2)
        >>> task = ProbeTask.of(features, Split.draw({"train": 0.8, "held-out": 0.2}), size=1000)
        >>> trial = Trial(Candidate(1.0, 5), 2.0, Receipt(Repeated(Gaussian(2.0), 5)))
        >>> (weights,) = task.train([trial])
        >>> counts = task.table(weights, "macro", noise_multiplier=2.0, receipt=Receipt(Gaussian(2.0)))
        >>> counts.shape, bool((counts[:, 1] > counts[:, 0]).all())
        ((2, 2), True)
    """

    train_features: Features
    held_out: Features
    size: float
    held_out_size: float
    split: str | None = None
    groups: Tensor | None = field(default=None, repr=False)
    group_count: int = 0
    momentum: float = 0.9
    threshold: float = THRESHOLD
    free_step: bool = True
    device: str | None = None
    noise: MakeNoise = SystemNoise
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _validate.positive("Declare it.", size=self.size)
        _validate.positive("Declare it.", held_out_size=self.held_out_size)
        object.__setattr__(self, "held_out", self.held_out.one_a_unit())  # a unit is scored as one record
        object.__setattr__(self, "noise", require_distinct(self.noise))
        _ = self.noise(), self.noise()  # a factory that repeats one state is refused now
        if self.groups is not None and len(self.groups) != len(self.held_out):
            raise InvalidInput("groups and held-out features differ in length: expected one group code a record.")

    @classmethod
    def of(
        cls, features: Features, split: Split, *, size: float, groups: Any = None, group_count: int = 0, **options: Any
    ) -> ProbeTask:
        """The task of ``features`` split by ``split`` into "train" and "held-out"; ``size`` is declared for both.

        Units (``Features.by_unit``) are split whole, and held out by one row each; the mean of their rows' gradients is
        clipped, by default at ``head_threshold``.
        """
        if groups is not None and features.units is not None:
            raise InvalidInput("groups are given for rows of units: expected none. fit_table compares groups of units.")
        parts = split.indices(features.count)
        codes = None if groups is None else as_numbers(groups, rows=False)[parts[HELD_OUT]]
        options.setdefault("threshold", head_threshold(features.protects))
        return cls(
            features.of_units(parts[TRAIN]),
            features.of_units(parts[HELD_OUT]),
            size * split.share(TRAIN),
            size * split.share(HELD_OUT),
            split.id,
            codes,
            group_count,
            **options,
        )

    @property
    def unit(self) -> PrivacyUnit:
        return self.train_features.protects

    @property
    def sample_rate(self) -> float:
        return 1.0

    @property
    def stamp(self) -> str:
        return self.noise().stamp

    def cells(self, objective: str) -> int:
        groups = 0 if self.groups is None else self.group_count
        return count_cells(objective, self.held_out.classes, groups, "groups= and group_count=")

    def untrained(self) -> Tensor:
        return torch.zeros(self.train_features.width, self.train_features.classes)

    def train(self, trials: Sequence[Trial]) -> tuple[Tensor, ...]:
        heads = [
            Head(
                each.candidate.lr,
                each.candidate.steps,
                each.noise_multiplier,
                self.momentum,
                self.threshold,
                self.free_step,
            )
            for each in trials
        ]
        receipts = [each.receipt for each in trials]
        noises = None if self.noise is SystemNoise else [self.noise() for _ in trials]
        return fit_heads(
            self.train_features,
            heads,
            receipts=receipts,
            size=self.size,
            noises=noises,
            device=self.device,
            class_weights=self.class_weights,
        )

    def table(self, model: Tensor, objective: str, *, noise_multiplier: float, receipt: Draws) -> Floats | None:
        if not bool(torch.isfinite(model).all()):
            return None
        shape = (self.cells(objective), 2)
        codes = self._codes(model, objective)
        return table(codes, shape=shape, noise_multiplier=noise_multiplier, receipt=receipt, noise=self.noise())

    def predictions(self, model: Tensor) -> Scored:
        """Held-out records with the probabilities that ``model`` gives them. Sensitive: for the door only."""
        held_out, groups = self.held_out, self.groups
        with torch.no_grad():
            probabilities = torch.softmax(scores(held_out, model.to(held_out.labels.device)).double(), 1)
        group = None if groups is None else groups.double().cpu().numpy()
        return Scored(held_out.labels.double().cpu().numpy(), probabilities.cpu().numpy(), group)

    def exact_table(self, model: Tensor, objective: str) -> Floats:
        return exact_counts(self._codes(model, objective), self.cells(objective))

    def subsample(self, rate: float) -> ProbeTask:
        """The same task on a Poisson sample of its training records, or units: secret coins, one for each."""
        batch = PoissonSampler(rate, 1).issue(self.train_features.count)
        return replace(self, train_features=self.train_features.of_units(batch.indices), size=rate * self.size)

    def _codes(self, model: Tensor, objective: str) -> Floats:
        """For each held-out record its cell (-1 for a null record) and whether it is predicted right. Sensitive."""
        labels = self.held_out.labels
        right = predict(self.held_out, model.to(labels.device)) == labels
        if objective == "worst_group":
            assert self.groups is not None
            cell = self.groups.to(labels.device, torch.float64)
        else:
            cell = (labels if self.cells(objective) > 1 else torch.zeros_like(labels)).double()
        cell = torch.where(labels < 0, -1.0, cell)
        return torch.stack([cell, right.double()], 1).cpu().numpy()
