"""What a forward pass could leave behind in a model or a loss, and how it is put back.

A buffer, or a parameter that is not trained, that remembers samples would be released without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dpilot.errors import UnsupportedModel

MOST = 1 << 20
"""Numbers in frozen parameters that are copied at every call, the smallest parameters first: state is small."""
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WRITES = (
    "the forward pass writes into frozen parameters ({names}), which would keep samples without noise. "
    "Remedy: do not write them, or keep what is written in a small buffer; {state}: make the model anew."
)


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


def buffers_of(modules: list[nn.Module]) -> list[Tensor]:
    """Every buffer, once."""
    return list({b: None for m in modules for b in m._buffers.values() if b is not None})


def frozen_in(modules: list[nn.Module]) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters that are not trained: those small enough to be copied at every call, and the others."""
    found = {p: None for m in modules for p in m._parameters.values() if p is not None and is_frozen(p)}
    small, large, total = list[Tensor](), list[Tensor](), 0
    for p in sorted(found, key=lambda p: p.numel()):
        total += p.numel()
        (small if total <= MOST else large).append(p)
    return small, large


def is_frozen(p: Tensor) -> bool:
    """Whether a parameter is not trained, and of a kind that can be read and written."""
    if p.requires_grad or is_lazy(p) or p.is_inference():
        return False
    return p.layout == torch.strided and type(p.data) is Tensor  # other kinds (quantised, sharded) cannot be copied so


@dataclass(frozen=True, slots=True)
class Kept:
    """Modules as they were: which buffers and parameters there are, where they lie, and what the small ones hold.

    No value is looked at, so no device is waited for, and a write that torch does not count (``.data``) is undone too.
    """

    places: Callable[[], None]
    held: list[tuple[Tensor, int, Tensor]]
    values: list[Tensor]
    large: dict[Tensor, tuple[int, Tensor]]

    @staticmethod
    def of(*roots: Any) -> Kept:
        modules = modules_of(*roots)
        small, large = frozen_in(modules)
        held = [(t, t._version, t.data) for t in buffers_of(modules) + small]
        memory = [once(data) for *_, data in held]
        values = [torch.empty_like(data) for data in memory]
        copied(values, memory)
        return Kept(places_kept(modules), held, values, {p: (p._version, p.data) for p in large})

    def put_back(self) -> None:
        """Undo what was done since, but for writes into the memory of large frozen parameters."""
        self.places()
        for t, _, memory in self.held:
            t.data = memory
        # what nothing wrote to stays good for a second backward pass: its copy is not counted
        into = [once(memory if t._version == version else t.detach()) for t, version, memory in self.held]
        copied(into, self.values)
        for p, (_, memory) in self.large.items():
            if p.data_ptr() != memory.data_ptr():
                p.data = memory

    def written(self) -> list[Tensor]:
        """Large frozen parameters that were written into, as far as torch counts."""
        return [p for p, (version, _) in self.large.items() if p._version != version]


def named_state(*roots: Any) -> dict[tuple[int, str], Tensor]:
    """Buffers and small frozen parameters, by the place of their root and their name."""
    small = {id(p) for p in frozen_in(modules_of(*roots))[0]}
    return {
        (place, f"{path}.{name}" if path else name): t
        for place, top in enumerate(tops(*roots))
        for path, module in top.named_modules()
        for held in (module._buffers, module._parameters)
        for name, t in held.items()
        if t is not None and (held is module._buffers or id(t) in small)
    }


def places_kept(modules: list[nn.Module]) -> Callable[[], None]:
    """A function that puts back which buffers and parameters the modules have."""
    own = [m for m in modules if not isinstance(m, torch.jit.ScriptModule)]  # a script can have no others
    held = [(m, dict(m._buffers), dict(m._parameters), set(m._non_persistent_buffers_set)) for m in own]
    scripts = [(m, dict(m._buffers.items())) for m in modules if isinstance(m, torch.jit.ScriptModule)]

    def put_back() -> None:
        for module, buffers, parameters, unsaved in held:
            module._non_persistent_buffers_set = set(unsaved)
            replace(module._buffers, buffers)
            replace(module._parameters, parameters)
        for module, buffers in scripts:
            for name, buffer in buffers.items():
                module._buffers[name] = buffer

    return put_back


def replace(now: dict[str, Any], before: dict[str, Any]) -> None:
    """The entries of before, in their order."""
    now.clear()
    now.update(before)


@contextmanager
def remembering_nothing(*roots: Any) -> Iterator[None]:
    """Put everything back; a large frozen parameter that was written into is emptied and the model refused."""
    kept = Kept.of(*roots)
    try:
        yield
    finally:
        kept.put_back()
        if written := kept.written():
            with torch.no_grad():
                for p in written:
                    p.zero_()
            raise UnsupportedModel(WRITES.format(names=names(roots, written), state="they were set to zero"))


def names(roots: tuple[Any, ...], chosen: list[Tensor]) -> str:
    """What parameters are called in their own modules."""
    ids = {id(p) for p in chosen}
    found = [(type(m).__name__, name) for m in modules_of(*roots) for name, p in m._parameters.items() if id(p) in ids]
    return ", ".join(f"{name!r} of {kind}" for kind, name in found)


@contextmanager
def refusing_writes(*roots: Any) -> Iterator[None]:
    """Refuse work on made-up samples that writes into large frozen parameters, also where torch does not count it."""
    kept = Kept.of(*roots)
    before = [checksum(p) for p in kept.large]
    yield
    kept.put_back()
    written = {id(p) for p in kept.written()}
    written |= {id(p) for p, total in zip(kept.large, before, strict=True) if checksum(p) != total}
    if written:
        chosen = [p for p in kept.large if id(p) in written]
        raise UnsupportedModel(WRITES.format(names=names(roots, chosen), state="made-up samples are in them now"))


def checksum(p: Tensor) -> int:
    """A number that changes with what a parameter holds: the sum of its bits as whole numbers."""
    bits = p.detach().flatten()
    bits = torch.view_as_real(bits).flatten() if bits.is_complex() else bits
    return int(bits.view(WHOLE[bits.element_size()]).sum(dtype=torch.int64))


def copied(into: list[Tensor], values: list[Tensor]) -> None:
    """Copy tensor by tensor, those of one type and device at once."""
    for kind in dict.fromkeys((t.dtype, t.device) for t in into):
        chosen = [j for j, t in enumerate(into) if (t.dtype, t.device) == kind]
        with torch.no_grad():
            torch._foreach_copy_([into[j] for j in chosen], [values[j] for j in chosen])


def once(t: Tensor) -> Tensor:
    """Every element in memory once: an expanded tensor cannot be written to."""
    if t.layout == torch.strided:
        for dimension, step in enumerate(t.stride()):
            t = t.narrow(dimension, 0, 1) if step == 0 and t.shape[dimension] > 1 else t
    return t
