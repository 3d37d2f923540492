"""The form of a chunk of records: what is public of it, and how a chunk is brought to it or found to be another."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")


class Differs(Exception):
    """A chunk has not the public form; it never leaves the reading of records."""


def brought(tree: Any, form: Any, *, joint: bool) -> Any:
    """The chunk in the public form: the same keys, counts and dimensions, with its tensors in the form's types.

    Sizes are free, as sequences have lengths. A type is changed only where torch casts it (never 0.5 to a whole
    number, never a complex number to a real one).

    Guarantee:
        In a ``joint`` chunk of several records, a type narrower than the form's is another form: one record may have
        rounded the others. A wider one is cast back, which is exact for records that had the form's type.

    Example:
        >>> brought([torch.zeros(2, 3, dtype=torch.float64)], [torch.zeros(1, 5)], joint=True)[0].dtype
        torch.float32
    """
    if isinstance(form, Tensor):
        return _tensor(tree, form, joint)
    if isinstance(form, Mapping):
        if not isinstance(tree, Mapping) or set(tree) != set(form):
            raise Differs
        twin: Any = copy.copy(tree)
        for key in form:
            twin[key] = brought(tree[key], form[key], joint=joint)
        return twin
    if _opaque(form) or _opaque(tree):
        if not (_opaque(form) and _opaque(tree)):
            raise Differs
        return tree
    if len(tree) != len(form):
        raise Differs
    values = [brought(part, like, joint=joint) for part, like in zip(tree, form, strict=True)]
    return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)


def _tensor(tree: Any, form: Tensor, joint: bool) -> Tensor:
    if not isinstance(tree, Tensor) or tree.is_meta:
        raise Differs
    same = tree.dim() == form.dim() and tree.layout == form.layout
    wide = not joint or torch.promote_types(tree.dtype, form.dtype) == tree.dtype
    if not (same and wide and torch.can_cast(tree.dtype, form.dtype)):
        raise Differs
    return tree.detach().to(form.dtype)


def _opaque(tree: Any) -> bool:
    """What holds no tensor, such as a list of strings: its length is the number of records, not its form."""
    if isinstance(tree, tuple | list):
        return all(not isinstance(part, Tensor | Mapping) and _opaque(part) for part in tree)
    return not isinstance(tree, Tensor | Mapping)


def quietly(make: Callable[[], Made]) -> Made | None:
    """What is made, or None if that raises: an exception that depends on a record is never seen."""
    try:
        with silent():
            return make()
    except Exception:
        return None


@contextmanager
def silent() -> Iterator[None]:
    """No warning is shown or raised, as it would tell of a record."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
