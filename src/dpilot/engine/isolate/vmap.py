"""torch.func.vmap over the whole model: for what single-backward has no rule for.

vmap keeps samples apart in what its batching rules compute. It does not in the text of a tensor, in an operation that
fails because of one sample, in checks that look at all of them, in rules of the user's own, or in random numbers from
generators that it does not know. All of that is watched (``refuse_leaks``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dpilot.engine import batch as batches
from dpilot.engine.base import LossFunction, NoRule, PerSample, accumulator, no_batching_warnings, trainable
from dpilot.engine.generators import Generators, GeneratorStates, Held, outside_torch
from dpilot.engine.isolate.loop import hold_gradients
from dpilot.engine.state import StateSnapshot, preserve
from dpilot.engine.trace.watch import READERS
from dpilot.engine.writes import takes_apart


class BatchLoss(nn.Module):
    """Model and loss as one module, so that one functional call swaps the parameters for both call styles."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction, per_batch: bool) -> None:
        super().__init__()
        self.model, self.loss_fn, self.per_batch = model, loss_fn, per_batch  # a loss may hold a weight of the model

    def forward(self, batch: Any) -> Tensor:
        chunk = batches.Chunk(self.model, self.loss_fn, batch, 1, self.per_batch)
        return batches.check_losses(chunk.losses(), 1).sum()


def run(chunk: batches.Chunk, *, reason: str) -> PerSample:
    """Gradients of every sample at once, each sample seen as a batch of one.

    Raises NoRule where vmap cannot run the model, or where the model may have seen more than one sample.

    Edge cases: random layers draw independently for every sample (randomness="different"); recurrent layers, data
    dependent branches and in-place writes into fresh tensors are torch.func's own limits and are refused.
    """
    whole, batch = BatchLoss(chunk.model, chunk.loss_fn, chunk.per_batch), chunk.batch
    parameters = {f"model.{name}": p.detach() for name, p in trainable(chunk.model).items()}
    shared = [not batches.holds_samples(t, chunk.n) for t in batches.tensors(batch)]
    stacked = [t if s else t.unsqueeze(1) for t, s in zip(batches.tensors(batch), shared, strict=True)]

    def loss(values: dict[str, Tensor], *sample: Tensor) -> Tensor:
        leaves = iter(sample)
        result: Tensor = functional_call(whole, values, (batches.rebuild(batch, lambda _: next(leaves)),))
        return result

    dims = (None, *(None if s else 0 for s in shared))
    before = StateSnapshot.of(chunk.model, chunk.loss_fn, batch)
    try:
        with preserve(before), no_batching_warnings(), refuse_leaks(before.generators):
            found = vmap(grad(loss), in_dims=dims, randomness="different")(parameters, *stacked)
    except (RuntimeError, NotImplementedError) as error:
        raise NoRule(f'vmap cannot run this model: {error} Use engine="single-backward" or "loop".') from error
    return hold_gradients(
        "vmap", reason, {k.removeprefix("model."): g.detach().to(accumulator(g)) for k, g in found.items()}
    )


_TEXTS: Final = frozenset({"__repr__", "__format__"})
_OF_ALL: Final = frozenset(
    {
        torch.ops.aten._is_all_true.default,
        torch.ops.aten._is_any_true.default,
        torch.ops.aten.linalg_lstsq.default,  # has residuals only where every system has full rank
        torch.ops.aten.index_fill_.int_Tensor,  # writes each value over the one before it, in a tensor that all share
    }
)
"""Operations whose batching rules look at the whole chunk (``tests/engine/vmap_opinfo.py`` compares all others)."""
_KNOWN: Final = frozenset({"aten", "prims"})


@contextmanager
def refuse_leaks(held: Iterable[Held] = ()) -> Iterator[None]:
    """Watch what runs under vmap; raise NoRule at the end if the model may have seen more than one sample.

    ``held`` are generators that the model holds.
    """
    functions, operations, before = Functions(), Operations(), GeneratorStates.of(outside_torch(held))
    with functions, operations:
        yield
    for leak in (*functions.found, *operations.found):
        raise NoRule(f"under vmap {leak}.")
    if before.moved() or not operations.generators.go_on():
        raise NoRule("under vmap a generator is drawn from, or set, that does not draw for each sample.")


def is_batched(t: torch.Tensor) -> bool:
    """Whether there is a whole chunk behind what looks like one sample."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            return True
        t = torch._C._functorch.get_unwrapped(t)
    return False


class Functions(TorchFunctionMode):
    """Notes what takes values out of torch, and code of the user's that sees the whole chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "custom_function_call":
            if args[0].vmap is not torch.autograd.Function.vmap:
                self.found.append(f"{args[0].__name__} runs a rule of its own")
        elif isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            space = str(func).partition(".")[0]
            if space not in _KNOWN:
                self.found.append(f"{func} may run a rule of its own")
        elif name in _TEXTS or name in READERS:
            with torch._C.DisableTorchFunction():
                if any(map(is_batched, batches.tensors(args[:1]))):
                    self.found.append(f"{name} takes values of the chunk out of torch")
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations that fail or look at the whole chunk, numbers that Python reads, and generators that are set."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so the guard against that would only cost time."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found, self.generators = list[str](), Generators()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = isinstance(func, torch._ops.OpOverload)
        name = func._schema.name.removeprefix("aten::") if known else str(func)
        draws = known and torch.Tag.nondeterministic_seeded in func.tags
        if draws and self.generators.were_set(func, args, kwargs, again=False):
            self.found.append(f"{name} draws from a generator that the model set")
        if types and any(map(takes_apart, types)):
            self.found.append(f"{name} runs operations of a class of tensors on the whole chunk")
        if func in _OF_ALL:
            self.found.append(f"{name} looks at the whole chunk")
        try:
            out = func(*args, **kwargs)
        except Exception:
            self.found.append(f"{name} raises for the whole chunk, which the model may catch")
            raise
        if draws:
            self.generators.follow()
        if any(t.is_quantized for t in batches.tensors(out)):
            self.found.append(f"{name} quantises all samples on the scale of the first")
        if out is not None and not isinstance(out, torch.Tensor) and not batches.tensors(out):
            self.found.append(f"{name} gives Python a number")
        return out
