import torch

from tests.pages import made_up

made_up.weights("wrn-16-4", "wrn16_4_gn_cifar100.safetensors")
images, labels = torch.rand(2, 3, 32, 32), torch.arange(2)
