"""Watching a forward pass: every operation in which a trained weight meets the samples leaves a tap.

The recorder is a torch function mode: it sees each torch call of the forward pass with its arguments. So it needs no
hooks on the model, catches weights used from anywhere (tied, functional, parametrised, several times) and leaves
nothing behind. Three kinds of tensors matter:

* weights: trained parameters, and whatever is computed from them alone (their graph to the parameters is kept);
* samples: whatever depends on the batch;
* the rest: constants.

A call with weights and no samples gives a weight. A call with both goes to its rule. Everything else runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpilot.engine import precision
from dpilot.engine.base import NoRule
from dpilot.engine.layers import RULES
from dpilot.engine.layers.base import Dense, MakeUse, Use, per_sample_rows
from dpilot.engine.layers.broadcast import SHAPE_ONLY, repeated
from dpilot.engine.layers.fallback import fallback
from dpilot.engine.layers.gram import Shared
from dpilot.engine.tap import Tap

MARK = "_dpilot_sample"
TRANSPOSES = {"t": 1, "T": 1, "mT": 1, "transpose": 3, "swapaxes": 3}
"""Transposes of a matrix, and how many arguments they have."""


@dataclass(frozen=True, slots=True)
class Found:
    """A use of a weight. ``by_row``: the weight has the samples on its first dimension, row i serves sample i alone."""

    weight: Tensor
    use: Use
    by_row: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """How a weight was computed from other weights: enough to undo transposes, repeats and look-ups cheaply."""

    operation: str
    args: tuple[Any, ...]


class Recorder(TorchFunctionMode):
    """One forward pass and its backward passes; ``receive`` is called with every use the backward pass finds."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.parameters = tuple(parameters.values())
        self.names = {id(p): name for name, p in parameters.items()}
        self.weights: dict[int, Tensor] = {id(p): p for p in self.parameters}  # holds them, so that ids stay theirs
        self.origins: dict[int, Origin] = {}
        self.expected: dict[int, int] = {}
        self.overwritten: list[Tensor] = []  # constants that samples were written into: unmarked after the pass
        self.hidden = False  # weights met samples without a graph: a reentrant checkpoint, perhaps
        self.receive: Callable[[Found], None] | None = None
        self._latest: tuple[Tensor, int, Tensor, Shared] | None = None
        device = next((p.device for p in self.parameters), torch.device("cpu"))
        self._token = torch.zeros((), device=device, requires_grad=True)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        weighted, sampled = self._contents(args)
        if kwargs:
            more = self._contents(kwargs.values())
            weighted, sampled = weighted or more[0], sampled or more[1]
        if not weighted:
            return self._mark(args, func(*args, **kwargs)) if sampled else func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if not sampled or (name in SHAPE_ONLY and id(args[0]) in self.weights):
            return self._derive(name, func, args, kwargs)
        met = func(*args, **kwargs) if name in SHAPE_ONLY else self._meet(name, func, args, kwargs)
        return self._mark(args, met)

    def _contents(self, values: Iterable[Any]) -> tuple[bool, bool]:
        """Whether weights, and whether samples, are among the arguments."""
        weighted = sampled = False
        for value in values:
            if isinstance(value, Tensor):
                if id(value) in self.weights:
                    weighted = True
                elif not sampled and depends_on_samples(value):
                    sampled = True
            elif isinstance(value, (tuple, list)):
                inner = self._contents(value)
                weighted, sampled = weighted or inner[0], sampled or inner[1]
        return weighted, sampled

    def _mark(self, args: Any, out: Any) -> Any:
        """Remember that the result depends on the samples, where its graph does not say so already."""
        if isinstance(out, Tensor):
            if not out.requires_grad and not hasattr(out, MARK):
                setattr(out, MARK, True)
                if args and out is args[0]:
                    self.overwritten.append(out)
        elif isinstance(out, (tuple, list)):
            for value in out:
                self._mark((), value)
        elif out is None and args and isinstance(args[0], Tensor):
            self._mark(args, args[0])  # __setitem__ wrote samples into a constant
        return out

    def derive(self, operation: Callable[..., Any], *args: Any) -> Any:
        return self._derive(getattr(operation, "__name__", ""), operation, args, {})

    def _derive(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation on weights alone: its result is a weight, with autograd's own graph to the parameters."""
        out = func(*args, **kwargs)
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor) and tensor.requires_grad and id(tensor) not in self.weights:
                self.weights[id(tensor)] = tensor
                operation = getattr(getattr(func, "__self__", None), "__name__", name) if name == "__get__" else name
                self.origins[id(tensor)] = Origin(operation, tuple(args))
        return out

    def _meet(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation of weights and samples: its rule, else vmap of that operation."""
        known = RULES.get(name)
        out = NotImplemented if known is None else known(self, func, *args, **kwargs)
        return fallback(self, func, args, kwargs) if out is NotImplemented else out

    def is_weight(self, value: object) -> bool:
        return id(value) in self.weights

    def is_sample(self, value: object) -> bool:
        return isinstance(value, Tensor) and id(value) not in self.weights and depends_on_samples(value)

    def tap(
        self, out: Tensor, saved: Sequence[Tensor], uses: Sequence[tuple[Tensor, MakeUse]], *, by_row: bool = False,
        fresh: bool = True,
    ) -> Tensor:  # fmt: skip
        if not uses or not torch.is_grad_enabled():
            self.hidden = self.hidden or bool(uses)
            return out
        shape = out.shape
        for weight, _ in uses:
            self.expected[id(weight)] = self.expected.get(id(weight), 0) + 1

        def sink(kept: tuple[Tensor, ...], gradient: Tensor) -> None:
            if self.receive is None:
                raise NoRule('the model differentiates inside its forward pass. Use engine="loop".')
            with torch._C.DisableTorchFunction():  # a rule's own work is not watched
                gradient = gradient if gradient.shape == shape else gradient.reshape(shape)
                for weight, make in uses:
                    self.receive(Found(weight, make(kept, gradient), by_row))

        def tapped(tensor: Tensor) -> Tensor:
            result: Tensor = Tap.apply(tensor, self._token, sink, fresh, *saved)  # type: ignore[no-untyped-call]
            return result

        return through_base(out, tapped) if fresh else tapped(out)

    def spread(self, weight: Tensor, dims: int, lead: int) -> Tensor:
        values = weight.data  # its own version counter: marking the view as changed must not touch the parameter's
        n = self.batch_size
        if weight.dim() == dims and weight.shape[0] == lead > 1:
            return self.tap(values, (), [(weight, lambda _, e: Dense(per_sample_rows(e, n)))], by_row=True, fresh=False)

        def make(_: tuple[Tensor, ...], e: Tensor) -> Use:
            return Dense(per_sample_rows(e, n).sum(1).view(n, *weight.shape))

        return self.tap(repeated(values, dims, lead), (), [(weight, make)], fresh=False)

    def input_of_several(self, x: Tensor, cast: Tensor) -> tuple[Tensor, Shared]:
        latest = self._latest
        if latest is None or latest[0] is not x or latest[1] != x._version or latest[2].dtype != cast.dtype:
            latest = self._latest = (x, x._version, cast.detach(), Shared())
        latest[3].users += 1
        return latest[2], latest[3]

    def transposed_from(self, weight: Tensor) -> Tensor | None:
        origin = self.origins.get(id(weight))
        if origin is None or weight.dim() != 2 or len(origin.args) != TRANSPOSES.get(origin.operation):
            return None
        base: Tensor = origin.args[0]
        turned = len(origin.args) == 1 or (origin.args[1] - origin.args[2]) % 2 == 1
        return base if turned and base.dim() == 2 else None

    def backward(
        self, losses: Tensor, receive: Callable[[Found], None], *, retain: bool = False, scale: Tensor | None = None
    ) -> None:
        """One backward pass from sum(scale * losses), recorder on (checkpoints run forward again); uses go to receive.

        A parameter that the graph still reaches was used where torch functions cannot be watched: refused.
        """
        if not losses.requires_grad:
            return
        self.receive = receive
        scale = torch.ones_like(losses) if scale is None else scale
        try:
            with self, precision.own():
                run = accumulate if self.hidden else differentiate
                reached = run(losses, self._token, self.parameters, scale, retain)
        finally:
            self.receive = self._latest = None
        for parameter, gradient in zip(self.parameters, reached, strict=True):
            if gradient is not None:
                raise NoRule(
                    f"parameter {self.names[id(parameter)]!r} is used where torch functions cannot be watched (a "
                    'custom autograd function, TorchScript). Use engine="loop", or plain torch operations.'
                )


Reached = Sequence[Tensor | None]
"""Gradients of parameters that the graph reaches past every tap: all None when every use was seen."""


def differentiate(
    losses: Tensor, token: Tensor, parameters: tuple[Tensor, ...], scale: Tensor, retain: bool
) -> Reached:
    """torch.autograd.grad(losses @ scale, parameters) that leaves the active function mode on during the pass.

    The public function is itself a torch function: it would switch the recorder off while checkpoints recompute.
    """
    found: Reached = ENGINE.run_backward(
        (losses,), (scale,), retain, False, (token, *parameters), allow_unreachable=True, accumulate_grad=False
    )
    return found[1:]


def accumulate(losses: Tensor, token: Tensor, parameters: tuple[Tensor, ...], scale: Tensor, retain: bool) -> Reached:
    """The same into .grad, which is put back: the only kind of pass that reentrant checkpoints allow."""
    leaves = (token, *parameters)
    before = [leaf.grad for leaf in leaves]
    try:
        for leaf in leaves:
            leaf.grad = None
        ENGINE.run_backward((losses,), (scale,), retain, False, (), allow_unreachable=True, accumulate_grad=True)
        return [parameter.grad for parameter in parameters]
    finally:
        for leaf, grad in zip(leaves, before, strict=True):
            leaf.grad = grad


ENGINE = torch.autograd.Variable._execution_engine


def depends_on_samples(tensor: Tensor) -> bool:
    """Marked, or part of the graph behind a tap (a leaf that requires a gradient is a constant here)."""
    return hasattr(tensor, MARK) or (tensor.requires_grad and tensor.grad_fn is not None)


def through_base(out: Tensor, tap: Callable[[Tensor], Tensor]) -> Tensor:
    """Tap the tensor behind a view: marking a view itself as changed would make autograd copy its gradient."""
    base = out._base if out._is_view() else None
    if base is None:
        return tap(out)
    if base.numel() == out.numel() and base.is_contiguous() and out.is_contiguous():
        return tap(base).view(out.shape)
    return tap(out.clone())
