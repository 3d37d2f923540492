"""Everything a run lets out, gathered so that two runs can be compared."""

from __future__ import annotations

import io
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any, Final

import numpy as np

from dpilot._arrays import is_tensor
from dpilot.privacy.notices import count_apart
from dpilot.tape import Tape, tape

__all__ = ["RETURNED", "Diverged", "Observation", "observe", "plain"]

RETURNED: Final = "returned"
"""How a run ended that raised nothing."""


class Diverged(BaseException):
    """A replayed run asks for a release that was never recorded. Not an Exception, so that no run can swallow it."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What came out of one run besides its releases, in comparable form."""

    ending: str
    value: object
    log: tuple[str, ...]
    warned: tuple[str, ...]
    printed: str
    errors_printed: str
    files: Mapping[str, str]


def observe(
    run: Callable[[Any], Any], data: Any, listener: Tape, *, folder: Path, opaque: Sequence[str]
) -> Observation:
    """Run in an empty ``folder`` of its own, with fixed global seeds and a tape, and gather what comes out."""
    lines = _Lines()
    out, err = io.StringIO(), io.StringIO()
    with (
        _fresh(folder),
        _fixed_seeds(),
        count_apart(),
        _capture_log(lines),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        with redirect_stdout(out), redirect_stderr(err), tape(listener):
            ending, value = _outcome(run, data)
        files = _digests(folder, opaque)
    messages = tuple(f"{each.category.__name__}: {each.message}" for each in warned)
    return Observation(ending, value, tuple(lines.messages), messages, out.getvalue(), err.getvalue(), files)


def plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """``value`` as nested tuples that compare equal when it is the same bit for bit (nan equals nan)."""
    inside = (*above, id(value))
    if id(value) in above:
        return "the same again"
    if is_tensor(value):
        return ("tensor", *plain(value.detach().cpu().numpy(), inside))
    if isinstance(value, np.ndarray | np.generic):
        content = value.tolist() if value.dtype == object else value.tobytes()
        return type(value).__name__, str(value.dtype), value.shape, plain(content, inside)
    if isinstance(value, Mapping):
        return "mapping", tuple((plain(k, inside), plain(v, inside)) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return "set", tuple(sorted(repr(plain(each, inside)) for each in value))
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(plain(each, inside) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, tuple((f.name, plain(getattr(value, f.name), inside)) for f in fields(value))
    contents = _contents(value)
    return (type(value).__name__, plain(contents, inside)) if contents else _text(value)


def _contents(value: Any) -> dict[str, object]:
    """What an object holds, which need not be what it shows: a model shows its layers, and holds their weights."""
    if isinstance(value, type | ModuleType | FunctionType | PurePath | Enum):
        return {}
    if callable(getattr(value, "state_dict", None)):
        return dict(value.state_dict())
    if callable(getattr(value, "to_numpy", None)):
        return {"columns": list(getattr(value, "columns", ())), "values": value.to_numpy()}
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(value, name) for name in (*slots, *getattr(value, "__dict__", {})) if hasattr(value, name)}


def _text(value: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # where an object lies is no part of what it is


def _outcome(run: Callable[[Any], Any], data: Any) -> tuple[str, object]:
    try:
        return RETURNED, plain(run(data))
    except SystemExit as leaving:
        return f"exited with {leaving.code!r}", None
    except Diverged:
        return "stopped, as its releases went another way", None
    except Exception as problem:
        return f"raised {type(problem).__name__}: {problem}", None


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(level=1)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.name} {record.levelname}: {record.getMessage()}")


@contextmanager
def _capture_log(lines: _Lines) -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    root.addHandler(lines)
    root.setLevel(1)
    try:
        yield
    finally:
        root.removeHandler(lines)
        root.setLevel(level)


@contextmanager
def _fresh(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


@contextmanager
def _fixed_seeds() -> Iterator[None]:
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
    random.seed(0)
    np.random.seed(0)
    if torch:
        torch.manual_seed(0)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch:
            torch.set_rng_state(states[2])


def _digests(folder: Path, opaque: Sequence[str]) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _digest(path, opaque) for path in paths}


def _digest(path: Path, opaque: Sequence[str]) -> str:
    return "opaque" if any(fnmatch(path.name, each) for each in opaque) else sha256(path.read_bytes()).hexdigest()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder whose name is the same for both runs, so that a message may name it."""
    with tempfile.TemporaryDirectory(prefix="dpilot-replay-") as top:
        yield Path(top).resolve() / "run"
