"""Work on records of which nothing is seen: no warning, no logged line, no exception."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Made = TypeVar("Made")


def try_quietly(make: Callable[[], Made]) -> Made | None:
    """What is made, or None if that raises (SystemExit too): an exception that depends on a record is never seen."""
    try:
        with keep_quiet():
            return make()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


@contextmanager
def keep_quiet() -> Iterator[None]:
    """No warning is shown or raised and no line logged, as it would tell of a record (tokenizers log long texts)."""
    before = logging.root.manager.disable
    if before < sys.maxsize:  # which takes as long as reading a record
        logging.disable(sys.maxsize)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before < sys.maxsize:
            logging.disable(before)
