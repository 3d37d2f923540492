"""Held-out records as a trained model sees them: in the public form, in chunks by place, none changing another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpilot.errors import InvalidInput
from dpilot.train.form import quietly
from dpilot.train.reading import Reader, known_form

__all__ = ["held_out_form", "told", "training_form"]

_ROWS: Final = 512

Made = TypeVar("Made")


def training_form(dataset: Any, example: Any) -> Any:
    """A chunk in the public form of the records (x, y, ...): ``example``, or what the types of ``dataset`` tell.

    Guarantee:
        No record is read. A form that only a record could show is refused: that record would decide what the others
        are read as.
    """
    form = known_form(dataset, None) if example is None else example
    if form is None:
        kind = type(getattr(dataset, "dataset", dataset)).__name__
        raise InvalidInput(
            f"a {kind} does not show the form of its records before one is read: expected example=, a public batch "
            "such as (torch.zeros(1, 3), torch.zeros(1, dtype=torch.long)), or a TensorDataset."
        )
    label = form[1] if isinstance(form, tuple | list) and len(form) > 1 else None
    if not isinstance(label, Tensor) or label.dim() != 1:
        raise InvalidInput(
            "the records have not the form (x, y) with y one class: expected that, or an example= of it."
        )
    return form


def held_out_form(dataset: Any, form: Any, *, grouped: bool) -> Any:
    """The form of held-out records: what their types tell, or that of training records with their group, if any."""
    known = known_form(dataset, None)
    if known is not None:
        return known
    return (*form, torch.zeros_like(form[1])) if grouped and len(form) == 2 else form


def told(dataset: Any, form: Any, tell: Callable[[Any], Made]) -> Iterator[Made]:
    """What ``tell(chunk)`` makes of the records, some at a time; alone where they do not compute together.

    Guarantee:
        Which records go together is decided by their places. A record of another form, or for which ``tell`` raises
        when it is alone, is the null record.
    """
    reader = Reader(dataset, None, form)
    starts = range(0, len(dataset), _ROWS)
    for chunk in reader.chunks(np.arange(start, min(start + _ROWS, len(dataset))) for start in starts):
        together = quietly(partial(tell, chunk.whole))
        if together is not None:
            yield together
            continue
        alone = (quietly(partial(tell, single)) for single in chunk.alone())
        yield from (made for made in alone if made is not None)
