import torch

from tests.pages import made_up

model, loss_fn, dataset = made_up.network()
batch = x, y = dataset.tensors
weights, group_weights = torch.ones(64), torch.ones(64, 2)
groups = [["0.weight", "0.bias"], ["2.weight", "2.bias"]]
