import torch
from torch import nn
from torch.utils.data import TensorDataset
from tests.pages import made_up
from dpilot.transfer import Features

made_up.weights("wrn-16-4", "wrn16_4_gn_cifar100.safetensors")
images, labels = torch.rand(4, 3, 32, 32), torch.arange(4)
test = Features.of(torch.rand(20, 256), torch.arange(20) % 10, classes=10).unit()
