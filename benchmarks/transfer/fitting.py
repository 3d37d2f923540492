"""A private head by a grid of step sizes that knows the answer (an oracle), and a plain head on the same features."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from dpilot import Budget, privacy
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features, centred, private_center
from dpilot.transfer.probe import Head, fit_heads, predict

DELTA = 1e-5
LRS = tuple(2.0**k for k in range(-1, 7))
STEPS = (20, 80, 320)
MORE = {"lrs": tuple(2.0**k for k in range(-1, 9)), "steps": (*STEPS, 1280)}  # where the best stood at the edge
CENTER_SHARE = 0.05  # of mu^2
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Result:
    """Accuracies of the best recipe of the grid, fitted anew."""

    lr: float
    steps: int
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies)

    @property
    def spread(self) -> float:
        return statistics.stdev(self.accuracies)


def oracle(train: Features, test: Features, epsilon: float, *, centres: bool, lrs=LRS, steps=STEPS) -> Result:
    """The recipe of the grid with the best test accuracy in one fit of each, then ``REPEATS`` fresh fits of it."""
    mu = privacy.gdp_mu(Budget(epsilon, DELTA))
    grid = [(lr, count) for count in steps for lr in lrs]
    scores = _fits(train, test, grid, mu, centres)
    best = grid[max(range(len(grid)), key=scores.__getitem__)]
    rounds = REPEATS if centres else 1
    found = [score for _ in range(rounds) for score in _fits(train, test, [best] * (REPEATS // rounds), mu, centres)]
    return Result(*best, tuple(found))


def plain(train: Features, test: Features, decays=(1e-7, 1e-6, 1e-5)) -> float:
    """The best test accuracy of logistic regression without bias, noise or clipping, over three weight decays."""
    return max(accuracy(test, _logistic(train, decay)) for decay in decays)


def accuracy(test: Features, weights: Tensor) -> float:
    """The share of records whose class is found."""
    return float((predict(test, weights) == test.labels).double().mean())


def _fits(train: Features, test: Features, grid: list[tuple[float, int]], mu: float, centres: bool) -> list[float]:
    left = mu
    if centres:
        sigma, left = 1 / (mu * math.sqrt(CENTER_SHARE)), mu * math.sqrt(1 - CENTER_SHARE)
        paid = Receipt(Gaussian(sigma))
        center = private_center(train, noise_multiplier=sigma, receipt=paid, size=len(train))
        train, test = (centred(part, center=center) for part in (train, test))
    heads = [Head(lr=lr, steps=count, noise_multiplier=math.sqrt(count) / left) for lr, count in grid]
    fitted = fit_heads(train, heads, receipts=[Receipt(head.event) for head in heads], size=len(train))
    return [accuracy(test, weights) for weights in fitted]


def _logistic(train: Features, decay: float) -> Tensor:
    weights = torch.zeros(train.width, train.classes, device=train.values.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=300, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(train.values @ weights, train.labels) + decay * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach()
