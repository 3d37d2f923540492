"""Runs that would take their steps and learn nothing: found on made-up records and declared numbers, before paying.

Nothing here reads a record. What is found is said, not refused: a person may have reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from dpilot.engine.base import trainable
from dpilot.privacy.calibrate import noise_multiplier
from dpilot.train.plan import Plan
from dpilot.train.step import count_trained

__all__ = ["TRIED", "Outlook", "silent_failures", "still_parameters", "what_moves"]

TRIED: Final = 4
"""Made-up records on which gradients are looked at."""
_TRIES: Final = 2
_JITTER: Final = 0.1
_SHOWN: Final = 5
_HOPELESS: Final = 3.0  # noise beside the largest signal of a whole run: docs/silent_failures.md has the measurement
_STANDS: Final = 1e-4  # of the weights' length


@dataclass(frozen=True, slots=True)
class Outlook:
    """How a run's noise compares with the most that its signal can be, by declared numbers alone.

    ::

        noise  of the whole run    sigma C sqrt(d T) / B         in all d coordinates
        signal of the whole run    at most C T                   if all gradients point one way, unclipped
        ratio = sigma sqrt(d) / (B sqrt(T))

    ``size``, ``epsilon`` and ``parameters`` are what would bring it to 1, each alone (None where none does).

    Example:
        >>> from dpilot import Budget
        >>> plan = Plan.calibrate(Budget(1.0, 1e-5), size=500, batch_size=500, steps=10, clipping="constant")
        >>> outlook = Outlook.of(plan, 1_000_000)
        >>> outlook.hopeless, round(outlook.ratio, 1), outlook.size, outlook.parameters
        (True, 7.5, 3731, 17962)
    """

    ratio: float
    parameters: int
    size: int
    epsilon: float | None

    @classmethod
    def of(cls, plan: Plan, dimension: int) -> Outlook:
        """That of a plan for a model of ``dimension`` trained numbers."""
        ratio = _ratio(plan, plan.noise_multiplier, dimension)
        fewer = max(1, math.floor(dimension / ratio**2))
        return cls(ratio, fewer, math.ceil(plan.size * ratio), _enough_epsilon(plan, dimension) if ratio > 1 else None)

    @property
    def hopeless(self) -> bool:
        return self.ratio > _HOPELESS

    def sentence(self) -> str:
        """What is said of a hopeless run."""
        epsilon = "" if self.epsilon is None else f", epsilon {self.epsilon:.3g}"
        return (
            f"noise will be {self.ratio:.1f} times the most that the gradients of the whole run can add up to: it will "
            f"hardly learn. About {self.size:,} records at the same rate{epsilon}, or {self.parameters:,} trained "
            "numbers (LoRA, a head alone) would make them equal."
        )


def silent_failures(
    model: nn.Module,
    squares: Callable[[], Mapping[str, Tensor]],
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    bound: float,
) -> list[str]:
    """What would go wrong in silence, one sentence each. ``squares`` gives squared norms of made-up records' gradients.

    ``bound`` is that of the first step: the most that one record adds.
    """
    trained = trainable(model)
    found = list(what_moves(model, still_parameters(model, squares)))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if left := [name for name, p in trained.items() if id(p) not in held]:
        found.append(f"the optimizer does not hold {_names(left)}: trained, paid for, and never moved. Make it after.")
    if said := _too_slow(trained, optimizer, plan, bound):
        found.append(said)
    outlook = Outlook.of(plan, count_trained(model))
    return [*found, outlook.sentence()] if outlook.hopeless else found


def still_parameters(model: nn.Module, squares: Callable[[], Mapping[str, Tensor]]) -> list[str]:
    """Trained parameters whose gradient is 0 on made-up records, also where all weights are moved a little.

    Weights that begin at 0, such as LoRA's, hold back the gradients of others: at weights nearby they do not.
    """
    still: set[str] = set(trainable(model))
    for _ in range(_TRIES):
        with _nearby(model):
            still &= {name for name, each in squares().items() if not bool((each > 0).any())}
    return [name for name in trainable(model) if name in still]


def what_moves(model: nn.Module, still: list[str]) -> Iterator[str]:
    """Sentences about parameters that cannot move."""
    trained = trainable(model)
    if not still:
        return
    adapters = [name for name in still if "lora_" in name or "modules_to_save" in name]
    if len(still) == len(trained):
        yield "the loss does not change with any trained parameter: it ignores the model's output, or it was detached."
    elif hasattr(model, "peft_config") and adapters:
        yield f"the adapters {_names(adapters)} are detached: no gradient reaches them. Is peft's wrapped model called?"
    else:
        yield f"{_names(still)} cannot move: no gradient reaches them on made-up records. Freeze them, or use them."


@contextmanager
def _nearby(model: nn.Module) -> Iterator[None]:
    """The model with its trained weights moved a little, by a generator of its own; then as it was, bit for bit."""
    kept = {name: p.detach().clone() for name, p in trainable(model).items()}
    drawn = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for p in trainable(model).values():
                scale = _JITTER * max(float(p.detach().abs().float().mean()), 0.1)
                kind = torch.complex64 if p.is_complex() else torch.float32
                p.add_((scale * torch.randn(p.shape, generator=drawn, dtype=kind)).to(p))
        yield
    finally:
        with torch.no_grad():
            for name, p in trainable(model).items():
                p.copy_(kept[name])


def _too_slow(trained: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, plan: Plan, bound: float) -> str | None:
    """A step size with which the weights would end about where they began."""
    length = math.sqrt(sum(float(p.detach().abs().float().square().sum()) for p in trained.values()))
    count = sum(p.numel() for p in trained.values())
    rate = max((float(group["lr"]) for group in optimizer.param_groups if "lr" in group), default=math.inf)
    scaled = "adam" in type(optimizer).__name__.lower() or "rms" in type(optimizer).__name__.lower()
    step = rate * (math.sqrt(count) if scaled else bound)  # of a signal that always points one way
    if length == 0 or step * plan.steps >= _STANDS * length:
        return None
    return (
        f"the learning rate is {rate:g}: all {plan.steps} steps together move the weights by at most "
        f"{step * plan.steps / length:.1e} of their length. Raise it; with gradients of length {bound:g}, "
        f"{rate * 0.1 * length / max(step * plan.steps, 1e-300):.2g} would move them by a tenth."
    )


def _ratio(plan: Plan, sigma: float, dimension: int) -> float:
    return sigma * math.sqrt(dimension) / (plan.expected_batch_size * math.sqrt(plan.steps))


def _enough_epsilon(plan: Plan, dimension: int) -> float | None:
    """The least epsilon, of a few tried, at which noise and the largest signal are equal."""
    epsilon = plan.budget.epsilon
    for _ in range(6):
        epsilon *= 2
        budget = replace(plan.budget, epsilon=epsilon)
        if _ratio(plan, noise_multiplier(budget, sample_rate=plan.sample_rate, steps=plan.steps), dimension) <= 1:
            return epsilon
    return None


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
