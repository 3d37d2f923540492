import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Schema
from dpilot.transfer import Features
from tests.pages import made_up

frame, schema_file = made_up.adult()
schema = Schema.from_toml(schema_file)
values = np.random.default_rng(0).normal(size=(4_000, 8)).astype(np.float32)
features = Features.of(values, (values[:, 0] > 0).astype(np.int64), classes=2).unit()
inputs = torch.randn(1_000, 6)
dataset = TensorDataset(inputs, inputs[:, 0].gt(0).long())
files, batch = [dataset[i] for i in range(1_000)], dataset[:2]


def Net():
    return nn.Linear(6, 10)
