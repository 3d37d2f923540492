"""Array types, as signatures name them, and what tells tensors from arrays."""

import sys

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a torch tensor; a process that never loaded torch has none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
