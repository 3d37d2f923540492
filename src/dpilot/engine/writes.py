"""Memory that a forward pass writes into: saved before the first write, copied back afterwards.

Copy on write: where nothing that existed before is written, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor, UntypedStorage
from torch._C import DisableTorchFunction
from torch.autograd.graph import increment_version
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from dpilot.engine.batch import tensors

EXITS = frozenset({
    "numpy", "__array__", "data_ptr", "const_data_ptr", "mutable_data_ptr", "__dlpack__", "untyped_storage", "storage",
    "_typed_storage", "share_memory_",
})  # fmt: skip
"""Functions that hand out a tensor's memory, which may then be written without an operation."""
STATISTICS = frozenset({"running_mean", "running_var"})
"""Arguments that batch normalisations write although their schemas do not say so."""
UNDECLARED_VIEWS = frozenset({"aten::_unsafe_view", "aten::lift"})
"""Operations whose result may share memory with their input although their schemas do not say so."""
DECLARED = ("aten::", "prims::")
"""Operations whose other schemas are right about what shares memory."""
OWN = frozenset({"aten", "prims", "profiler", "quantized"})
"""Libraries of operations that are torch's own: they run no code of a model."""


@final
class WriteGuard:
    """Contents of memory as they were before the first write, and the way back to them.

    Guarantee:
        After ``restore()`` every storage given to ``before_write`` or ``before_exit`` holds, bit for bit, what it held
        when it was first given, and has the size it had. Version counters move only for tensors given to
        ``before_write``: a graph that saved one of them refuses a second backward pass, all others still have one.

    Edge cases:
        a view, an expanded tensor     the whole storage is saved, once
        no elements                    saved as well: a resize may give it some
        wrapper subclasses             the tensors they are made of are saved
        sparse, on the meta device     skipped: they have no storage of their own to copy

    Example:
        >>> weight, guard = torch.ones(2), WriteGuard()
        >>> guard.before_write(weight)
        >>> weight.data.fill_(7.0)
        tensor([7., 7.])
        >>> guard.restore()
        >>> weight
        tensor([1., 1.])
    """

    __slots__ = ("_exits", "_saved", "_through")

    def __init__(self) -> None:
        self._saved: dict[int, tuple[UntypedStorage, UntypedStorage]] = {}
        self._exits: set[int] = set()
        self._through: dict[int, Tensor] = {}

    def before_write(self, tensor: Tensor) -> None:
        """Save the memory of a tensor that is about to be written."""
        with DisableTorchFunction():
            for part in parts_of(tensor):
                self._exits.discard(self._save(part))
                self._through[id(part)] = part

    def before_exit(self, tensor: Tensor) -> None:
        """Save the memory of a tensor whose address is about to be handed out; it counts as written if it changes."""
        with DisableTorchFunction():
            for part in parts_of(tensor):
                if part.untyped_storage()._cdata not in self._saved:
                    self._exits.add(self._save(part))

    def before_code(self, held: Iterable[Tensor]) -> None:
        """Save memory that code which no mode sees may write."""
        for tensor in held:
            self.before_exit(tensor)

    @property
    def written(self) -> tuple[UntypedStorage, ...]:
        """Storages that were written, or handed out and changed."""
        return tuple(
            storage
            for key, (storage, saved) in self._saved.items()
            if key not in self._exits or not same_bytes(storage, saved)
        )

    def restore(self) -> None:
        """Copy back what was saved, in memory of the size it had."""
        if not self._saved:
            return
        with _disable_current_modes(), DisableTorchFunction():
            for storage, saved in self._saved.values():
                if storage.nbytes() != saved.nbytes():
                    storage.resize_(saved.nbytes())
                if saved.nbytes():
                    storage.copy_(saved)
        increment_version([t for t in self._through.values() if not t.is_inference()])

    def _save(self, tensor: Tensor) -> int:
        """Save a storage unless it is saved already; its key."""
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        if key not in self._saved:
            with _disable_current_modes():
                self._saved[key] = storage, storage.clone()  # type: ignore[no-untyped-call]
        return key


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The plain tensors with memory of their own that a tensor is made of."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if is_traceable_wrapper_subclass(tensor):
        inner, _ = tensor.__tensor_flatten__()
        return [part for name in inner for part in parts_of(getattr(tensor, name))]
    return [tensor] if has_storage(tensor) else []


def has_storage(tensor: Tensor) -> bool:
    """Whether a tensor lies in one stretch of memory that can be copied."""
    return tensor.layout is torch.strided and tensor.device.type != "meta" and not torch._is_functional_tensor(tensor)


def same_bytes(one: UntypedStorage, other: UntypedStorage) -> bool:
    """Whether two storages hold the same."""
    if one.nbytes() != other.nbytes():
        return False
    with _disable_current_modes(), DisableTorchFunction():
        first, second = (torch.empty(0, dtype=torch.uint8, device=s.device).set_(s) for s in (one, other))
        return torch.equal(first, second)


class Writes(NamedTuple):
    """What an operation's schema says: which arguments it writes, and whether its results may be new memory.

    ``foreign``: it may write more than its schema says.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]
    only_if: tuple[int, str] | None
    makes: bool
    may_share: bool
    foreign: bool


def writes_of(operation: Any) -> Writes:
    """Read the schema of an operation."""
    schema = operation._schema
    undeclared = undeclared_writes(schema)
    chosen = [
        (place, argument)
        for place, argument in enumerate(schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in undeclared
    ]
    training = [(place, a.name) for place, a in enumerate(schema.arguments) if a.name == "training" and undeclared]
    return Writes(
        positions=tuple(place for place, argument in chosen if not argument.kwarg_only),
        names=tuple(argument.name for _, argument in chosen),
        only_if=training[0] if training and len(chosen) == len(undeclared) else None,
        makes=any(result.alias_info is None for result in schema.returns),
        may_share=schema.name in UNDECLARED_VIEWS or not schema.name.startswith(DECLARED),
        foreign=runs_code(operation),
    )


def undeclared_writes(schema: Any) -> frozenset[str]:
    """Running statistics, which older batch normalisations move without saying so."""
    plain = not any(word in schema.name for word in ("backward", "functional", "no_training", "no_update"))
    found = frozenset(a.name for a in schema.arguments if a.name in STATISTICS and a.alias_info is None)
    return found if plain else frozenset()


def runs_code(operation: Any) -> bool:
    """Whether an operation may run code of the model, which reads and writes what it is not given.

    So does a higher-order operator (cond, while_loop, map), whose functions have closures, and an operation of the
    user's own library, which may be written in Python. No mode sees inside of them.
    """
    return not isinstance(operation, torch._ops.OpOverload) or operation.namespace not in OWN


# Some kernels take numbers for places in memory without a look at them, on a CPU. A label of ctc_loss that is no class
# is read, and its gradient written, where another record's row lies. A coordinate of grid_sample that is not a number
# ends the process in the backward pass. Least squares of what is not finite print a line of LAPACK's before they fail.
# All are one record's doing: here they are an IndexError, as other kernels raise, and its record is the null record. On
# a GPU a look would make the processor wait (docs/privacy.md).

Taken = Callable[[tuple[Any, ...]], Tensor]
"""Whether each number among the arguments of an operation is one that its kernel takes."""


def labels_of_ctc(args: tuple[Any, ...]) -> Tensor:
    """(logarithms of the classes, labels, ...)."""
    logarithms: Tensor = args[0]
    labels: Tensor = args[1]
    return (labels >= 0) & (labels < logarithms.shape[-1])


def coordinates(args: tuple[Any, ...]) -> Tensor:
    """(image, coordinates, ...)."""
    grid: Tensor = args[1]
    return grid.isfinite()


def equations(args: tuple[Any, ...]) -> Tensor:
    """(matrices, right sides, ...)."""
    left, right = args[0], args[1]
    finite: Tensor = left.isfinite().all() & right.isfinite().all()
    return finite


UNCHECKED: Final[dict[Any, Taken]] = {
    torch.ops.aten._ctc_loss.default: labels_of_ctc,
    torch.ops.aten._ctc_loss.Tensor: labels_of_ctc,
    torch.ops.aten.grid_sampler_2d.default: coordinates,
    torch.ops.aten.linalg_lstsq.default: equations,
}


def check_numbers(operation: Any, args: tuple[Any, ...]) -> None:
    """Raise IndexError before a kernel takes a number that it does not look at.

    Example:
        >>> image, coordinates = torch.ones(1, 1, 2, 2), torch.full((1, 1, 1, 2), torch.nan)
        >>> check_numbers(torch.ops.aten.grid_sampler_2d.default, (image, coordinates))
        Traceback (most recent call last):
            ...
        IndexError: aten.grid_sampler_2d.default: a number that its kernel does not take
    """
    if args[0].device.type == "cpu" and not bool(UNCHECKED[operation](args).all()):
        raise IndexError(f"{operation}: a number that its kernel does not take")


@cache
def takes_apart(kind: type) -> bool:
    """Whether tensors of a class have operations of their own, which run others on the parts they are made of."""
    return getattr(kind, "__torch_dispatch__", None) is not Tensor.__torch_dispatch__


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells a guard, before each operation, what the operation writes into memory that it did not see being made.

    It raises where a kernel would be given a number that it does not take (``check_numbers``).
    ``held`` is all that code of the model which is not seen may write.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Called as it is: the wrapper that keeps torch.compile away costs more than the watching."""
        return False

    def __init__(self, guard: WriteGuard, held: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.guard, self.born, self._held = guard, set[int](), held
        self._known: dict[Any, Writes | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types and any(map(takes_apart, types)):
            return NotImplemented  # the subclass runs operations on its parts, which are seen
        try:
            writes = self._known[func]
        except KeyError:
            writes = self._known[func] = writes_of(func) if hasattr(func, "_schema") else None
        if func in UNCHECKED:
            check_numbers(func, args)
        if writes is None or writes.foreign:
            self.guard.before_code(self._held)
        if writes is None:  # a higher-order operator says nothing of what it writes
            self._before(tree_leaves((args, kwargs)))
            return func(*args, **kwargs)
        if writes.names:
            self._before(list(written_arguments(writes, args, kwargs)))
        result = func(*args, **kwargs)
        if writes.makes:
            self._note(result, args if writes.may_share else ())
        return result

    def _before(self, arguments: list[Any]) -> None:
        """Save what is about to be written unless it was made here."""
        with DisableTorchFunction():
            for tensor in tensors(arguments):
                if has_storage(tensor) and tensor.untyped_storage()._cdata not in self.born:
                    self.guard.before_write(tensor)

    def _note(self, result: Any, given: Any) -> None:
        """Remember the memory of results; what they share with an argument is as old as the argument."""
        with DisableTorchFunction():
            leaves = tree_leaves(given) if given else ()
            old = {t.untyped_storage()._cdata for t in leaves if isinstance(t, Tensor) and has_storage(t)}
            for tensor in tensors(result):
                if tensor.layout is torch.strided and (key := tensor.untyped_storage()._cdata) not in old:
                    self.born.add(key)


def written_arguments(writes: Writes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Arguments that an operation will write."""
    if writes.only_if is not None:
        place, name = writes.only_if
        if not (args[place] if place < len(args) else kwargs.get(name, True)):
            return
    yield from (args[place] for place in writes.positions if place < len(args))
    if kwargs:
        yield from (kwargs[name] for name in writes.names if name in kwargs)


class HandoutMode(TorchFunctionMode):
    """Tells a guard, before memory leaves torch, whose it is."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in EXITS and args and isinstance(args[0], Tensor):
            self._leaves(args[0])
        result = func(*args, **(kwargs or {}))
        if func is torch.tensor:  # makes memory without an operation, and always copies what it is given
            with DisableTorchFunction():
                self.watch.born.update(part.untyped_storage()._cdata for part in parts_of(result))
        return result

    def _leaves(self, tensor: Tensor) -> None:
        with DisableTorchFunction():
            for part in parts_of(tensor):
                if part.untyped_storage()._cdata not in self.watch.born:
                    self.watch.guard.before_exit(part)


@contextmanager
def watch_writes(guard: WriteGuard, held: Sequence[Tensor] = ()) -> Iterator[WriteGuard]:
    """Tell ``guard`` of every write into memory that was there before, and of memory that leaves torch.

    Writes are known from the schemas of operations (in place, ``out=``, lists of tensors, custom operations), at the
    level below autograd and torch.func, so that ``.data`` and ``no_grad`` hide nothing; memory leaves torch through
    ``numpy()``, ``data_ptr()``, ``untyped_storage()`` and DLPack. ``held`` are tensors that code which
    no mode sees may write (``runs_code``): their memory is saved before it runs.

    Limits:
        A C++ extension that is called without torch's dispatcher, and memory handed out before, are not seen;
        nor are sparse tensors. A write through ``tensor.data = other`` is none: the tensor points elsewhere, which a
        StateSnapshot undoes.
    """
    watch = Watch(guard, held)
    with HandoutMode(watch), watch:
        yield guard
