"""A short run of somebody's own model on made-up records, for a replay: does the model obey the bound?"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget
from dpilot.train.plan import Plan
from dpilot.train.trainer import Trainer

__all__ = ["model_data", "train_made_up"]

_RECORDS, _STEPS = 12, 2


def model_data(model: nn.Module, sample: Tensor, classes: int | None = None) -> tuple[Any, ...]:
    """Made-up records (inputs, classes) that ``model`` takes, in the form of one ``sample``, as arrays."""
    noise = np.random.default_rng(0)
    size = (_RECORDS, *sample.shape[1:])
    whole = sample.dtype == torch.long
    inputs = noise.integers(0, 2, size) if whole else noise.normal(size=size).astype(np.float32)
    with torch.no_grad():
        output = model.eval()(torch.from_numpy(inputs[:1]))
    width = classes or (output.shape[-1] if isinstance(output, torch.Tensor) and output.dim() == 2 else 0)
    if width < 1:
        raise InvalidInput("the model's output is no row of class scores: expected that, or a function with --data.")
    return inputs, noise.integers(0, width, _RECORDS)


def train_made_up(make: Callable[[], nn.Module], *, clipping: str) -> Callable[[Any], Any]:
    """A function of made-up records that trains a new model on them for two full-batch steps.

    Full batches and one chunk are the sharpest case: every record meets every other one in each operation.
    """

    def run(data: Any) -> Any:
        torch.manual_seed(0)
        model = deepcopy(make())
        plan = Plan.calibrate(Budget(1.0, 1e-5), size=_RECORDS, batch_size=_RECORDS, steps=_STEPS, clipping=clipping)
        inputs, labels = (torch.from_numpy(np.asarray(part)) for part in data)
        loss = nn.CrossEntropyLoss(reduction="none")
        done = Trainer(model, loss, plan, lr=0.1).fit(TensorDataset(inputs, labels))
        return done.model.state_dict(), done.thresholds

    return run
