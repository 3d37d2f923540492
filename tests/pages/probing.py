import torch

from dpilot.transfer import Features
from tests.pages import made_up

made_up.weights()
images, labels = torch.rand(400, 3, 32, 32), torch.arange(400) % 10
test = Features.of(torch.rand(20, 64), torch.arange(20) % 10, classes=10).unit()
