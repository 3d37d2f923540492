"""The run folder of a fit that can go on after a crash: its arguments inside, its key in a secret file outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dpilot.errors import InvalidInput
from dpilot.fit.declaration import Declaration
from dpilot.fit.keys import FitKeys
from dpilot.fit.model import FIT
from dpilot.keys import fresh_key
from dpilot.noise import NOT_HARDENED, seeded_noise
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.store import MANIFEST
from dpilot.train.checkpoint.witness import AGAIN, WitnessLog, read_private
from dpilot.train.payment import LEDGER
from dpilot.train.trainer import secret_path

__all__ = ["ARGUMENTS", "FitFolder", "open_folder", "read_arguments"]

ARGUMENTS: Final = "arguments.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class FitFolder:
    """A folder that holds an unfinished fit, its randomness, and, where it goes on, the log of what it released."""

    path: Path
    keys: FitKeys
    log: WitnessLog
    resumed: bool
    delta: float  # what the fit takes of its ledger's: settled when it began, as the ledger has changed since

    def settle(self, declared: Declaration) -> Declaration:
        """What was declared, with the delta that the fit began with."""
        return replace(declared, budget=replace(declared.budget, delta=self.delta))

    def finish(self) -> None:
        """The fit is saved: nothing is left that could undo its noise."""
        files.remove(secret_path(self.path, None))
        self.log.delete()

    def discard(self) -> None:
        """The fit was stopped by what it found: there is nothing to go on with."""
        self.finish()
        files.remove(self.path / ARGUMENTS)


def read_arguments(folder: Path) -> dict[str, Any]:
    """The arguments of the unfinished fit in ``folder``, or InvalidInput that says what is there instead."""
    if (folder / FIT).exists():
        raise InvalidInput(f"{folder} holds a finished fit: there is nothing to go on with. dpilot.load reads it.")
    try:
        data = json.loads((folder / ARGUMENTS).read_text())
    except (OSError, json.JSONDecodeError) as problem:
        raise InvalidInput(f"{folder} holds no fit to go on with ({problem}): expected {ARGUMENTS}.") from None
    if not isinstance(data, dict) or data.pop("format", None) != _FORMAT:
        raise InvalidInput(f"{folder / ARGUMENTS} is not of format {_FORMAT}: a newer dpilot may have written it.")
    return data


@contextmanager
def open_folder(
    folder: Path, arguments: dict[str, Any], delta: float, *, resume: bool, test_seed: int | None = None
) -> Iterator[FitFolder]:
    """Begin a fit in an empty ``folder``, or go on with the one that was interrupted there.

    Guarantee:
        The key is on disk, for its owner only, before anything is paid. A fit goes on with the arguments that it began
        with, or not at all; one process at a time.

    Edge cases:
        a secret without arguments in the folder    is of a fit that paid nothing, or that was removed: it is replaced
    """
    secret = secret_path(folder, None)
    log = WitnessLog(secret.with_name(secret.name + ".releases"))
    stamp = NOT_HARDENED if test_seed is None else seeded_noise(test_seed).stamp
    if (folder / FIT).exists():  # a kill between saving it and this left what undoes its noise
        files.remove(secret)
        log.delete()
    check = _check_unfinished if resume else _check_empty
    check(folder, arguments)
    if not resume:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        log.open(fresh=not resume)  # first: of two that begin at once, one gets it
        check(folder, arguments)  # again: what another process did before it let go of the log
        if resume:
            key, delta = _read_secret(secret)
        else:
            key = fresh_key("fit") if test_seed is None else seeded_noise(test_seed).state.key
            kept = {"format": _FORMAT, "key": key.hex(), "delta": delta}
            files.write(secret, json.dumps(kept).encode(), mode=0o600)
            # last: with the arguments on disk the fit can go on
            files.write(folder / ARGUMENTS, json.dumps({"format": _FORMAT, **arguments}, indent=1).encode())
        yield FitFolder(folder, FitKeys.of(key, stamp=stamp, witness=log), log, resume, delta)
    finally:
        log.close()


def _read_secret(path: Path) -> tuple[bytes, float]:
    kept = read_private(path)
    try:
        return bytes.fromhex(kept["key"]), float(kept["delta"])
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(f"{path} is not the secret of a fit. {AGAIN}") from None


def _check_unfinished(folder: Path, arguments: dict[str, Any]) -> None:
    if read_arguments(folder) != arguments:
        raise InvalidInput(f"{folder} holds a fit with other arguments: expected those it began with.")


def _check_empty(folder: Path, arguments: dict[str, Any]) -> None:
    del arguments
    held = any((folder / name).exists() for name in (ARGUMENTS, FIT, MANIFEST))
    if not held and (folder / LEDGER).exists():
        raise InvalidInput(
            f"{folder} holds the ledger of a fit that was stopped by its health check: expected an empty folder, as "
            "what is left of that ledger cannot pay for a whole fit. Name another folder."
        )
    if held:
        raise InvalidInput(
            f"{folder} holds a fit or a run: go on with it (dpilot fit --resume {folder}), or name another folder."
        )
