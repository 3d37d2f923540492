"""The same script with dpilot: a small classifier on made-up records."""

import torch
from torch import nn
from torch.utils import data

from dpilot import Budget, Plan, PrivateStep, poisson_loader

torch.manual_seed(0)
inputs = torch.randn(512, 8)
dataset = data.TensorDataset(inputs, (inputs.sum(1) > 0).long())

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
criterion = nn.CrossEntropyLoss(reduction="none")
plan = Plan.calibrate(Budget(4.0, 1e-5), size=512, batch_size=64, epochs=10, clipping="constant")
loader, step = poisson_loader(dataset, plan), PrivateStep(model, criterion, optimizer, plan)

for _ in range(10):
    for batch in loader:
        step(batch)

print(f"accuracy {(model(inputs).argmax(1) == dataset.tensors[1]).float().mean():.2f}")
