"""What a model says of protected records, each of them apart: for scores, which count records one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.engine.generators import GeneratorStates
from dpilot.engine.state import generators_of, preserve_state, run_eagerly
from dpilot.engine.trace.watch import Pass, Verdict

Call = Callable[[nn.Module, Any], Tensor]
"""How a model is called with inputs; it gives a row for each sample."""


@torch.no_grad()
def outputs(call: Call, model: nn.Module, inputs: Any, n: int) -> Tensor:
    """The outputs of n samples, from one pass if they stay apart in it; else each from a pass over copies of itself.

    Guarantee:
        Row i is a function of sample i, of its place, of n and of what is shared. What the model remembers is undone,
        and generators, its own among them, stand where they stood: all blocks of samples meet the same draws, so that
        it does not matter in which of them a sample is.
    """
    before = GeneratorStates.now(generators_of(call, model))

    def row(i: int) -> Tensor:
        before.go_on()
        with preserve_state(model), run_eagerly():
            return call(model, batches.copies_of(inputs, n, i))[i]

    try:
        made, verdict = _judge(call, model, inputs, n)
        return made if verdict.kind == "apart" else torch.stack([row(i) for i in range(n)])
    finally:
        before.go_on()


@torch.no_grad()
def judge_outputs(call: Call, model: nn.Module, inputs: Any, n: int) -> Verdict:
    """Whether n made-up samples stay apart in what the model says of them."""
    before = GeneratorStates.now(generators_of(call, model))
    verdict = _judge(call, model, inputs, n)[1]
    before.go_on()
    return verdict


def _judge(call: Call, model: nn.Module, inputs: Any, n: int) -> tuple[Tensor, Verdict]:
    with Pass.over(batches.Chunk(model, partial(call, model), inputs, n)) as watched:
        with watched.tracker, watched.exits:
            made = call(model, inputs)
        place, verdict = watched.tracker.place(made), watched.verdict(made)
        first = place.kind == "axis" and place.axis == 0 and place.block == 1 and made.shape[:1] == (n,)
        return made, verdict if first else Verdict("unknown" if verdict.kind == "apart" else verdict.kind, verdict.why)
