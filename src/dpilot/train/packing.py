"""Nested state as tensors plus JSON, and back: what an optimizer remembers, without executing anything."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from dpilot.errors import InvalidInput

Tensors = dict[str, Tensor]
_AS_REAL: Final = ".view_as_real"


def pack(tree: Any, prefix: str, tensors: Tensors) -> Any:
    """The tree as plain data; each tensor goes to ``tensors`` under a name that begins with ``prefix``.

    >>> import torch
    >>> held = {}
    >>> plain = pack({0: {"step": torch.tensor(3.0), "betas": (0.9, 0.999)}}, "optimizer", held)
    >>> list(held), unpack(plain, held)
    (['optimizer.0.step'], {0: {'step': tensor(3.), 'betas': (0.9, 0.999)}})
    """
    if isinstance(tree, Tensor):
        tensors[prefix] = tree.detach().cpu().contiguous().clone()
        return {"tensor": prefix}
    if isinstance(tree, dict):
        return {"dict": [[key, pack(value, f"{prefix}.{key}", tensors)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [pack(value, f"{prefix}.{place}", tensors) for place, value in enumerate(tree)]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise InvalidInput(f"{prefix} is a {type(tree).__name__}: expected tensors and plain data, as these can be stored.")


def unpack(plain: Any, tensors: Tensors) -> Any:
    """The inverse of pack."""
    if not isinstance(plain, dict) or len(plain) != 1:
        raise InvalidInput("a stored state cannot be understood: another dpilot may have written it.")
    ((kind, content),) = plain.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {key: unpack(value, tensors) for key, value in content}
        case "list":
            return [unpack(value, tensors) for value in content]
        case "tuple":
            return tuple(unpack(value, tensors) for value in content)
        case "value":
            return content
    raise InvalidInput(f"a stored state holds a {kind!r}: another dpilot may have written it.")


def stored(tensors: Tensors) -> Tensors:
    """The tensors as safetensors can hold them, on the CPU: a complex one as its real view, under a name that says so.

    >>> import torch
    >>> held = stored({"w": torch.ones(2, dtype=torch.complex128)})
    >>> list(held), restored(held)["w"].dtype
    (['w.view_as_real'], torch.complex128)
    """
    return {f"{name}{_AS_REAL}" if t.is_complex() else name: _plain(t) for name, t in tensors.items()}


def restored(tensors: Tensors) -> Tensors:
    """The inverse of stored. Complex numbers are copied: in a mapped file they may be misaligned, which crashes."""
    return {
        name.removesuffix(_AS_REAL): torch.view_as_complex(t.clone()) if name.endswith(_AS_REAL) else t
        for name, t in tensors.items()
    }


def _plain(tensor: Tensor) -> Tensor:
    found = tensor.detach().cpu()
    return (torch.view_as_real(found.resolve_conj()) if found.is_complex() else found).contiguous().clone()
