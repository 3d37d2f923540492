import torch

from tests.pages import made_up

made_up.weights()
images, labels = torch.rand(2, 3, 32, 32), torch.arange(2)
