"""An ordinary Opacus script: a small classifier on made-up records."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils import data

torch.manual_seed(0)
inputs = torch.randn(512, 8)
dataset = data.TensorDataset(inputs, (inputs.sum(1) > 0).long())

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
criterion = nn.CrossEntropyLoss()
loader = data.DataLoader(dataset, batch_size=64)
model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=loader,
    epochs=10,
    target_epsilon=4.0,
    target_delta=1e-5,
    max_grad_norm=1.0,
)

for _ in range(10):
    for batch in loader:
        x, y = batch
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()

print(f"accuracy {(model(inputs).argmax(1) == dataset.tensors[1]).float().mean():.2f}")
