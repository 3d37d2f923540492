"""Files that are whole or not there: written beside, synced, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpilot.errors import DpilotError
from dpilot.privacy.ledger.store import sync_folder


def write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace ``path`` by ``content``: after a crash it holds the old or the new, never half of one."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    with _clearly(path):
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def remove(path: Path) -> None:
    """Take a file away, if it is there."""
    with _clearly(path):
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            sync_folder(path.parent)


@contextmanager
def _clearly(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise DpilotError(
            f"{path} cannot be written ({problem.strerror or problem}): the run stops here, and what it reserved stays "
            "spent. Free the disk and go on from the last checkpoint, if there is one."
        ) from problem
