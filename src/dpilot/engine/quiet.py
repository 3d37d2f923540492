"""torch.func warns when it must loop for lack of a batching rule; slow and right is what fallbacks are for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_batching_warnings() -> Iterator[None]:
    """Silence that one warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        yield
