"""Objects of the user's that are named on the command line."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from dpilot.errors import InvalidInput


def load_object(name: str) -> Any:
    """MODULE:NAME, from the working folder or what is installed."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise InvalidInput(f"{name!r} names no object: expected MODULE:MODEL, such as my_package.models:Net.")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)  # the user's own, named at run time
    except (ImportError, AttributeError) as problem:
        raise InvalidInput(f"{name!r} cannot be loaded ({problem}): expected MODULE:NAME from this folder.") from None
    finally:
        sys.path.pop(0)
