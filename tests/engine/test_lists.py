"""Python values of samples beside tensors: no engine can tell whose they are, so they are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.errors import InvalidInput


class Scaled(nn.Module):
    """Scaled by the largest of the values beside the samples: 1 sample in 3 moves all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)

    def forward(self, x: Tensor, values: Any) -> Tensor:
        return self.a(x) * max(map(float, values))


def losses(out: Tensor, y: Tensor) -> Tensor:
    return (out.sum(1) - y).square()


OF_SAMPLES = {"numbers": [1.0, 2.0, 3.0], "texts": ["1", "2", "3"], "tuple of texts": ("1", "2", "3"),
              "array": np.array([1.0, 2.0, 3.0])}  # fmt: skip
SHARED = {"tuple": (1.0, 2.0, 3.0), "shorter list": [1.0, 2.0], "shorter array": np.array([1.0, 2.0])}


@pytest.mark.parametrize("chosen", ["auto", *engine.names()])
@pytest.mark.parametrize("values", OF_SAMPLES.values(), ids=OF_SAMPLES)
def test_a_value_for_each_sample_is_refused_unless_it_is_in_a_tensor(values: Any, chosen: str) -> None:
    with pytest.raises(InvalidInput, match="expected a tensor with a row a sample"):
        engine.per_sample(Scaled(), losses, ((torch.ones(3, 2), values), torch.ones(3)), engine=chosen)


@pytest.mark.parametrize("values", SHARED.values(), ids=SHARED)
def test_what_all_samples_share_may_be_of_any_type(values: Any) -> None:
    made = engine.per_sample(Scaled(), losses, ((torch.ones(3, 2), values), torch.ones(3)))
    assert torch.equal(made.norms, made.norms[:1].expand(3))
