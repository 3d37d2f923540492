"""A time limit as a number of steps, found on made-up records before a run is planned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.train import dry_run
from dpilot.train.gradients import per_sample_of
from dpilot.train.options import Options
from dpilot.train.randomness import fork_generators


def steps_within(
    seconds: float,
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    example: Any,
    *,
    batch_size: float,
    chunk_size: int = 64,
    engine: str = "auto",
    per_batch: bool = False,
    amp: bool = False,
) -> int:
    """How many steps of an expected ``batch_size`` fit in ``seconds``, by timing made-up records.

    ``example`` is a public batch that shows the form of the records. Use the number to plan with, as in
    ``Plan.calibrate(..., steps=steps_within(600, model, loss_fn, example, batch_size=512))``.

    Guarantee:
        No record is read. The steps are fixed from then on: a slower machine takes longer, and stops no earlier.

    Example:
        >>> import torch
        >>> example = torch.zeros(1, 2), torch.zeros(1).long()
        >>> steps_within(1e-9, nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), example, batch_size=8)
        1
    """
    limit, expected = _validate.positive(seconds=seconds), _validate.positive(batch_size=batch_size)
    options = Options(engine=engine, per_batch=per_batch, chunk_size=chunk_size, amp=amp)
    per_sample, chunk = per_sample_of(model, loss_fn, options), min(chunk_size, math.ceil(expected))
    with fork_generators():
        dry_run.run_synthetic(per_sample, example, per_batch=per_batch, public=True)
        each = dry_run.seconds_a_chunk(per_sample, example, chunk, per_batch)
    if each is None:
        raise InvalidInput(f"chunk_size is {chunk_size}: made-up records in such chunks do not compute. Lower it.")
    return max(1, int(limit * chunk / (each * expected)))
