# %% [markdown]
# # My own torch model
# Any `nn.Module` whose records stay apart; `dpilot doctor MODULE:MODEL` says what would not.
# %%
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpilot
from dpilot import Budget, Plan, Trainer, engine

torch.manual_seed(0)
pictures = torch.randn(600, 1, 8, 8)
labels = (pictures.mean((1, 2, 3)) > 0).long()
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
print(engine.check(model))  # no problem: []
# %% [markdown]
# The plan is public and fixes the price before a record is read.
# %%
plan = Plan.calibrate(Budget(8.0, 1e-5), size=600, batch_size=100, epochs=5, clipping="slack")
print(plan.noise_multiplier, plan.steps)
run = Trainer(model, nn.CrossEntropyLoss(reduction="none"), plan, lr=0.5).fit(TensorDataset(pictures, labels))
print(run.epsilon, run.thresholds[-1])
# %%
run.save("run")
print(dpilot.load("run").predict(pictures[:2]).shape)
print(run.steps().head(3))
