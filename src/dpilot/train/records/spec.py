"""The form of a record: what is public of it, and how a record is brought to it or found to be another."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpilot.data.values import number
from dpilot.engine import batch as batches

Made = TypeVar("Made")


class SpecMismatch(Exception):
    """Records have not the public form; it never leaves the reading of records."""


def conform_to_spec(tree: Any, form: Any) -> tuple[Any, Tensor | None]:
    """Records collated to ``tree`` in the public ``form``, and which of them have other values, if any may.

    The form is a chunk of one record: its containers, keys and their order, counts, dimensions and types. Sizes are
    free, as sequences have lengths.

    Guarantee:
        Row by row. A value is kept as it is, whatever type its container has for the sake of another record: 1.0 and
        "1" are the whole number 1, 2 + 0j is the real number 2. A row with a value that the form's type does not hold
        (0.5 where whole numbers are) is marked; floats are rounded to the form's precision.
        Nothing of how a record was written (the order of its keys, a list for a tuple) stays in the chunk.

    Edge cases:
        keys that the form lacks    left out
        another structure           raises SpecMismatch

    Example:
        >>> whole, wrong = conform_to_spec([torch.tensor([1.0, 0.5])], [torch.zeros(1, dtype=torch.int64)])
        >>> whole[0].tolist(), wrong.tolist()
        ([1, 0], [False, True])
        >>> one = torch.ones(1)
        >>> list(conform_to_spec({"b": one, "a": one, "c": one}, {"a": one, "b": one})[0])
        ['a', 'b']
    """
    wrong: list[Tensor] = []
    made = _conform(tree, form, wrong)
    return made, torch.stack(wrong).any(0) if wrong else None


def _conform(tree: Any, form: Any, wrong: list[Tensor]) -> Any:
    if isinstance(form, Tensor):
        return _tensor(tree, form, wrong)
    if isinstance(form, Mapping):
        if not isinstance(tree, Mapping) or not set(form) <= set(tree):
            raise SpecMismatch
        return batches.mapping_like(form, {key: _conform(tree[key], like, wrong) for key, like in form.items()})
    if opaque(form) or opaque(tree):
        if not (opaque(form) and opaque(tree)):
            raise SpecMismatch
        return tree
    if not isinstance(tree, tuple | list) or len(tree) != len(form):
        raise SpecMismatch
    return batches.sequence_like(form, [_conform(part, like, wrong) for part, like in zip(tree, form, strict=True)])


def _tensor(tree: Any, form: Tensor, wrong: list[Tensor]) -> Any:
    if isinstance(tree, tuple | list) and form.dim() == 1 and opaque(tree):
        values = [number(each) for each in tree]  # texts, or numbers of a type that torch does not know
        tree = torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
    if not isinstance(tree, Tensor) or tree.is_meta or tree.dim() != form.dim() or tree.layout != form.layout:
        raise SpecMismatch
    tree = tree.detach()
    if tree.is_complex() and not form.is_complex():
        wrong.append(_rows(tree.imag != 0, form))
        tree = tree.real
    made = tree.to(form.dtype)
    if not (form.is_floating_point() or form.is_complex()) and made.dtype != tree.dtype:
        wrong.append(_rows(made.to(tree.dtype) != tree, form))
    return made.as_subclass(Tensor) if type(form) is Tensor else made


def _rows(wrong: Tensor, form: Tensor) -> Tensor:
    """Which records have an entry that is wrong: rows of what holds them; all of what one record shares."""
    held = form.dim() > 0 and form.shape[0] == 1
    return wrong.reshape(wrong.shape[0], -1).any(1) if held else wrong.any()[None]


def opaque(tree: Any) -> bool:
    """What holds no tensor, such as a list of strings: its length is the number of records, not its form."""
    if isinstance(tree, tuple | list):
        return all(not isinstance(part, Tensor | Mapping) and opaque(part) for part in tree)
    return not isinstance(tree, Tensor | Mapping)


def try_quietly(make: Callable[[], Made]) -> Made | None:
    """What is made, or None if that raises (SystemExit too): an exception that depends on a record is never seen."""
    try:
        with ignore_warnings():
            return make()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """No warning is shown or raised, as it would tell of a record."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
