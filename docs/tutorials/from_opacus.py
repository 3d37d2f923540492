# %% [markdown]
# # From Opacus
# An Opacus loop keeps its form. What goes: `PrivacyEngine`, `zero_grad`, `backward`; what comes: a plan that is paid
# before the first record is read, and one line a step. The same script with Opacus stands in
# [training](../training.md).
# %%
import torch
from torch import nn
from torch.utils import data

from dpilot import Budget, Plan, PrivateStep, poisson_loader

torch.manual_seed(0)
inputs = torch.randn(512, 8)
dataset = data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
# %% [markdown]
# | Opacus | here |
# |---|---|
# | `target_epsilon`, `target_delta`, `epochs` | `Plan.calibrate(Budget(epsilon, delta), size=..., epochs=...)` |
# | `max_grad_norm` | `clipping="constant"` or another rule, `threshold` |
# | `make_private(...)` | `PrivateStep(model, loss_fn, optimizer, plan)` |
# | `DPDataLoader` | `poisson_loader(dataset, plan)` |
# | `BatchMemoryManager` | `chunk_size=` |
# | `get_epsilon(delta)` | known beforehand: `plan.budget`, `run.epsilon` |
# %%
plan = Plan.calibrate(Budget(4.0, 1e-5), size=512, batch_size=64, epochs=10, clipping="constant")
step = PrivateStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, plan)
for batch in poisson_loader(dataset, plan):
    step(batch)
print((model(inputs).argmax(1) == dataset.tensors[1]).float().mean())
