"""The form of a chunk of records: what is public of it, and how a chunk is brought to it or found to be another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpilot.engine import batch as batches

Made = TypeVar("Made")


class Differs(Exception):
    """A chunk has not the public form; it never leaves the reading of records."""


def brought(tree: Any, form: Any, *, joint: bool) -> Any:
    """The chunk in the public form: its containers, keys and their order, counts, dimensions and types.

    Sizes are free, as sequences have lengths. A type is changed only where torch casts it (never 0.5 to a whole
    number, never a complex number to a real one).

    Guarantee:
        Nothing of how the first record was written (the order of its keys, a list for a tuple) stays in the chunk. In
        a ``joint`` chunk of several records, a type narrower than the form's is another form: one record may have
        rounded the others. A wider one is cast back, which is exact for records that had the form's type.

    Edge cases:
        keys that the form lacks    another form if ``joint``; left out of a record alone, as they are where records
                                    before it have not got them: what a record counts for must not depend on them

    Example:
        >>> brought([torch.zeros(2, 3, dtype=torch.float64)], [torch.zeros(1, 5)], joint=True)[0].dtype
        torch.float32
        >>> one = torch.ones(1)
        >>> list(brought({"b": one, "a": one}, {"a": one, "b": one}, joint=True))
        ['a', 'b']
    """
    if isinstance(form, Tensor):
        return _tensor(tree, form, joint)
    if isinstance(form, Mapping):
        return _mapping(tree, form, joint)
    if _opaque(form) or _opaque(tree):
        if not (_opaque(form) and _opaque(tree)):
            raise Differs
        return tree
    if not isinstance(tree, tuple | list) or len(tree) != len(form):
        raise Differs
    values = [brought(part, like, joint=joint) for part, like in zip(tree, form, strict=True)]
    return batches.sequence_like(form, values)


def _mapping(tree: Any, form: Mapping[Any, Any], joint: bool) -> Any:
    if not isinstance(tree, Mapping) or not set(form) <= set(tree) or (joint and len(tree) != len(form)):
        raise Differs
    return batches.mapping_like(form, {key: brought(tree[key], like, joint=joint) for key, like in form.items()})


def _tensor(tree: Any, form: Tensor, joint: bool) -> Tensor:
    if not isinstance(tree, Tensor) or tree.is_meta:
        raise Differs
    same = tree.dim() == form.dim() and tree.layout == form.layout
    wide = not joint or torch.promote_types(tree.dtype, form.dtype) == tree.dtype
    if not (same and wide and torch.can_cast(tree.dtype, form.dtype)):
        raise Differs
    made = tree.detach().to(form.dtype)
    return made.as_subclass(Tensor) if type(form) is Tensor else made


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
