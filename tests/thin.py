"""Long lists of cases: some of them run in ``make test``, all of them in the slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def thin(cases: Iterable[Any], every: int) -> list[Any]:
    """Cases for ``parametrize``, of which one in ``every``, the first included, is not marked slow."""
    return [case if i % every == 0 else _slow(case) for i, case in enumerate(cases)]


def thin_product(every: int, *lists: Iterable[Any]) -> list[Any]:
    """All combinations of lists, the last one changing fastest, thinned. Where ``every`` shares no factor with the
    length of the last list, all of its values stay."""
    return thin(list(product(*lists)), every)


def thin_mark(mark: pytest.MarkDecorator, every: int) -> pytest.MarkDecorator:
    """The same of a ``parametrize`` that another library made."""
    names, cases = mark.args
    return pytest.mark.parametrize(names, thin(cases, every), **mark.kwargs)


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):  # made by pytest.param
        return pytest.param(*case.values, id=case.id, marks=(*case.marks, pytest.mark.slow))
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
