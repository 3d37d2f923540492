"""Small runs for the autopilot's tests: a loud budget, or a large declared size, to have trials on few records."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.keys import KEY_BYTES
from dpilot.privacy.events import Gaussian, leaves
from dpilot.transfer.features import Features
from dpilot.tune import autopilot
from tests.privacy import second_accountant

BUDGET = Budget(1.0, 1e-5)
LOUD = Budget(60.0, 1e-5)
SMALL = {"size": 100, "held_out_share": 0.5, "epochs": 4}
PROMISED = {"size": 50_000, "held_out_share": 0.1, "epochs": 4}  # declared, so that trials are planned; few are there
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"type": "numeric", "bounds": [0, 100]},
            "pay": {"type": "numeric", "bounds": "buy"},
            "kind": {"type": "categorical", "categories": ["a", "b"]},
            "site": {"type": "categorical", "categories": ["north", "south"], "role": "protected"},
            "outcome": {"type": "categorical", "categories": ["no", "yes"], "role": "target"},
        }
    }
)


def arrays(size=100, seed=0):
    made = np.random.default_rng(seed)
    values = made.normal(size=(size, 3))
    return values, (values[:, 0] > 0).astype(np.int64)


def frame(size=100, seed=0):
    """Records of SCHEMA as a mapping of columns."""
    made = np.random.default_rng(seed)
    age = made.uniform(0, 100, size)
    return {
        "age": age,
        "pay": made.normal(50, 20, size),
        "kind": np.where(made.random(size) > 0.5, "a", "b").astype(object),
        "site": np.where(made.random(size) > 0.5, "north", "south").astype(object),
        "outcome": np.where(age > 50, "yes", "no").astype(object),
    }


def heads(pair=None, budget=LOUD, **options):
    values, labels = pair or arrays()
    return autopilot(Features.of(values, labels, 2), budget=budget, **{**SMALL, **options})


def module(pair=None, budget=BUDGET, **options):
    values, labels = pair or arrays()
    data = TensorDataset(torch.from_numpy(values).float(), torch.from_numpy(labels))
    options = {"size": 600, "epochs": 2, "classes": 2, **options}
    return autopilot(lambda: nn.Linear(3, 2), data, budget, **options)


def squared_mu(events):
    """The sum of 1 / sigma^2 of full-batch Gaussians."""
    parts = [part for event in events for part in leaves(event)]
    assert all(isinstance(event, Gaussian) for event, _ in parts)
    return sum(times / event.noise_multiplier**2 for event, times in parts)


def second_delta(events, epsilon):
    return second_accountant.delta(1.0, squared_mu(events) ** -0.5, 1, epsilon, grid=2**15, points=20_000)


def key_that_puts(place, part, shares):
    """A key of coins under which the record at ``place`` is in ``part``."""
    for number in range(100):
        key = number.to_bytes(KEY_BYTES, "little")
        if place in Split(shares, key).indices(place + 1)[part]:
            return key
    raise AssertionError(f"no key puts record {place} in {part}")
