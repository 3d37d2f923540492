"""The Python state of a model and a loss: found before a forward pass, restored after it.

What a forward pass keeps of its records (an attribute, an entry of a list, a variable of a closure, another tensor in
the place of a parameter) would be released without noise, or met by the next record. Contents of memory are the part of
``writes.py``.
"""

from __future__ import annotations

import builtins
import dis
import random
import sys
from array import array
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from functools import lru_cache, partial
from operator import is_
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)  # fmt: skip
from typing import Any, NamedTuple, final
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dpilot.engine.generators import Held
from dpilot.engine.writes import WriteGuard, watch_writes
from dpilot.errors import UnsupportedModel

MOST_OBJECTS = 1 << 16
"""Objects that are looked at, the nearest first; a model has a few thousand."""
MOST_ENTRIES = 1 << 12
"""Entries of one container that are looked into; longer ones (data sets) are restored, but not what they hold."""
FEW_ENTRIES = 1 << 8
"""The same of a data set, whose longer containers hold records."""
MOST_BYTES = 1 << 22
"""Numpy arrays up to this size are copied: they may be written without any operation of torch."""

PLAIN: frozenset[type] = frozenset({
    int, float, complex, bool, str, bytes, type(None), type(...), range, slice, torch.dtype, torch.device, torch.Size,
    torch.layout, torch.memory_format, BuiltinFunctionType, ModuleType, CodeType,
})  # fmt: skip
"""Values that cannot change."""
DATA_LIBRARIES = frozenset({
    "numpy", "pandas", "polars", "pyarrow", "scipy", "sklearn", "datasets", "tokenizers", "jax", "tensorflow", "PIL",
    "matplotlib", "lightning", "pytorch_lightning", "wandb", "mlflow", "tensorboard", "ray", "optuna", "pytest",
    "_pytest",
})  # fmt: skip
CLOSED = DATA_LIBRARIES | sys.stdlib_module_names
"""Packages whose objects hold no state of a forward pass, or more than could be looked at."""
TORCH, HUGGING_FACE_DATA = frozenset({"torch"}), frozenset({"datasets"})
NOT_SEARCHED = CLOSED | {"torch", "transformers", "peft", "accelerate", "dpilot"}
"""Packages whose code is not searched for names of global variables."""
TORCH_STATE = ("torch.nn", "torch.distributions", "torch.ao", "torch.optim", "torch.amp")
"""Parts of torch whose objects are looked into."""
CONTAINERS = (UserDict, UserList, SimpleNamespace, ChainMap, WeakKeyDictionary, WeakValueDictionary, WeakSet)
"""Classes of the standard library whose objects are looked into."""
NAMES = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"})
CLEARED: frozenset[type] = frozenset({dict, OrderedDict, set})
"""Containers that are restored by clearing them if they were empty."""
MISSING = object()


@final
class StateSnapshot:
    """The Python structure of everything that models and losses hold, as it was.

    Found are, from each root: attributes (``__dict__`` and ``__slots__``) of modules and of other objects, with
    parameters, buffers, submodules, hooks and modes; lists, dicts, sets, deques and what they hold; partials, methods,
    and functions with their defaults, attributes and closures; attributes of the user's classes; and global variables
    that functions of the user name. Of a tensor: where its memory lies, ``requires_grad``, ``grad`` and hooks.

    Guarantee:
        After ``restore()`` each of these holds the very objects it held, in their order, and each tensor points to the
        memory it pointed to. Containers are restored in place. A snapshot may be restored more than once. Contents of
        tensors are not copied: a WriteGuard restores them. Arrays and bytearrays are, up to 4 MiB each. torch's default
        type is set to what it was. ``generators`` are the generators of random numbers that were found: they go on.

    Limits:
        Not looked into: objects of the standard library (other than containers), of data and logging libraries, of
        torch outside torch.nn, torch.distributions, torch.optim and torch.amp; entries of containers longer than 4,096;
        what lies beyond 65,536 objects; state inside C or C++ (iterators, caches of ``lru_cache``). Global variables
        are those that functions of the user name directly.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> before = StateSnapshot.of(model)
        >>> model.seen, model.bias = [1.0], None
        >>> before.restore()
        >>> hasattr(model, "seen"), model.bias is None
        (False, False)
    """

    __slots__ = ("_default", "_empty", "_saved", "generators", "tensors")

    def __init__(self, found: Walk) -> None:
        self._saved, self._empty, self.tensors = found.saved, found.empty, tuple(found.tensors)
        self.generators, self._default = tuple(found.generators), torch.get_default_dtype()

    @staticmethod
    def of(*roots: Any) -> StateSnapshot:
        return StateSnapshot(Walk(roots))

    def restore(self) -> None:
        """Undo every change since."""
        with torch._C.DisableTorchFunction():
            for restore, thing, before in self._saved:
                restore(thing, before)
        if any(self._empty):
            for container in self._empty:
                container.clear()
        if torch.get_default_dtype() is not self._default:
            torch.set_default_dtype(self._default)


Saved = tuple[Callable[[Any, Any], None], Any, Any]


@final
class Walk:
    """A breadth-first walk over what roots hold: what was found, and how each is restored.

    Of roots that hold ``records``, tensors, arrays, long containers and classes derived from containers, whose methods
    would run, are not looked into.
    """

    __slots__ = (
        "_globals", "_seen", "_visitors", "_waiting", "empty", "generators", "records", "saved", "searching", "tensors",
    )  # fmt: skip

    def __init__(self, roots: Iterable[Any], *, searching: bool = True, records: bool = False) -> None:
        self.saved: list[Saved] = []
        self.empty: list[Any] = []
        self.tensors: list[Tensor] = []
        self.generators: list[Held] = []
        self.searching, self.records = searching, records
        self._waiting = list(roots)
        self._seen: set[int] = set()
        self._globals: set[tuple[int, str]] = set()
        self._visitors: dict[type, Visitor] = VISITORS | RECORD_VISITORS if records else dict(VISITORS)
        with torch._C.DisableTorchFunction():
            self._run()

    def _run(self) -> None:
        seen, visitors = self._seen, self._visitors
        for value in self._waiting:  # grows meanwhile: nearest first
            key = id(value)
            if key in seen:
                continue
            seen.add(key)  # what is waiting is alive, so no other object has its id
            kind = type(value)
            visit = visitors.get(kind)
            if visit is None:
                visit = visitors[kind] = (record_visitor_of if self.records else visitor_of)(kind)
            visit(self, value)
            if len(seen) > MOST_OBJECTS:
                break

    def looks_into(self, container: Any) -> bool:
        """Whether a container is short enough."""
        return len(container) <= (FEW_ENTRIES if self.records else MOST_ENTRIES)

    def enter(self, values: Iterable[Any]) -> None:
        """Look into these later; what is empty (most hooks of a module) is done with at once."""
        waiting, empty = self._waiting, self.empty
        for value in values:
            kind = type(value)
            if kind not in PLAIN:
                (empty if kind in CLEARED and not value else waiting).append(value)

    def enter_global(self, space: dict[str, Any], name: str, attributes: tuple[str, ...]) -> None:
        """Save a global variable; of a module of the user, the attributes that are named."""
        key = id(space), name
        if key in self._globals:
            return
        self._globals.add(key)
        value = space.get(name, MISSING)
        if isinstance(value, ModuleType):
            if not in_packages(value.__name__, NOT_SEARCHED):
                for attribute in attributes:
                    if attribute in vars(value):
                        self.enter_global(vars(value), attribute, ())
        elif value is not MISSING or not hasattr(builtins, name):
            self.saved.append((restore_item, (space, name), value))
            self.enter((value,) if value is not MISSING else ())


Visitor = Callable[[Walk, Any], None]


def visitor_of(kind: type) -> Visitor:
    """How to look into objects of a class that is not in the table."""
    if issubclass(kind, Tensor):
        return visit_tensor
    if issubclass(kind, type):
        return visit_class
    if issubclass(kind, torch.jit.ScriptModule):
        return visit_script
    if issubclass(kind, nn.Module) and not slots_of(kind) and not issubclass(kind, BASES):
        return visit_module
    if issubclass(kind, Enum):
        return visit_member
    if is_closed(kind) and not issubclass(kind, (nn.Module, *CONTAINERS)):
        return visit_base_only if issubclass(kind, BASES) else visit_nothing
    return visit_object


def record_visitor_of(kind: type) -> Visitor:
    """The same where roots hold records: data sets of torch and Hugging Face hold functions of the user."""
    name = kind.__module__
    data = isinstance(name, str) and (name.startswith("torch.utils.data") or in_packages(name, HUGGING_FACE_DATA))
    return visit_object if data and not issubclass(kind, type) else visitor_of(kind)


def is_closed(kind: type) -> bool:
    """Whether objects of a class are not looked into."""
    name = kind.__module__
    if not isinstance(name, str):
        return True
    if in_packages(name, TORCH):
        return not name.startswith(TORCH_STATE)
    return in_packages(name, CLOSED)


def in_packages(name: str | None, packages: frozenset[str]) -> bool:
    """Whether a module is of one of the packages; without a name it is nobody's."""
    return name is not None and name.partition(".")[0] in packages


def visit_nothing(walk: Walk, value: Any) -> None:
    """Not looked into."""


def visit_dict(walk: Walk, value: dict[Any, Any]) -> None:
    walk.saved.append((restore_dict, value, dict(value)))
    if walk.looks_into(value):
        walk.enter(value.values())


def visit_list(walk: Walk, value: list[Any]) -> None:
    walk.saved.append((restore_list, value, list(value)))
    visit_items(walk, value)


def visit_deque(walk: Walk, value: deque[Any]) -> None:
    walk.saved.append((restore_deque, value, tuple(value)))
    visit_items(walk, value)


def visit_set(walk: Walk, value: set[Any]) -> None:
    walk.saved.append((restore_set, value, frozenset(value)))
    visit_items(walk, value)


def visit_items(walk: Walk, value: Any) -> None:
    if walk.looks_into(value):
        walk.enter(value)


def visit_bytes(walk: Walk, value: bytearray | array[Any]) -> None:
    if len(value) <= MOST_BYTES:
        walk.saved.append((restore_list, value, value[:]))


def visit_member(walk: Walk, value: Enum) -> None:
    """A member of an enumeration: its attributes, and nothing behind them."""
    walk.saved.append((restore_dict, value.__dict__, dict(value.__dict__)))
    if isinstance(value, BASES):
        visit_base_only(walk, value)


def visit_generator(walk: Walk, value: Held) -> None:
    walk.generators.append(value)


def visit_array(walk: Walk, value: np.ndarray[Any, Any]) -> None:
    if value.nbytes <= MOST_BYTES and value.flags.writeable:
        walk.saved.append((restore_array, value, value.copy()))


def visit_view(walk: Walk, value: memoryview) -> None:
    walk.enter((value.obj,))


def visit_partial(walk: Walk, value: partial[Any]) -> None:
    walk.enter((value.func, value.args, value.keywords, value.__dict__))


def visit_method(walk: Walk, value: MethodType) -> None:
    walk.enter((value.__self__, value.__func__))


def visit_wrapped(walk: Walk, value: Any) -> None:
    walk.enter((value.__func__,))


def visit_property(walk: Walk, value: property) -> None:
    walk.enter((value.fget, value.fset))


def visit_cell(walk: Walk, value: CellType) -> None:
    content = MISSING if is_empty(value) else value.cell_contents
    walk.saved.append((restore_cell, value, content))
    walk.enter((content,) if content is not MISSING else ())


def visit_function(walk: Walk, value: FunctionType) -> None:
    """Defaults, attributes, closure, and the global variables that the user's code names."""
    walk.saved.append((restore_function, value, (value.__defaults__, value.__kwdefaults__)))
    walk.enter((value.__dict__, value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ())))
    if walk.searching and not in_packages(value.__module__, NOT_SEARCHED):
        names, attributes = names_in(value.__code__)
        for name in names:
            walk.enter_global(value.__globals__, name, attributes)


@lru_cache(maxsize=1 << 12)
def names_in(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Global names that code and the functions inside it use, and all names, attributes included."""
    inside = [names_in(c) for c in code.co_consts if isinstance(c, CodeType)]
    mine = [i.argval for i in dis.get_instructions(code) if i.opname in NAMES]
    names = dict.fromkeys([*mine, *(name for one, _ in inside for name in one)])
    attributes = dict.fromkeys([*code.co_names, *(name for _, other in inside for name in other)])
    return tuple(names), tuple(attributes)


def visit_class(walk: Walk, value: type) -> None:
    """Attributes of the user's classes, and what their functions name."""
    if in_packages(value.__module__, NOT_SEARCHED) or not walk.searching:
        return
    own = {name: held for name, held in vars(value).items() if not is_special(name, held)}
    walk.saved.append((restore_class, value, own))
    walk.enter((*own.values(), *value.__bases__))
    walk.enter(held for held in vars(value).values() if type(held) is FunctionType)


def is_special(name: str, held: Any) -> bool:
    """Whether an attribute of a class is the interpreter's."""
    return (name.startswith("__") and name.endswith("__")) or name == "_abc_impl" or type(held) is MemberDescriptorType


def visit_module(walk: Walk, value: nn.Module) -> None:
    """A module: everything is in its attributes."""
    own, kind = value.__dict__, type(value)
    walk.saved.append((restore_object, value, (kind, own)))
    visit_dict(walk, own)
    walk.enter((kind,))


def visit_object(walk: Walk, value: Any) -> None:
    """An object: its class, its attributes and slots, and what it holds if it is a container as well."""
    kind = type(value)
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        walk.saved.append((restore_object, value, (kind, own)))
        walk.enter((own,))
    for slot in slots_of(kind):
        held = slot_value(slot, value)
        walk.saved.append((restore_slot, (slot, value), held))
        walk.enter((held,) if held is not MISSING else ())
    if isinstance(value, BASES):
        visit_base_only(walk, value)
    walk.enter((kind,))


def visit_base_only(walk: Walk, value: Any) -> None:
    """An object of a class derived from a container: what the container holds."""
    if not walk.records:
        next(visit for base, visit in BASE_VISITORS if isinstance(value, base))(walk, value)


def slots_of(kind: type) -> list[Any]:
    """Descriptors of the slots of a class."""
    return [
        held for base in kind.__mro__ if not is_closed(base) for held in vars(base).values()
        if type(held) is MemberDescriptorType
    ]  # fmt: skip


def slot_value(slot: Any, value: Any) -> Any:
    """What a slot holds, or that it holds nothing."""
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISSING


class TensorState(NamedTuple):
    """What is kept of a tensor; ``memory`` is another tensor that lies where it lay."""

    memory: Tensor | None
    is_leaf: bool
    requires_grad: bool
    grad: Tensor | None
    hooks: Any
    late_hooks: Any


def visit_tensor(walk: Walk, value: Tensor) -> None:
    if is_lazy(value):
        return
    leaf = value.is_leaf
    grad = value.grad if leaf else None
    memory = value.data if is_plain(value) else None
    hooks, late = value._backward_hooks, value._post_accumulate_grad_hooks
    before = TensorState(memory, leaf, value.requires_grad, grad, hooks, late)
    walk.saved.append((restore_tensor, value, before))
    walk.tensors.append(value)
    walk.enter((grad, value.__dict__, hooks, late))


def is_plain(value: Tensor) -> bool:
    """Whether a tensor can point to other memory: no sparse one, none that is made of others."""
    return value.layout is torch.strided and type(value).__torch_dispatch__ is Tensor.__torch_dispatch__


def visit_script(walk: Walk, value: Any) -> None:
    """A scripted module holds its attributes in C++; lists and dicts are read and set as copies."""
    names = value._concrete_type.get_attributes()
    held = {name: value._c.getattr(name) for name in names if value._c.hasattr(name)}
    walk.saved.append((restore_script, value, held))
    walk.enter(held.values())
    walk.enter(value._modules.values())


def restore_dict(now: dict[Any, Any], before: dict[Any, Any]) -> None:
    if len(now) == len(before) and all(map(is_, now.values(), before.values())) and all(map(is_, now, before)):
        return
    if isinstance(now, OrderedDict):
        OrderedDict.clear(now)
        for key, value in before.items():
            OrderedDict.__setitem__(now, key, value)
    else:
        dict.clear(now)
        dict.update(now, before)


def restore_list(now: Any, before: Any) -> None:
    if not same_items(now, before):
        now[:] = before


def restore_deque(now: deque[Any], before: tuple[Any, ...]) -> None:
    if not same_items(now, before):
        now.clear()
        now.extend(before)


def same_items(now: Any, before: Any) -> bool:
    """Whether two sequences hold the same objects in the same order."""
    return len(now) == len(before) and all(map(is_, now, before))


def restore_set(now: set[Any], before: frozenset[Any]) -> None:
    if now != before:
        now.clear()
        now.update(before)


def restore_array(now: np.ndarray[Any, Any], before: np.ndarray[Any, Any]) -> None:
    if now.shape != before.shape:
        now.resize(before.shape, refcheck=False)
    now[...] = before


def restore_cell(cell: CellType, before: Any) -> None:
    if before is not MISSING:
        cell.cell_contents = before
    elif not is_empty(cell):
        del cell.cell_contents


def restore_function(function: FunctionType, before: tuple[Any, Any]) -> None:
    function.__defaults__, function.__kwdefaults__ = before


def restore_item(place: tuple[dict[str, Any], str], before: Any) -> None:
    space, name = place
    if before is MISSING:
        space.pop(name, None)
    elif space.get(name, MISSING) is not before:
        space[name] = before


def restore_class(kind: type, before: dict[str, Any]) -> None:
    for name, held in list(vars(kind).items()):
        if name not in before and not is_special(name, held):
            type.__delattr__(kind, name)
    for name, held in before.items():
        if vars(kind).get(name, MISSING) is not held:
            type.__setattr__(kind, name, held)


def restore_object(thing: Any, before: tuple[type, dict[str, Any]]) -> None:
    kind, own = before
    if type(thing) is not kind:
        object.__setattr__(thing, "__class__", kind)
    if thing.__dict__ is not own:
        object.__setattr__(thing, "__dict__", own)


def restore_slot(place: tuple[Any, Any], before: Any) -> None:
    slot, thing = place
    now = slot_value(slot, thing)
    if before is MISSING and now is not MISSING:
        slot.__delete__(thing)
    elif now is not before:
        slot.__set__(thing, before)


def restore_tensor(now: Tensor, before: TensorState) -> None:
    memory = before.memory
    if memory is not None and not lies_in(now, memory):
        now.data = memory
    if before.is_leaf:
        restore_leaf(now, before)
    if now._backward_hooks is not before.hooks:
        now._backward_hooks = before.hooks
    late = now._post_accumulate_grad_hooks
    if late is not before.late_hooks:
        if late is not None:
            late.clear()  # torch goes on calling what was registered, whatever the attribute is set to
        now._post_accumulate_grad_hooks = before.late_hooks


def lies_in(now: Tensor, memory: Tensor) -> bool:
    """Whether a tensor lies where and as the other does."""
    return (
        now.data_ptr() == memory.data_ptr()
        and now.dtype is memory.dtype
        and now.shape == memory.shape
        and now.stride() == memory.stride()
    )


def restore_leaf(now: Tensor, before: TensorState) -> None:
    """A leaf that an operation wrote into is the result of that operation; it becomes a leaf again."""
    if not now.is_leaf and not now._is_view():
        now.detach_()
    if now.is_leaf and now.requires_grad is not before.requires_grad:
        now.requires_grad_(before.requires_grad)
    if now.is_leaf and now.grad is not before.grad:
        now.grad = before.grad


def restore_script(module: Any, before: dict[str, Any]) -> None:
    for name, held in before.items():
        if module._c.getattr(name) is not held:
            module._c.setattr(name, held)


BASE_VISITORS: tuple[tuple[type, Visitor], ...] = (
    (dict, visit_dict), (list, visit_list), (deque, visit_deque), (set, visit_set), (tuple, visit_items),
    (partial, visit_partial), (bytearray, visit_bytes), (array, visit_bytes), (np.ndarray, visit_array),
)  # fmt: skip
BASES = tuple(base for base, _ in BASE_VISITORS)
VISITORS: dict[type, Visitor] = {
    **dict(BASE_VISITORS),
    **dict.fromkeys(PLAIN, visit_nothing),
    OrderedDict: visit_dict,
    memoryview: visit_view,
    MethodType: visit_method,
    FunctionType: visit_function,
    CellType: visit_cell,
    staticmethod: visit_wrapped,
    classmethod: visit_wrapped,
    property: visit_property,
    type: visit_class,
    Tensor: visit_tensor,
    nn.Parameter: visit_tensor,
    **dict.fromkeys((torch.Generator, random.Random, np.random.Generator, np.random.RandomState), visit_generator),
}
RECORD_VISITORS: dict[type, Visitor] = dict.fromkeys((Tensor, np.ndarray, bytearray, array), visit_nothing)


@contextmanager
def preserve(snapshot: StateSnapshot) -> Iterator[WriteGuard]:
    """Restore a snapshot, and all memory that was written, on the way out, exception or not."""
    guard = WriteGuard()
    try:
        with watch_writes(guard, snapshot.tensors):
            yield guard
    finally:
        snapshot.restore()
        guard.restore()


@contextmanager
def preserve_state(*roots: Any) -> Iterator[WriteGuard]:
    """Leave models, losses and whatever else ``roots`` hold as they were, exception or not.

    Example:
        >>> model, seen = nn.Linear(2, 1), []
        >>> with preserve_state(model, seen):
        ...     seen.append(1)
        ...     _ = model.weight.data.fill_(0.0)
        >>> seen, bool(model.weight.any())
        ([], True)
    """
    with preserve(StateSnapshot.of(*roots)) as guard:
        yield guard


@contextmanager
def preserve_structure(*roots: Any) -> Iterator[None]:
    """The same for work that is known to write into no memory that was there before."""
    snapshot = StateSnapshot.of(*roots)
    try:
        yield
    finally:
        snapshot.restore()


def generators_of(*roots: Any) -> tuple[Held, ...]:
    """The generators that data sets and their functions hold, or name."""
    return tuple(Walk(roots, records=True).generators)


def modules_of(*roots: Any) -> list[nn.Module]:
    """Every module of models and losses, once."""
    return list({module: None for top in tops(*roots) for module in top.modules()})


def tops(*roots: Any) -> list[nn.Module]:
    """Models and losses that are modules, also those behind partials, methods and closures."""
    found: list[nn.Module] = []
    waiting, seen = list(roots), set[int]()
    while waiting:
        root = waiting.pop(0)
        if id(root) in seen:
            continue
        seen.add(id(root))
        if isinstance(root, nn.Module):
            found.append(root)
        elif isinstance(root, partial):
            waiting += [root.func, *root.args, *root.keywords.values()]
        elif isinstance(root, MethodType):
            waiting += [root.__self__]
        elif isinstance(root, FunctionType):
            waiting += [cell.cell_contents for cell in root.__closure__ or () if not is_empty(cell)]
    return found


def is_empty(cell: Any) -> bool:
    """Whether a closure's variable has no value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def refuse_trained_loss(model: nn.Module, loss_fn: Any) -> None:
    """Refuse a loss that holds parameters to be trained: no engine would clip their gradients.

    Parameters are found wherever the loss holds them: in modules, attributes, lists, closures and partials; those of
    the model are none of the loss's. Global variables are not searched.
    """
    own = {id(p) for p in model.parameters()}
    held = Walk((loss_fn,), searching=False).tensors
    found = [p for p in held if isinstance(p, nn.Parameter) and p.requires_grad and id(p) not in own]
    if found:
        raise UnsupportedModel(
            f"the loss has {len(found)} parameter(s) of its own to be trained (shapes "
            f"{', '.join(str(tuple(p.shape)) for p in found[:4])}), which would never be. Remedy: make it part of the "
            "model, or call requires_grad_(False) on it."
        )


@contextmanager
def answer_capturing(answer: bool) -> Iterator[None]:
    """Answer models that ask whether they are being captured."""
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: answer
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


def run_eagerly() -> AbstractContextManager[Any]:
    """Run what torch.compile made as it was written: compiled code cannot be watched."""
    loaded = "torch._dynamo" in sys.modules  # if it is not, nothing was compiled
    return torch.compiler.set_stance("force_eager") if loaded else nullcontext()
