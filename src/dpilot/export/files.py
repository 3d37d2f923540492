"""One skops file of a whole fit, and whatever ``dpilot predict`` can read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.export.onnx_model import OnnxModel
from dpilot.fit.model import FittedModel, load_fit
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.statement import STATEMENT
from dpilot.train.run import Run

__all__ = ["load", "opened", "to_skops"]

_FORMAT: Final = "dpilot run folder 1"


def to_skops(model: Any, path: str | Path) -> Path:
    """Write a fit, a fitted estimator or a run to one skops file, its privacy statement inside and beside it.

    It holds the run folder as texts and bytes: skops trusts every type in it, and nothing is executed. ``load``,
    ``dpilot predict`` and ``dpilot verify`` read it.
    """
    skops = _skops()
    found = getattr(model, "fitted_", model)
    if not isinstance(found, FittedModel | Run):
        raise InvalidInput(f"the model is a {type(model).__name__}: expected a fit, a fitted estimator or a run.")
    with tempfile.TemporaryDirectory() as folder:
        where = found.save(Path(folder) / "run")
        held = {each.relative_to(where).as_posix(): each.read_bytes() for each in where.rglob("*") if each.is_file()}
    target = Path(path)
    files.write(target, skops.dumps({"format": _FORMAT, "files": held}))
    files.write(target.with_name(f"{target.name}.{STATEMENT}"), held[STATEMENT])
    return target


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """``path``, or where that is a skops file the run folder in it, for as long as it is looked at."""
    if path.suffix != ".skops":
        yield path
        return
    with _unpack(path) as folder:
        yield folder


@contextmanager
def _unpack(path: Path) -> Iterator[Path]:
    """The run folder that a skops file holds, for as long as it is looked at."""
    skops = _skops()
    try:
        held = skops.load(path, trusted=[])
        if held["format"] != _FORMAT:
            raise InvalidInput(f"its format is {held['format']!r}")
        names = {Path(name): content for name, content in held["files"].items()}
    except Exception as problem:  # skops raises types of its own, and what zip files raise
        raise InvalidInput(f"{path} holds no dpilot model ({problem}): expected what to_skops wrote.") from None
    if any(name.is_absolute() or ".." in name.parts for name in names):
        raise InvalidInput(f"{path} names files outside its folder: expected what to_skops wrote.")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in names.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_bytes(content)
        yield Path(folder)


def load(path: str | Path) -> FittedModel | OnnxModel:
    """A fit to predict with: a run folder, its safetensors file, or what ``to_onnx`` or ``to_skops`` wrote."""
    where = Path(path)
    if where.suffix == ".onnx":
        return OnnxModel.open(where)
    with opened(where) as folder:
        return load_fit(folder.parent if folder.suffix == ".safetensors" else folder)


def _skops() -> Any:
    try:
        import skops.io
    except ImportError:
        raise _validate.missing_extra("skops", "export") from None
    return skops.io
