"""One private step: the picture in the architecture, top to bottom.

What is sensitive stays inside ``private_sum``; everything after it was released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.clipping import Clipping, State
from dpilot.engine.replay import capture
from dpilot.engine.replay.capture import Replayable
from dpilot.errors import DpilotError
from dpilot.mechanism import Draws, Noise
from dpilot.private_sum import Clip, PerSampleGradients, private_sum
from dpilot.train.plan import Plan
from dpilot.train.records.spec import ignore_warnings

Gradients = dict[str, Tensor]

_MANY: Final = 4096  # records of a batch, from which on the roundings of a float32 sum would show beside the bound


@dataclass(frozen=True, slots=True)
class StepContext:
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
    clip: GraphedClip | None = None


def private_step(context: StepContext, state: State, chunks: Iterable[Any]) -> State:
    """Clip, sum, release, and move the model along the noisy mean; the clip state of the next step.

    ``chunks`` are the physical pieces of one Poisson batch of the plan; of an empty batch there are none, and the
    step is noise alone. The state used is the one from before the step, for every chunk.

    Guarantee:
        That of ``private_sum``: the receipt is that of plain DP-SGD, whatever the rule. The divisor is the plan's
        expected batch size.
    """
    plan, rule = context.plan, context.clip or context.plan.clipping.clip
    with ignore_warnings():
        released, extras = private_sum(
            (_ChunkGradients(context, context.per_sample(chunk)) for chunk in chunks),
            _widen_extras(rule, context),
            state,
            empty=_NoGradients(context),
            noise_multiplier=plan.noise_multiplier,
            sample_rate=plan.sample_rate,
            receipt=context.receipt,
            noise=context.noise,
            add=_add,
        )
    _move(context, released, frozen=state.frozen)
    return plan.clipping.update(state, extras)


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


@final
@dataclass(frozen=True, slots=True)
class _ChunkGradients(PerSampleGradients):
    """The gradients of one chunk, in the groups of the run, summed in the precision in which they are released."""

    context: StepContext
    gradients: engine.PerSample

    @property
    def norms(self) -> Tensor:
        groups = self.context.groups
        return self.gradients.norms if groups is None else self.gradients.group_norms(groups)

    def weighted_sum(self, weights: Tensor) -> Gradients:
        return _widen(self.context, self.gradients.weighted_sum(weights, self.context.groups))


@final
@dataclass(frozen=True, slots=True)
class _NoGradients(PerSampleGradients):
    """The gradients of no records: their sum is a zero for every trained parameter."""

    context: StepContext

    @property
    def norms(self) -> Tensor:
        first, groups = next(iter(_trained_parameters(self.context).values())).real, self.context.groups
        return first.new_zeros(0) if groups is None else first.new_zeros(0, len(groups))

    def weighted_sum(self, weights: Tensor) -> Gradients:
        del weights  # of nobody
        zeros = {
            name: torch.zeros_like(p, requires_grad=False) for name, p in _trained_parameters(self.context).items()
        }
        return _widen(self.context, zeros)


def _widen(context: StepContext, gradients: Gradients) -> Gradients:
    """Sums in the precision in which they are added up and released: float32 or better.

    A batch that is expected to be large is summed, and released, in float64: in float32 each addition rounds by the
    length of the sum, and what one record changes in those roundings grows with the batch. A complex gradient is
    released as its real and imaginary parts: they are the coordinates that the norm and the noise are about.
    """
    return {name: _real(gradients[name]).to(_sum_type(context, p)) for name, p in _trained_parameters(context).items()}


def _widen_extras(rule: Clip, context: StepContext) -> Clip:
    """The rule, its extras in the precision of the sums."""
    kind = _sum_type(context, next(iter(_trained_parameters(context).values())))

    def clip(norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        weights, extras = rule(norms, state)
        return weights, extras.to(kind)

    return clip


def _add(total: Gradients, more: Gradients, *, own: bool) -> Gradients:
    """One chunk's sums and another's; in place where the total is this step's ``own`` memory, not the engine's."""
    left, right = list(total.values()), list(more.values())
    if own:
        torch._foreach_add_(left, right)
        return total
    return dict(zip(total, torch._foreach_add(left, right), strict=True))


def _trained_parameters(context: StepContext) -> dict[str, nn.Parameter]:
    return {name: p for name, p in context.model.named_parameters() if p.requires_grad}


def _move(context: StepContext, released: Gradients, *, frozen: bool) -> None:
    """Hand the noisy mean to the optimizer. While a rule only measures, the optimizer does not move."""
    means = torch._foreach_div(list(released.values()), context.plan.expected_batch_size)
    for parameter, mean in zip(_trained_parameters(context).values(), means, strict=True):
        parameter.grad = (torch.view_as_complex(mean) if parameter.is_complex() else mean).to(parameter.dtype)
    if not frozen:
        context.optimizer.step()
    context.optimizer.zero_grad(set_to_none=True)


def _sum_type(context: StepContext, parameter: Tensor) -> torch.dtype:
    double = parameter.dtype in (torch.float64, torch.complex128)
    large = context.plan.expected_batch_size > _MANY and parameter.device.type != "mps"  # which has no float64
    return torch.float64 if double or large else torch.float32


def _real(gradient: Tensor) -> Tensor:
    """The gradient as real numbers: of a complex one, its real and imaginary parts along a last axis of two."""
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient


_FORMS: Final = 4  # of norms and states, that are replayed: a rule has two, measuring and clipping
_CHANGING: Final = {"step", "measuring", "inner"}


@final
class GraphedClip:
    """``rule.clip`` for chunks of at most ``rows`` records, as a function of norms and state; on a GPU it is replayed.

    Norms and the tensors of the state are copied into place, weights and extras out of it; what was captured is
    the rule on made-up norms.

    Guarantee:
        The same weights and extras as ``rule.clip``: rows beyond the chunk are their own, and nobody reads them.
        Whether a chunk is replayed depends on the rule, shapes, types and the public state.

    Edge cases:
        not on the current GPU, no record, more than ``rows``     launched as usual
        a rule of yours, or around one                            launched: a graph would forget what it asks or draws
        a state of another form, such as one that only measures   a graph of its own; beyond four, launched

    Example:
        >>> from dpilot import clipping
        >>> rule = clipping.get("constant", threshold=1.0)
        >>> state = rule.init(noise_multiplier=1.0, expected_batch_size=4, dimension=10)
        >>> GraphedClip(rule, rows=4)(torch.tensor([0.5, 2.0]), state)[0]
        tensor([1.0000, 0.5000])
    """

    def __init__(self, rule: Clipping, rows: int) -> None:
        self._rule, self._rows, self._own = rule, rows, _own(rule)
        self._forms: dict[Any, _ClipGraph | None] = {}

    def __call__(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Weights (n,) and extras (n, k), or those of groups."""
        state = state.to(norms.device)
        found = self._find_graph(norms, state) if self._fits(norms) else None
        return self._rule.clip(norms, state) if found is None else found.replay(norms, state)

    def _fits(self, norms: Tensor) -> bool:
        current = not norms.is_cuda or norms.device.index == torch.cuda.current_device()
        return self._own and capture.can_replay(norms.device) and current and 0 < len(norms) <= self._rows

    def _find_graph(self, norms: Tensor, state: State) -> _ClipGraph | None:
        form = norms.shape[1:], norms.dtype, norms.device, _form(state)
        if form not in self._forms and len(self._forms) < _FORMS:
            self._forms[form] = self._capture(norms, state)
        return self._forms.get(form)

    def _capture(self, norms: Tensor, state: State) -> _ClipGraph | None:
        """The rule's graph on norms of 1, or None if there is none."""
        with torch.inference_mode(False), torch.no_grad():
            own = _copy(state)
            static = torch.ones((self._rows, *norms.shape[1:]), dtype=norms.dtype, device=norms.device)
            try:
                with capture.on_its_stream():
                    return _ClipGraph(
                        static, _tensors(own), capture.record(lambda: self._rule.clip(static, own), norms.device)
                    )
            except DpilotError:
                raise
            except Exception:  # whatever cannot be captured; norms were made up, so it tells of no record
                return None


@dataclass(frozen=True, slots=True)
class _ClipGraph:
    """Norms and tensors of a state in their places, and the graph that reads them."""

    norms: Tensor
    state: list[Tensor]
    graph: Replayable[tuple[Tensor, Tensor]]

    def replay(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        n = len(norms)
        self.norms[:n].copy_(norms.detach())
        torch._foreach_copy_(self.state, _tensors(state))
        weights, extras = self.graph.replay()
        return weights[:n].clone(), extras[:n].clone()


def _own(rule: Any) -> bool:
    """Whether a rule, and any rule inside it, is the library's: a function of norms and state, and of nothing else."""
    if type(rule).__module__.partition(".")[0] != __name__.partition(".")[0]:
        return False
    values = [getattr(rule, field.name) for field in fields(rule)]
    return all(_own(value) for value in values if hasattr(value, "clip"))


def _form(state: State) -> Any:
    """What a graph takes for granted of a state: all but the values of its tensors and how many steps were taken."""
    values = [(f.name, getattr(state, f.name)) for f in fields(state) if f.name not in _CHANGING]
    known = tuple((name, (v.shape, v.dtype) if isinstance(v, Tensor) else v) for name, v in values)
    return known, state.frozen, None if state.inner is None else _form(state.inner)


def _tensors(state: State) -> list[Tensor]:
    inner = [] if state.inner is None else _tensors(state.inner)
    return [state.threshold, state.bound, *([] if state.memory is None else [state.memory]), *inner]


def _copy(state: State) -> State:
    """The same state in memory of its own."""
    return replace(
        state,
        threshold=state.threshold.clone(),
        bound=state.bound.clone(),
        memory=None if state.memory is None else state.memory.clone(),
        inner=None if state.inner is None else _copy(state.inner),
    )
