"""A tiny task that every test of training shares."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer, clipping

SIZE, WIDTH, STEPS = 60, 4, 8
LOSS = nn.CrossEntropyLoss(reduction="none")


def records(size=SIZE, width=WIDTH):
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, width, generator=made)
    return inputs, (inputs.sum(1) > 0).long()


def data(size=SIZE):
    return TensorDataset(*records(size))


def model(seed=0, dropout=0.0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(WIDTH, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 2)]
        return nn.Sequential(*layers)


@lru_cache
def _text(rate, steps, epsilon):
    plan = Plan.calibrate(Budget(epsilon, 1e-5), size=SIZE, sample_rate=rate, steps=steps, clipping="constant")
    return plan.to_dict()


def plan(rule="constant", rate=0.3, steps=STEPS, epsilon=5.0):
    """A new plan each time, as a plan is used once; the calibration is shared."""
    chosen = clipping.get(rule) if isinstance(rule, str) else rule
    return Plan.from_dict({**_text(rate, steps, epsilon), "clipping": clipping.to_dict(chosen)})


def fit(rule="constant", dataset=None, net=None, **options):
    chosen = options.pop("plan", None) or plan(rule)
    options = {"lr": 0.5, "chunk_size": 16, "test_seed": 7, **options}
    return Trainer(net or model(), LOSS, chosen, **options).fit(data() if dataset is None else dataset)


def same(one, other):
    """Whether two models hold the same numbers, bit for bit."""
    first, second = one.state_dict(), other.state_dict()
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)
