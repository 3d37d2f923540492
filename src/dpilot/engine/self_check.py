"""A numeric check of a model on made-up samples: nothing private is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine import api
from dpilot.engine import batch as batches
from dpilot.engine.base import LossFunction, PerSample, Problem
from dpilot.engine.batch import Chunk
from dpilot.engine.check import check
from dpilot.engine.isolate import loop
from dpilot.engine.made_up import carefully, evaluation_mode, far, is_random, leave_as_found, tolerance
from dpilot.errors import DpilotError

SAMPLES = 4


def self_check(model: nn.Module, loss_fn: LossFunction, batch: Any, *, per_batch: bool = False) -> list[Problem]:
    """Every numeric problem found with samples of the batch's shapes and none of its values; [] means ready.

    The engine that "auto" picks is compared with one sample at a time (norms, sums); then the last sample is changed,
    and made not finite, and no other sample's gradient may move. Random layers are switched off where they would hide
    the answer. The model, its buffers and the random generators are left as they were.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> class Centred(nn.Linear):
        ...     def forward(self, x):
        ...         return super().forward(x - x.mean(0))
        >>> loss = nn.CrossEntropyLoss(reduction="none")
        >>> shapes = (torch.zeros(1, 3), torch.zeros(1, dtype=torch.long))
        >>> self_check(nn.Linear(3, 2), loss, shapes)
        []
        >>> [problem.where for problem in self_check(Centred(3, 2), loss, shapes)]
        ['model']
    """
    if problems := check(model):
        return problems
    made_up = Chunk(model, loss_fn, batch, batches.size(batch, per_batch), per_batch).made_up(SAMPLES, seed=1)
    with leave_as_found(model, loss_fn):
        try:
            with evaluation_mode(model, carefully(made_up, is_random)):
                return find_problems(made_up)
        except DpilotError as error:
            return [Problem("model", str(error), "See the remedy above.")]
        except Exception as error:  # whatever a user's model does with made-up samples
            remedy = "Give a batch whose shapes and types the model accepts with numbers 0 and 1."
            return [Problem("model", f"fails on made-up samples: {type(error).__name__}: {error}", remedy)]


def find_problems(made_up: Chunk) -> list[Problem]:
    """Problems of sums and norms, of neighbours and of samples that are not finite."""

    def run(chunk: Chunk) -> PerSample:
        return api.per_sample(chunk.model, chunk.loss_fn, chunk.batch, per_batch=chunk.per_batch)

    ours = carefully(made_up, run)
    oracle = loop.run(made_up, reason="")
    allowed = tolerance(made_up.model)
    problems = wrong_sums(ours, oracle, allowed) + wrong_norms(ours, oracle, allowed)
    changes: dict[str, Callable[[Tensor], Tensor]] = {"changing": other, "making not finite": not_finite}
    for name, change in changes.items():
        if has_moved(ours, carefully(last_changed(made_up, change), run), allowed):
            what = f"{name} one made-up sample moves the gradients of others."
            problems.append(
                Problem("model", what, "Remove what mixes samples, or keep samples on the first dimension.")
            )
    return problems


def wrong_sums(ours: PerSample, oracle: PerSample, allowed: float) -> list[Problem]:
    """Parameters whose weighted sum differs from the oracle's."""
    weights = torch.linspace(0.5, 2.0, SAMPLES, device=ours.norms.device, dtype=ours.norms.dtype)
    left, right = ours.weighted_sum(weights), oracle.weighted_sum(weights)
    what = f"its weighted sum under {ours.engine} differs from one sample at a time."
    remedy = 'Use engine="loop" and report the layer.'
    return [Problem(name, what, remedy) for name in far(left, right, allowed)]


def wrong_norms(ours: PerSample, oracle: PerSample, allowed: float) -> list[Problem]:
    """Norms below the oracle's, or far above."""
    low = ours.norms < oracle.norms * (1 - allowed)
    high = ours.norms > oracle.norms * (1 + max(allowed, 0.02)) + 1e-12
    if not bool((low | high).any()):
        return []
    return [Problem("norms", f"{ours.engine} and one sample at a time disagree.", 'Use engine="loop" and report it.')]


def has_moved(before: PerSample, after: PerSample, allowed: float) -> bool:
    """Whether the gradients of all but the last sample changed."""
    weights = torch.ones_like(before.norms)
    weights[-1] = 0.0
    return bool(far(after.weighted_sum(weights), before.weighted_sum(weights), allowed))


def last_changed(made_up: Chunk, change: Callable[[Tensor], Tensor]) -> Chunk:
    """The same with the last sample changed."""
    return made_up.changed(lambda t: torch.cat([t[:-1], change(t[-1:])]))


def other(t: Tensor) -> Tensor:
    """Another valid sample."""
    return t if t.dtype == torch.bool else (2.5 - 3 * t if t.is_floating_point() else 1 - t)


def not_finite(t: Tensor) -> Tensor:
    """A sample that is not a number, where numbers can be that."""
    return torch.full_like(t, math.nan) if t.is_floating_point() else t
