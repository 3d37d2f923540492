# %% [markdown]
# # Persons
# A patient has several visits. Name the unit, and the promise is to the patient with all of them.
# %%
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer
from dpilot.linear import LinearRegression

torch.manual_seed(0)
patients = torch.randint(200, (1_000,))  # one id for each row
inputs = torch.randn(1_000, 4) + 0.1 * patients[:, None].remainder(2)
labels = patients.remainder(2)
# %% [markdown]
# `size` and `batch_size` are numbers of patients. At most `rows_per_unit` visits of one count.
# %%
plan = Plan.calibrate(Budget(3.0, 1e-5), size=200, batch_size=50, steps=20, unit="patient_id", rows_per_unit=8)
loss = nn.CrossEntropyLoss(reduction="none")
run = Trainer(nn.Linear(4, 2), loss, plan, units=patients, lr=0.5).fit(TensorDataset(inputs, labels))
print(run.epsilon, run.record.plan["unit"])
# %% [markdown]
# The same word in every estimator:
# %%
days = np.asarray(inputs.sum(1)) + 3.0
model = LinearRegression(epsilon=2.0, delta=1e-5, unit="patient_id", size=200)
model.fit(inputs.numpy(), days, units=patients.numpy())
print(model.privacy_)
