import torch

norms, released_extras_sum = torch.rand(8), torch.zeros(1)
