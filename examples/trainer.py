"""The shortest private run: plan, train, save, load, predict. On made-up records."""

import tempfile

import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpilot
from dpilot import Budget, Plan, Trainer

torch.manual_seed(0)
inputs = torch.randn(2_000, 8)
dataset = TensorDataset(inputs, (inputs.sum(1) > 0).long())

plan = Plan.calibrate(Budget(3.0, 1e-5), size=2_000, batch_size=200, epochs=10, clipping="slack")
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
loss = nn.CrossEntropyLoss(reduction="none")
run = Trainer(model, loss, plan, optimizer="momentum", lr=0.5).fit(dataset)

with tempfile.TemporaryDirectory() as folder:
    run.save(folder)
    outputs = dpilot.load(folder).predict(inputs)
accuracy = (outputs.argmax(1) == dataset.tensors[1]).float().mean()
print(f"epsilon {run.epsilon:.3f} at delta {run.delta}, thresholds {run.thresholds[0]} to {run.thresholds[-1]:.3f}")
print(f"accuracy {accuracy:.2f} (shown because the records are made up)")
