"""Networks for tables: logistic regression and a small multilayer perceptron."""

from __future__ import annotations

from torch import nn


def logistic(features: int, outputs: int = 1) -> nn.Linear:
    """One linear layer: features + 1 parameters with one output, whose sigmoid is the probability.

    Reference: Zhao et al. 2026, appendix A.3.
    """
    return nn.Linear(features, outputs)


def mlp(features: int, classes: int = 2, width: int = 64) -> nn.Sequential:
    """Two hidden layers of 64: 64 (features + 1) + 4,160 + 65 classes parameters. Of no paper: a common small size."""
    return nn.Sequential(
        nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )
