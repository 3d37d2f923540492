"""Norms and clipped sums from one backward pass.

Trained weights take part in the forward pass detached, so autograd never forms their gradients. Each operation in which
a weight meets the samples is tapped (``Recorder``); the backward pass leaves (input, output gradient) there, from which
a layer rule knows the squared norms and, once the weights are chosen, the weighted sum. The tracker (trace/) knows
which tensors depend on the samples, and where the samples lie in them; what it does not know is not computed here.

The recorder is a torch function mode: it sees each torch call of the forward pass with its arguments. So it needs no
hooks on the model, catches weights used from anywhere (tied, functional, parametrised, several times) and leaves
nothing behind. Three kinds of tensors matter:

* weights: trained parameters, and whatever is computed from them alone (their graph to the parameters is kept);
* samples: whatever depends on the batch;
* the rest: constants.

A call with weights and no samples gives a weight. A call with both goes to its rule. Everything else runs as it is.

The low-memory form takes one backward pass for the norms and a second one for the sum: each parameter's record is
measured as soon as the backward pass leaves it and dropped again, so that no more than one layer's records live at a
time. Small gradients (biases, scales) are kept; where all are small there is nothing to repeat.

On a GPU a model of a hundred layers has hundreds of small vectors of length n to compute: each call costs more than its
work. So Gram norms leave their parts behind and are finished together, and small dense gradients (biases, scales) are
laid side by side, one matrix for all (``Measured``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpilot._validate import refuse
from dpilot.engine.base import (
    NoRule,
    PerSample,
    accumulator,
    add_squares,
    make_handle,
    no_batching_warnings,
    refill_squares,
    trainable,
    zero_gradients,
    zero_null_rows,
)
from dpilot.engine.batch import Chunk, check_losses
from dpilot.engine.layers import RULES
from dpilot.engine.layers.base import Apart, Dense, Formed, MakeUse, Use, detach_unseen, per_sample_rows, rows_of
from dpilot.engine.layers.broadcast import SHAPE_ONLY, repeat_view
from dpilot.engine.layers.conv import ByEntry, Correlation
from dpilot.engine.layers.embedding import Lookups, lookup_use, tied_parts
from dpilot.engine.layers.fallback import fallback
from dpilot.engine.layers.linear import GramParts, Product, SharedInput, finish_bounds, mates_parts, merge
from dpilot.engine.trace import Answers, Pass
from dpilot.engine.trace.tracker import Tracker
from dpilot.engine.trace.watch import Exits
from dpilot.numerics import precision
from dpilot.numerics.devices import policy_of
from dpilot.numerics.grid import Grid, sum_products, sum_rows


def run(chunk: Chunk, *, reason: str, low_memory: bool = False, answers: Answers | None = None) -> PerSample:
    """Record one forward and backward pass; measure every parameter; sum when asked.

    Raises NoRule where it is not known which rows belong to which sample, or where samples meet. ``answers`` are for a
    pass that is captured as a graph.

    Edge cases: random layers draw as in plain training, so every sample has its own mask.
    """
    parameters = trainable(chunk.model)
    if any(p.is_complex() for p in parameters.values()):
        raise NoRule("a trained parameter is complex.")
    with Pass.over(chunk, answers) as watched:
        recorder = Recorder(parameters, watched.tracker, watched.exits)
        losses = forward(recorder, chunk)
        watched.require_apart(losses, TAPPED)
        # what was written is restored, and what a checkpoint computes again may differ: one pass for norms and sums
        twice = low_memory and not watched.guard.written and not watched.tracker.recomputes
        return (two_passes if twice else finish)(recorder, losses, parameters, reason)


def finish(recorder: Recorder, losses: Tensor, parameters: Mapping[str, nn.Parameter], reason: str) -> PerSample:
    """The backward pass, the norms, and what it takes to sum.

    A parameter that is used once is measured as soon as its record is there, which is then dropped or made smaller.
    """
    measured, late, once = Measured(), list[FoundUse](), used_once(recorder)

    def receive(item: FoundUse) -> None:
        name = own_name(recorder, once, item)
        if name is None:
            late.append(item)
        else:
            measured.add(name, (item.use,))

    recorder.backward(losses, receive)
    with torch.no_grad(), precision.use_own_settings():
        for name, found in settle(recorder, late).items():
            measured.add(name, found)
        measured.finish()
    n = recorder.batch_size
    squares = {
        name: measured.squares[name] if name in measured.squares else p.detach().new_zeros(n, dtype=accumulator(p))
        for name, p in parameters.items()
    }
    squares = refill_squares(squares, parameters)
    whole = add_squares(squares)
    return make_handle("single-backward", reason, squares, WeightedSums.of(whole, measured, parameters), whole)


def forward(recorder: Recorder, chunk: Chunk) -> Tensor:
    """The losses (n,), with every meeting of weights and samples tapped."""
    with torch.enable_grad(), recorder.tracker, recorder:
        losses = chunk.losses()
    return check_losses(losses, chunk.n)


def two_passes(recorder: Recorder, losses: Tensor, parameters: Mapping[str, nn.Parameter], reason: str) -> PerSample:
    """Norms now, sums by another backward pass whenever they are asked for."""
    n = recorder.batch_size
    squares = {name: p.detach().new_zeros(n, dtype=accumulator(p)) for name, p in parameters.items()}
    once, late, kept, formed = used_once(recorder), list[FoundUse](), dict[str, Dense](), set[str]()

    def measure(item: FoundUse) -> None:
        name = own_name(recorder, once, item)
        if name is None:
            late.append(item)
            return
        squares[name], (use,) = combine([item.use])
        if isinstance(use, Dense) and use.values[0].numel() <= SMALL:
            kept[name] = use
        elif use is not item.use:
            formed.add(name)

    recorder.backward(losses, measure, retain=True)
    with torch.no_grad(), precision.use_own_settings():
        for name, uses in settle(recorder, late).items():
            squares[name] = combine(uses)[0]
    late.clear()
    squares = refill_squares(squares, parameters)
    again = Again(once, kept, formed)
    return make_handle(
        "single-backward", reason, squares, second_pass_sums(recorder, losses, parameters, squares, again)
    )


@dataclass(frozen=True, slots=True)
class Again:
    """What the first pass knows: parameters used once, small gradients kept, and gradients that were formed.

    A norm bounds one way of summing: what was measured formed must be summed formed.
    """

    once: set[int]
    kept: Mapping[str, Dense]
    formed: set[str]


def second_pass_sums(
    recorder: Recorder, losses: Tensor, parameters: Mapping[str, nn.Parameter], squares: Mapping[str, Tensor],
    again: Again,
) -> Any:  # fmt: skip
    """The function from weights to weighted sums, each call one backward pass unless all that is needed was kept."""
    finite = torch.isfinite(add_squares(squares))
    null = not bool(finite.all())

    def sum_with(weights: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, Tensor]:
        if grid is not None:
            refuse("low_memory", True, "False where sums lie on a grid")
        totals = zero_gradients(parameters)
        late: list[FoundUse] = []

        def add(name: str, use: Any) -> None:
            safe = use.keep(finite) if null else use
            mine = weights[name].to(totals[name].dtype)
            totals[name] += safe.weighted_sum(mine).view(totals[name].shape)

        def receive(item: FoundUse) -> None:
            name = own_name(recorder, again.once, item)
            if name is None:
                late.append(item)
            elif name not in again.kept:
                # the norm of a formed gradient bounds that gradient, not a sum of its tokens, in which rounding differs
                # (tests/engine/test_cancelling.py::test_tokens_that_cancel_do_not_swallow_what_others_add)
                add(name, combine([item.use])[1][0] if name in again.formed else item.use)

        with torch.no_grad(), precision.use_own_settings():
            for name, dense in again.kept.items():
                add(name, dense)
        if len(again.kept) < len(parameters):
            recorder.backward(losses, receive, retain=True)
        with torch.no_grad(), precision.use_own_settings():
            for name, uses in settle(recorder, late).items():
                for use in combine(uses)[1]:
                    add(name, use)
        return totals

    return sum_with


TRANSPOSES = {"t": 1, "T": 1, "mT": 1, "transpose": 3, "swapaxes": 3}
"""Transposes of a matrix, and how many arguments they have."""


@dataclass(frozen=True, slots=True)
class FoundUse:
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

    def __init__(self, parameters: Mapping[str, nn.Parameter], tracker: Tracker, exits: Exits) -> None:
        super().__init__()
        self.batch_size, self.tracker, self._exits = tracker.n, tracker, exits
        self.parameters = tuple(parameters.values())
        self.names = {id(p): name for name, p in parameters.items()}
        self.weights: dict[int, Tensor] = {id(p): p for p in self.parameters}  # holds them, so that ids stay theirs
        self.origins: dict[int, Origin] = {}
        self.expected: dict[int, int] = {}
        self.receive: Callable[[FoundUse], None] | None = None
        self._latest: tuple[Tensor, int, Tensor, SharedInput] | None = None
        device = next((p.device for p in self.parameters), torch.device("cpu"))
        self._token = torch.zeros((), device=device, requires_grad=True)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        weighted, sampled = self._contents(args)
        if kwargs:
            more = self._contents(kwargs.values())
            weighted, sampled = weighted or more[0], sampled or more[1]
        if not weighted:
            return self._exits.call(func, args, kwargs)
        name = getattr(func, "__name__", "")
        if not sampled or (name in SHAPE_ONLY and id(args[0]) in self.weights):
            return self._derive(name, func, args, kwargs)
        return func(*args, **kwargs) if name in SHAPE_ONLY else self._meet(name, func, args, kwargs)

    def _contents(self, values: Iterable[Any]) -> tuple[bool, bool]:
        """Whether weights, and whether samples, are among the arguments."""
        weighted = sampled = False
        for value in values:
            if isinstance(value, Tensor):
                if id(value) in self.weights:
                    weighted = True
                elif not sampled and self.tracker.holds_records(value):
                    sampled = True
            elif isinstance(value, (tuple, list)):
                inner = self._contents(value)
                weighted, sampled = weighted or inner[0], sampled or inner[1]
        return weighted, sampled

    def derive(self, operation: Callable[..., Any], *args: Any) -> Any:
        return self._derive(getattr(operation, "__name__", ""), operation, args, {})

    def _derive(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation on weights alone: its result is a weight, with autograd's own graph to the parameters."""
        out = self._exits.call(func, args, kwargs)
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
        return isinstance(value, Tensor) and id(value) not in self.weights and self.tracker.holds_records(value)

    def require_rows(self, tensor: Tensor) -> None:
        """The samples must be known to lie on the first axis, all of them, each with as many rows."""
        place = self.tracker.place(tensor)
        if place.kind in ("unknown", "mixed"):
            raise NoRule(place.why)
        whole = bool(tensor.dim()) and tensor.shape[0] == self.batch_size * place.block
        if place.kind != "axis" or place.axis or not whole:
            raise NoRule(
                f"a tensor of shape {tuple(tensor.shape)} meets a trained weight, and its samples are not on the first "
                "axis. Keep samples first (batch_first=True)."
            )

    def has_equal_rows(self, weight: Tensor) -> bool:
        """Whether a weight was repeated along the samples: each row is the whole of a smaller weight."""
        block = weight.shape[0] // self.batch_size
        own_draws = self.tracker.place(weight)[:3] == ("axis", 0, block)  # a weight with each record's own draws
        return own_draws or self.tracker.memory.alike(weight, 0, block)

    def tap(
        self, out: Tensor, saved: Sequence[Tensor], uses: Sequence[tuple[Tensor, MakeUse]], *, by_row: bool = False,
        fresh: bool = True,
    ) -> Tensor:  # fmt: skip
        if not uses:
            return out
        if not torch.is_grad_enabled():
            raise NoRule(
                "a trained weight meets the samples where no gradient is kept (a checkpoint with use_reentrant=True, "
                "or no_grad). Use use_reentrant=False."
            )
        if fresh:
            self.require_rows(out)
        shape = out.shape
        for weight, _ in uses:
            self.expected[id(weight)] = self.expected.get(id(weight), 0) + 1

        def sink(kept: tuple[Tensor, ...], gradient: Tensor) -> None:
            if self.receive is None:
                raise NoRule('the model differentiates inside its forward pass. Use engine="loop".')
            with torch._C.DisableTorchFunction():  # a rule's own work is not watched
                gradient = gradient if gradient.shape == shape else gradient.reshape(shape)
                for weight, make in uses:
                    self.receive(FoundUse(weight, make(kept, gradient), by_row))

        def tapped(tensor: Tensor) -> Tensor:
            result: Tensor = Tap.apply(tensor, self._token, sink, fresh, *saved)  # type: ignore[no-untyped-call]
            return result

        return through_base(out, tapped) if fresh else tapped(out)

    def spread(self, weight: Tensor, like: Tensor, dims: int | None = None) -> Tensor:
        self.require_rows(like)
        dims, lead, n = like.dim() if dims is None else dims, like.shape[0], self.batch_size
        values = weight.data  # its own version counter: marking the view as changed must not touch the parameter's
        if weight.dim() == dims and weight.shape[0] == lead and self.has_equal_rows(weight):
            return self.tap(values, (), [(weight, lambda _, e: Dense(per_sample_rows(e, n)))], by_row=True, fresh=False)

        def make(_: tuple[Tensor, ...], e: Tensor) -> Use:
            return Dense(per_sample_rows(e, n).sum(1).view(n, *weight.shape))

        return self.tap(repeat_view(values, dims, lead), (), [(weight, make)], fresh=False)

    def input_of_several(self, x: Tensor, cast: Tensor) -> tuple[Tensor, SharedInput]:
        latest = self._latest
        if latest is None or latest[0] is not x or latest[1] != x._version or latest[2].dtype != cast.dtype:
            latest = self._latest = (x, x._version, detach_unseen(cast), SharedInput())
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
        self, losses: Tensor, receive: Callable[[FoundUse], None], *, retain: bool = False, scale: Tensor | None = None
    ) -> None:
        """One backward pass from sum(scale * losses), recorder on (checkpoints run forward again); uses go to receive.

        A parameter that the graph still reaches was used where torch functions cannot be watched: refused.
        """
        if not losses.requires_grad:
            return
        self.receive = receive
        scale = torch.ones_like(losses) if scale is None else scale
        watched = self.tracker.again() if self.tracker.recomputes else nullcontext()
        try:
            with watched, self, precision.use_own_settings():
                reached = differentiate(losses, self._token, self.parameters, scale, retain)
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


ENGINE = torch.autograd.Variable._execution_engine


def through_base(out: Tensor, tap: Callable[[Tensor], Tensor]) -> Tensor:
    """Tap the tensor behind a view: marking a view itself as changed would make autograd copy its gradient."""
    base = out._base if out._is_view() else None
    if base is None:
        return tap(out)
    if base.numel() == out.numel() and base.is_contiguous() and out.is_contiguous():
        return tap(base).view(out.shape)
    return tap(out.clone())


Sink = Callable[[tuple[Tensor, ...], Tensor], None]


class Tap(torch.autograd.Function):
    """Return ``out`` itself and call ``sink(saved, gradient)`` during the backward pass.

    The output is the same tensor marked as modified in place, not a view: an in-place activation may follow. What the
    rule needs later is saved through autograd, so gradient checkpointing drops and recomputes it, and writing over it
    in place is an error instead of a wrong gradient. ``token`` keeps the graph alive where nothing else does.
    ``fresh`` false gives a view instead, for repeated weights, whose memory cannot be written anyway.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, token: Tensor, sink: Sink, fresh: bool, *saved: Tensor) -> Tensor:
        del token
        ctx.sink = sink
        ctx.save_for_backward(*saved)
        if not fresh:
            return out.view_as(out)
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved = ctx.saved_tensors
        ctx.sink(saved, gradients[0])
        return gradients[0], None, None, None, *(None for _ in saved)


TAPPED: tuple[type, ...] = (Tap._backward_cls,)
"""Nodes of the backward graph that taps leave: they hand the gradient on as it is."""
REPEATS = frozenset({"expand", "expand_as", "broadcast_to", "repeat"})


def own_name(recorder: Recorder, once: set[int], item: FoundUse) -> str | None:
    """The parameter whose only use this is, if it is one: such a use can be measured as soon as it is found."""
    alone = id(item.weight) in once and not item.by_row
    return recorder.names.get(id(item.weight)) if alone else None


def used_once(recorder: Recorder) -> set[int]:
    """Parameters that meet the samples in one place only and from which no other weight is computed."""
    derived = {id(v) for origin in recorder.origins.values() for v in flat(origin.args)}
    return {
        key for key, count in recorder.expected.items() if count == 1 and key in recorder.names and key not in derived
    }


def flat(tree: Any) -> list[Any]:
    """Leaves of nested tuples and lists."""
    return [leaf for v in tree for leaf in flat(v)] if isinstance(tree, (tuple, list)) else [tree]


def settle(recorder: Recorder, found: Iterable[FoundUse]) -> dict[str, list[Use]]:
    """All uses by parameter name."""
    uses: dict[str, list[Use]] = {}
    for item in found:
        for name, use in parameters_of(recorder, item):
            uses.setdefault(name, []).append(use)
    return uses


def parameters_of(recorder: Recorder, item: FoundUse) -> list[tuple[str, Use]]:
    """The uses of parameters that one use of a weight stands for."""
    name = recorder.names.get(id(item.weight))
    if name is not None and not item.by_row:
        return [(name, item.use)]
    if item.by_row:
        shorter = undo_rows(recorder, item, recorder.origins.get(id(item.weight)))
        if shorter is not None:
            return parameters_of(recorder, shorter)
        return pull_back(recorder, item.weight, one_row_each(item.use.gradients(0, recorder.batch_size)))
    return pull_back(recorder, item.weight, item.use.gradients(0, recorder.batch_size))


def undo_rows(recorder: Recorder, item: FoundUse, origin: Origin | None) -> FoundUse | None:
    """A weight with one row a sample that is a repeat, or a look-up of constant ids, in a smaller weight."""
    if origin is None:
        return None
    n = recorder.batch_size
    base = origin.args[0]
    if origin.operation in REPEATS and is_row_repeat(base, item.weight):
        return FoundUse(base, Dense(sum_to(item.use.gradients(0, n).sum(1), base)))
    if origin.operation == "embedding" and len(origin.args) <= 3:
        ids, table = origin.args[:2]
        padding = origin.args[2] if len(origin.args) == 3 else None
        return FoundUse(table, lookup_use(table, n, padding)((ids,), item.use.gradients(0, n)))
    return None


def is_row_repeat(base: Tensor, weight: Tensor) -> bool:
    """The first dimension was 1 or absent, so every row is the whole base; the others may be repeated as well."""
    aligned = (1,) * (weight.dim() - base.dim()) + tuple(base.shape)
    return aligned[0] == 1 and all(a in (1, w) for a, w in zip(aligned[1:], weight.shape[1:], strict=True))


def sum_to(values: Tensor, base: Tensor) -> Tensor:
    """(n, ...) summed over repeated dimensions to (n, *base.shape)."""
    lifted = values.unsqueeze(1)  # (n, 1, *weight.shape[1:])
    aligned = (1,) * (lifted.dim() - 1 - base.dim()) + tuple(base.shape)
    return lifted.sum_to_size(values.shape[0], *aligned).reshape(values.shape[0], *base.shape)


def one_row_each(values: Tensor) -> Tensor:
    """(n, r, ...) -> (n, n r, ...): sample i's gradient of the whole weight is zero but for its own rows."""
    n, r = values.shape[:2]
    whole = values.new_zeros(n, n, r, *values.shape[2:])
    index = torch.arange(n, device=values.device)
    whole[index, index] = values
    return whole.flatten(1, 2)


def pull_back(recorder: Recorder, weight: Tensor, gradients: Tensor) -> list[tuple[str, Use]]:
    """Vector-Jacobian products of all samples at once, or one by one where torch cannot batch them."""
    gradients = gradients.to(weight.dtype)

    def pull(values: Tensor, batched: bool) -> tuple[Any, ...]:
        return torch.autograd.grad(
            weight, recorder.parameters, values, retain_graph=True, allow_unused=True, is_grads_batched=batched
        )

    try:
        with no_batching_warnings():
            pulled = pull(gradients, True)
    except RuntimeError:
        rows = [pull(g, False) for g in gradients]
        pulled = tuple(None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True))
    names = (recorder.names[id(p)] for p in recorder.parameters)
    found = [(name, g.to(accumulator(g))) for name, g in zip(names, pulled, strict=True) if g is not None]
    return [(name, Dense(g)) for name, g in found]


SMALL = 1 << 12
"""Numbers a sample up to which dense gradients are laid side by side: a copy that size is cheaper than a call."""

Uses = tuple[Use, ...]


@dataclass(slots=True)
class Measured:
    """What is known of every parameter: squared norms, or what they are to be made of, and the uses to sum with."""

    squares: dict[str, Tensor] = field(default_factory=dict)
    uses: dict[str, Uses] = field(default_factory=dict)
    parts: dict[str, GramParts] = field(default_factory=dict)
    small: dict[str, Dense] = field(default_factory=dict)
    side_by_side: list[SideBySide] = field(default_factory=list)
    waiting: dict[int, dict[str, Product]] = field(default_factory=dict)

    def add(self, name: str, found: Sequence[Use]) -> None:
        """Take the uses of one parameter."""
        use = found[0]
        if len(found) == 1 and isinstance(use, Dense) and joins(use):
            self.small[name] = use
        elif len(found) == 1 and isinstance(use, (Product, Correlation)) and use.defers_finish:
            self._add_deferred(name, use)
        elif len(found) == 2 and (tied := tied_parts(found)) is not None:
            self.parts[name], self.uses[name] = tied
        else:
            self.squares[name], uses = combine(found)
            if len(uses) == 1 and uses[0] is not use and isinstance(uses[0], Dense) and joins(uses[0]):
                self.small[name] = uses[0]
            else:
                self.uses[name] = uses

    def _add_deferred(self, name: str, use: Product | Correlation) -> None:
        """Take a use whose Gram norm is finished together with others; maps of one input wait for each other."""
        if isinstance(use, Correlation) or (mates := use.mates()) == 1:
            self.parts[name], self.uses[name] = use.gram_parts(), (use,)
            return
        present = self.waiting.setdefault(id(use.shared), {})
        present[name] = use
        if len(present) == mates:
            self._meet(id(use.shared))

    def _meet(self, shared: int) -> None:
        """Form the Gram norms of maps of one input."""
        mates = self.waiting.pop(shared)
        self.parts.update(zip(mates, mates_parts(list(mates.values())), strict=True))
        self.uses.update((name, (use,)) for name, use in mates.items())

    def finish(self) -> None:
        """Make the squared norms of all parameters."""
        for shared in list(self.waiting):
            self._meet(shared)
        self.squares.update(zip(self.parts, finish_bounds(list(self.parts.values())), strict=True))
        kinds = {(d.values.device, d.values.dtype) for d in self.small.values()}
        for kind in kinds:
            mine = {name: d for name, d in self.small.items() if (d.values.device, d.values.dtype) == kind}
            bundle = SideBySide.of(mine)
            self.squares.update(bundle.squares())
            self.side_by_side.append(bundle)
        self.small.clear()  # copied: held twice, they would take twice the memory


def joins(use: Dense) -> bool:
    """Whether a dense gradient is laid side by side with others."""
    return policy_of(use.values.device).joins_small and use.values[0].numel() <= SMALL


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Small dense gradients in one matrix (n, numbers), those of one width next to each other."""

    shapes: Mapping[str, torch.Size]
    matrix: Tensor

    @staticmethod
    def of(gradients: Mapping[str, Dense]) -> SideBySide:
        ordered = sorted(gradients.items(), key=lambda item: item[1].values[0].numel())
        shapes = {name: use.values.shape[1:] for name, use in ordered}
        return SideBySide(shapes, torch.cat([rows_of(use.values) for _, use in ordered], dim=1))

    def squares(self) -> dict[str, Tensor]:
        """Squared norms by parameter, one call for each width."""
        found: dict[str, Tensor] = {}
        widths: dict[int, list[str]] = {}
        for name, shape in self.shapes.items():
            widths.setdefault(shape.numel(), []).append(name)
        start = 0
        for width, names in widths.items():
            stop = start + width * len(names)
            block = self.matrix[:, start:stop].view(-1, len(names), width)
            norms = torch.linalg.vector_norm(block, dim=2).square()
            found.update(zip(names, norms.unbind(1), strict=True))
            start = stop
        return found

    def keep(self, finite: Tensor) -> SideBySide:
        """The same with the rows of null samples replaced by zeros, in place: the matrix is nobody else's."""
        self.matrix.masked_fill_(~finite[:, None], 0.0)
        return self

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum over i of w_i g_i for every parameter here that has weights; one product where all have the same."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        mine = {name: weights[name] for name in self.shapes if name in weights}
        if len(mine) == len(self.shapes) and len({id(w) for w in mine.values()}) == 1:
            sums = torch.split(torch.mv(self.matrix.T, next(iter(mine.values()))), sizes)
            return {name: s.view(shape) for (name, shape), s in zip(self.shapes.items(), sums, strict=True)}
        columns = self.columns()
        return {name: torch.mv(columns[name].T, w).view(self.shapes[name]) for name, w in mine.items()}

    def columns(self) -> dict[str, Tensor]:
        """The gradients of each parameter, (n, numbers)."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        return dict(zip(self.shapes, torch.split(self.matrix, sizes, dim=1), strict=True))


CHEAP = 1 << 24
"""Recorded numbers up to which rewriting them costs less than waiting to know whether a sample is null."""


def cheap(measured: Measured) -> bool:
    """Whether null samples are zeroed without looking for any: decided by device and sizes, not by what is in them."""
    records = [t for uses in measured.uses.values() for use in uses for t in tensors_of(use)]
    return all(t.is_cuda for t in records) and sum(t.numel() for t in records) <= CHEAP


def tensors_of(held: Any) -> list[Tensor]:
    """The tensors that a use holds, and those of the uses in it."""
    if isinstance(held, Tensor):
        return [held]
    if isinstance(held, tuple):
        return [t for each in held for t in tensors_of(each)]
    inside = (Dense, Product, Correlation, ByEntry, Lookups, Formed, Apart)
    return [t for f in fields(held) for t in tensors_of(getattr(held, f.name))] if isinstance(held, inside) else []


def combine(uses: Sequence[Use]) -> tuple[Tensor, tuple[Use, ...]]:
    """Squared norms of the sum of all uses, and the uses to sum with.

    Uses of one kind merge exactly (more tokens, more rows, added values). Gradients of uses of different kinds are
    formed and added, a few samples at a time, to be measured and to be summed.
    """
    merged = uses if len(uses) == 1 else merge_alike(uses)
    if len(merged) == 1:
        squares, use = merged[0].measure()
        return squares, (use,)
    apart = tuple(use.merge() if isinstance(use, Lookups) else use for use in merged)
    formed = Formed.of(apart, apart[0].magnitude().shape[0])
    return formed.measure()[0], (formed,)


def merge_alike(uses: Sequence[Use]) -> list[Use]:
    """Merge dense uses with each other, products with each other, look-ups with each other."""
    dense = [u for u in uses if isinstance(u, Dense)]
    lookups = [u for u in uses if isinstance(u, Lookups)]
    products: dict[Any, list[Product]] = {}
    for u in uses:
        if isinstance(u, Product):
            products.setdefault((u.swapped, u.grade), []).append(u)
    rest = [u for u in uses if not isinstance(u, (Dense, Lookups, Product))]
    merged: list[Use] = list(rest)
    if dense:
        values: Any = sum(u.values for u in dense)
        merged.append(Dense(values))
    if lookups:
        merged.append(one_lookup(lookups))
    merged.extend(p[0] if len(p) == 1 else merge(p) for p in products.values())
    return merged


def one_lookup(uses: Sequence[Lookups]) -> Lookups:
    """Look-ups in the same table, one after the other."""
    if len(uses) == 1:
        return uses[0]
    tokens, owners, rows = (torch.cat([getattr(u, f) for u in uses]) for f in ("tokens", "owners", "rows"))
    return Lookups(tokens, owners, rows, uses[0].batch_size, uses[0].vocabulary)


Shape = tuple[torch.Size, torch.dtype, torch.device]


@dataclass(frozen=True, slots=True)
class WeightedSums:
    """Sum over i of w_i g_i for every parameter; null samples are zeroed before any product.

    Where records are large, zeroing rows costs more than waiting to learn whether a sample is null (``waits``). The
    numbers of the other samples are the same either way.
    """

    finite: Tensor
    measured: Measured
    shapes: Mapping[str, Shape]
    waits: bool

    @staticmethod
    def of(whole: Tensor, measured: Measured, parameters: Mapping[str, nn.Parameter]) -> WeightedSums:
        shapes = {name: (p.shape, accumulator(p), p.device) for name, p in parameters.items()}
        return WeightedSums(torch.isfinite(whole), measured, shapes, not cheap(measured))

    def __call__(self, weights: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, Tensor]:
        if grid is not None:
            return self.on_grid(weights, grid)
        return self.without_null_rows(weights) if self.any_null() else self.steady(weights)

    def any_null(self) -> bool:
        """Whether a sample is null, where ``steady`` has to be told."""
        return self.any_null_asked()()

    def any_null_asked(self) -> Callable[[], bool]:
        """The same, asked now and told when called: work that is launched in between is not waited for."""
        if not self.waits:
            return lambda: False
        none = self.finite.all()
        if not none.is_cuda:
            return lambda: not bool(none)
        told = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(none, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(none.device))

        def answer() -> bool:
            event.synchronize()
            return not bool(told)

        return answer

    def steady(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums without waiting; where records are large, right if no sample is null."""
        return self._summed(weights, zeroing=not self.waits)

    def on_grid(self, weights: Mapping[str, Tensor], grid: Grid) -> dict[str, Tensor]:
        """The sums of what each sample adds, rounded by itself; sums in float64, which have no order.

        No choice here goes by a number of a sample but the one whether any is null, which moves no other's: gradients
        are formed in the same pieces, and what follows is done entry by entry.
        """
        small = {name: Dense(each) for side in self.measured.side_by_side for name, each in side.columns().items()}
        uses = {**self.measured.uses, **{name: (use,) for name, use in small.items()}}
        with torch.no_grad(), precision.use_own_settings():
            return {
                name: total_on_grid(uses.get(name, ()), w, self.finite, grid, self.shapes[name][0])
                for name, w in weights.items()
            }

    def without_null_rows(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums from records whose null rows are zeros."""
        return self._summed(weights, zeroing=True)

    def _summed(self, weights: Mapping[str, Tensor], *, zeroing: bool) -> dict[str, Tensor]:
        """Parameter after parameter: a copy without null rows lives no longer than its own sum takes."""
        with torch.no_grad(), precision.use_own_settings():
            sides = [side.keep(self.finite) if zeroing else side for side in self.measured.side_by_side]
            small = {name: s for side in sides for name, s in side.weighted_sums(weights).items()}
            kept = self.finite if zeroing else None
            return {
                name: small[name]
                if name in small
                else total(self.measured.uses.get(name, ()), w, kept, *self.shapes[name])
                for name, w in weights.items()
            }


def total(
    uses: Iterable[Use], weights: Tensor, finite: Tensor | None, shape: torch.Size, dtype: torch.dtype,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """The weighted sum of one parameter over all its uses, the rows of samples that are not finite zeroed."""
    mine = weights.to(dtype)
    parts = [(use if finite is None else use.keep(finite)).weighted_sum(mine) for use in uses]
    if not parts:
        return torch.zeros(shape, dtype=dtype, device=device)
    result: Tensor = sum(parts[1:], start=parts[0])
    return result.view(shape)


ROUNDED = 1 << 19
"""Numbers of gradients that are formed at a time to be rounded."""
TOGETHER = 8
"""Samples whose products are formed at a time."""


def total_on_grid(uses: Sequence[Use], weights: Tensor, finite: Tensor, grid: Grid, shape: torch.Size) -> Tensor:
    """The sum of one parameter's gradients, each rounded to the grid; null samples add zeros."""
    n = weights.shape[0]
    use = uses[0] if len(uses) == 1 else Formed.of(tuple(uses), n) if uses else None
    if isinstance(use, Lookups):
        return use.keep(finite).sum_on_grid(weights, grid)
    if isinstance(use, Product) and use.terms == 1:
        a, e = (use.errors, use.inputs) if use.swapped else (use.inputs, use.errors)
        grids = grid.factors(a.shape[2], e.shape[2])
        if grids is not None:
            return sum_products(rows_without_null(a[:, 0], finite), rows_without_null(e[:, 0], finite), weights, grids)
    total = weights.new_zeros(shape, dtype=torch.float64)
    for part, start, stop, formed in () if use is None else pieces_of(use, n, total):
        part += sum_rows(rows_without_null(formed, finite[start:stop]), weights[start:stop], grid)
    return total.view(shape)


def pieces_of(use: Use, n: int, total: Tensor) -> Iterator[tuple[Tensor, int, int, Tensor]]:
    """Parts of ``total``, samples from a first to a last, and what these add to that part, formed piece by piece.

    Pieces of a product stay in cache. All are of public sizes, and each sample's part of one is a product by itself.
    """
    if isinstance(use, Dense):
        yield total.view(use.values.shape[1:]), 0, n, use.values
    elif isinstance(use, Product) or (isinstance(use, Correlation) and use.plain):
        for start in range(0, n, TOGETHER):
            a, e = use.tokens(start, start + TOGETHER)
            matrix, high = total.view(e.shape[2], a.shape[2]), max(1, ROUNDED // (TOGETHER * a.shape[2]))
            for row in range(0, e.shape[2], high):
                few = slice(row, row + high)
                with precision.use_grade(use.grade):
                    yield matrix[few], start, start + len(a), precision.bmm(e[:, :, few].mT, a)
    else:
        step = max(1, ROUNDED // max(total.numel(), 1))
        for start in range(0, n, step):
            formed = use.gradients(start, min(start + step, n))
            yield total, start, start + len(formed), formed.reshape(-1, *total.shape)


def rows_without_null(rows: Tensor, finite: Tensor) -> Tensor:
    """The rows, those of null samples zeros; a copy only where there are any."""
    return rows if bool(finite.all()) else zero_null_rows(rows, finite)
