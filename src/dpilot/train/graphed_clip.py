"""A clipping rule as a function of norms and state, replayed where its kernels are faster than their launches."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, final

import torch
from torch import Tensor

from dpilot.clipping import Clipping, State
from dpilot.engine.replay import capture
from dpilot.engine.replay.capture import Replayable
from dpilot.errors import DpilotError

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
