"""One private step: the picture in the architecture, top to bottom.

Everything above the release is sensitive and local to ``private_step``; everything below it was released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.clipping import State
from dpilot.mechanism import Draws, Noise, release
from dpilot.train.clips import Clips
from dpilot.train.form import silent
from dpilot.train.plan import Plan

Gradients = dict[str, Tensor]

_MANY: Final = 4096  # records of a batch, from which on the roundings of a float32 sum would show beside the bound


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same through a run: the plan, the model, how gradients are had, and what pays and adds noise.

    ``clip`` is the plan's own rule where that is replayed.
    """

    plan: Plan
    model: nn.Module
    per_sample: Callable[[Any], engine.PerSample]
    optimizer: torch.optim.Optimizer
    noise: Noise
    receipt: Draws
    groups: Sequence[Sequence[str]] | None = None
    clip: Clips | None = None


def private_step(setting: Setting, state: State, chunks: Iterable[Any]) -> State:
    """Clip, sum, release, and move the model along the noisy mean; the clip state of the next step.

    ``chunks`` are the physical pieces of one Poisson batch of the plan; of an empty batch there are none, and the
    step is noise alone. The state used is the one from before the step, for every chunk.

    Guarantee:
        The released vector is [sum of w_i g_i | sum of x_i]; a record moves it by at most ``state.bound``, and the
        receipt is that of plain DP-SGD, whatever the rule. The divisor is the plan's expected batch size.
    """
    bound = float(state.bound)  # read while nothing of this step is under way: later, the processor would wait for it
    plan, total, clip = setting.plan, None, setting.clip or setting.plan.clipping.clip
    with silent():
        for place, chunk in enumerate(chunks):
            gradients = setting.per_sample(chunk)
            weights, extras = clip(_norms(setting, gradients), state)
            sums = _widened(setting, gradients.weighted_sum(weights, setting.groups), extras.sum(0))
            total = sums if total is None else _added(total, sums, own=place > 1)

    released, heard = release(  # the door
        _zeros(setting, state) if total is None else total,
        bound=bound,
        noise_multiplier=plan.noise_multiplier,
        sample_rate=plan.sample_rate,
        receipt=setting.receipt,
        noise=setting.noise,
    )

    _move(setting, released, frozen=state.frozen)
    return plan.clipping.update(state, heard)


def initial_state(plan: Plan, model: nn.Module, device: torch.device | str | None = None) -> State:
    """The clip state before the first step, from the plan and the number of trained real numbers."""
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    dimension = sum(parameter.numel() * (2 if parameter.is_complex() else 1) for parameter in trained)
    return plan.clipping.init(
        noise_multiplier=plan.noise_multiplier,
        expected_batch_size=plan.expected_batch_size,
        dimension=dimension,
        steps=plan.steps,
        device=device,
    )


def _norms(setting: Setting, gradients: engine.PerSample) -> Tensor:
    return gradients.norms if setting.groups is None else gradients.group_norms(setting.groups)


def _zeros(setting: Setting, state: State) -> tuple[Gradients, Tensor]:
    """The sum over no records: a zero for every trained parameter and every extra coordinate."""
    zeros = {name: torch.zeros_like(p, requires_grad=False) for name, p in _trained(setting).items()}
    first = next(iter(zeros.values())).real
    none = first.new_zeros(0) if setting.groups is None else first.new_zeros(0, len(setting.groups))
    return _widened(setting, zeros, setting.plan.clipping.clip(none, state)[1].sum(0))


def _widened(setting: Setting, gradients: Gradients, extras: Tensor) -> tuple[Gradients, Tensor]:
    """Sums in the precision in which they are added up and released: float32 or better.

    A batch that is expected to be large is summed, and released, in float64: in float32 each addition rounds by the
    length of the sum, and what one record changes in those roundings grows with the batch. A complex gradient is
    released as its real and imaginary parts: they are the coordinates that the norm and the noise are about.
    """
    many = setting.plan.expected_batch_size > _MANY
    sums = {name: _real(gradients[name]).to(_wide(p, many)) for name, p in _trained(setting).items()}
    return sums, extras.to(next(iter(sums.values())).dtype)


def _added(total: tuple[Gradients, Tensor], more: tuple[Gradients, Tensor], *, own: bool) -> tuple[Gradients, Tensor]:
    """One chunk's sums and another's; in place where the total is this step's ``own`` memory, not the engine's."""
    left, right = list(total[0].values()), list(more[0].values())
    if not own:
        left = list(torch._foreach_add(left, right))
    else:
        torch._foreach_add_(left, right)
    return dict(zip(total[0], left, strict=True)), total[1] + more[1]


def _trained(setting: Setting) -> dict[str, nn.Parameter]:
    return {name: p for name, p in setting.model.named_parameters() if p.requires_grad}


def _move(setting: Setting, released: Gradients, *, frozen: bool) -> None:
    """Hand the noisy mean to the optimizer. While a rule only measures, the optimizer does not move."""
    means = torch._foreach_div(list(released.values()), setting.plan.expected_batch_size)
    for parameter, mean in zip(_trained(setting).values(), means, strict=True):
        parameter.grad = (torch.view_as_complex(mean) if parameter.is_complex() else mean).to(parameter.dtype)
    if not frozen:
        setting.optimizer.step()
    setting.optimizer.zero_grad(set_to_none=True)


def _wide(parameter: Tensor, many: bool) -> torch.dtype:
    has_double = parameter.device.type != "mps"
    double = parameter.dtype in (torch.float64, torch.complex128)
    return torch.float64 if double or (many and has_double) else torch.float32


def _real(gradient: Tensor) -> Tensor:
    """The gradient as real numbers: of a complex one, its real and imaginary parts along a last axis of two."""
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
