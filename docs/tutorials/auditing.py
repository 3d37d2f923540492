# %% [markdown]
# # Auditing
# Try to prove the promise wrong: replay a run on neighbours, and verify a model that somebody hands you.
# %%
import numpy as np

from dpilot import statistics
from dpilot.audit import neighbours, replay

ages = np.array([31.0, 44.0, 59.0, 27.0, 66.0])


def noisy_count(data):
    return statistics.count(data, noise_multiplier=2.0)


# %% [markdown]
# Every release is repeated with the same outputs; one record more or less may move its input by the
# bound, and nothing else.
# %%
for pair in neighbours(ages):
    assert replay(noisy_count, pair.data, pair.neighbour).differences == ()
# %% [markdown]
# A saved model states its epsilon, its events and the hash of every file. Verification recomputes all of it.
# %%
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer
from dpilot.audit.verify import verify

dataset = TensorDataset(torch.randn(200, 2), torch.randint(2, (200,)))
plan = Plan.calibrate(Budget(1.0, 1e-5), size=200, batch_size=50, steps=4)
Trainer(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), plan).fit(dataset).save("run")
for check in verify("run").checks:
    print(check.name, check.held, check.found)
