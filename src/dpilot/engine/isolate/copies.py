"""A chunk that an engine does not keep apart: each sample as a whole chunk of copies of itself.

That a chunk is computed otherwise than others is one sample's doing, and must not move the rest. A sample alone is
rounded otherwise than in a chunk: in half precision by 2^-9 of its gradient, so that some 256 equal samples move by a
bound, and in any precision a unit that stands at the edge of a ReLU, a sign or a rounding turns over, so that every
sample at such an edge moves by its own bound. And it would draw other random numbers. So each is computed by the same
kernels on the same shapes, with the draws of the chunk, in its own row: what it is in any other chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from dpilot.engine.base import NoRule, PerSample, make_handle, trainable, zero_gradients
from dpilot.engine.batch import Chunk, copies_of
from dpilot.engine.generators import GeneratorStates, keep_draws, seeds, sow
from dpilot.engine.isolate import loop
from dpilot.numerics.devices import leave_bounds
from dpilot.numerics.grid import Grid


def run(chunk: Chunk, *, reason: str, draws: GeneratorStates, of_chunk: Callable[..., PerSample]) -> PerSample:
    """Norms by one pass over n copies of each sample, sums by another; ``draws`` is where the chunk began to draw.

    Guarantee:
        A gradient is a function of its sample, of its row and of the draws alone, and equals that of the engine
        ``of_chunk`` in any chunk of n samples that it keeps apart, where kernels compute rows by themselves.

    Edge cases:
        copies that are not kept apart either    the sample alone, as in the loop, with a seed of its own
        weights of exactly 0                     not computed again: they add zeros
    """
    parameters, n = trainable(chunk.model), chunk.n
    draws.go_on()  # what the pass that was thrown away did to the generators is one sample's doing
    own, after = seeds(n), [GeneratorStates.now()]

    def alone(i: int) -> tuple[PerSample, int]:
        """The gradients of a chunk, and the row in which sample i is."""
        draws.go_on()
        try:
            found = of_chunk(replace(chunk, batch=copies_of(chunk.batch, n, i)), reason="")
        except NoRule:
            sow(own[i])
            return loop.run(chunk.sample(i), reason=""), 0
        after[0] = GeneratorStates.now()
        return found, i

    def squares_of(i: int) -> list[Tensor]:
        found, row = alone(i)
        return [square[row] for square in found.squares.values()]

    def sum_with(weights: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, Tensor]:
        totals = zero_gradients({name: parameters[name] for name in weights})
        if grid is not None:
            totals = {name: total.to(torch.promote_types(total.dtype, torch.float64)) for name, total in totals.items()}
        used = torch.stack(list(weights.values())).count_nonzero(0).tolist()
        # on a grid it is summed as it is where its chunk is kept apart: no bound is tightened there
        with keep_draws(), nullcontext() if grid is None else leave_bounds():
            for i in (i for i in range(n) if used[i]):
                found, row = alone(i)
                mine = torch.arange(len(found.norms), device=found.norms.device) == row
                columns = {name: torch.where(mine, w[i], 0.0) for name, w in weights.items()}
                for name, part in found.sum_with(columns, grid).items():
                    totals[name] += part
        return totals

    each = [squares_of(i) for i in range(n)]
    after[0].go_on()  # as after a chunk that is kept apart
    squares = {name: torch.stack(rows) for name, rows in zip(parameters, zip(*each, strict=True), strict=True)}
    return make_handle("loop", reason, squares, sum_with)
