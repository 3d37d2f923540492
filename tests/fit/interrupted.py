"""Fits to be killed: in a forked child, by SIGKILL, at a chosen operation on disk or at a random moment."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpilot import Ledger
from dpilot.fit.model import FittedModel
from dpilot.fit.table import fit_table
from dpilot.privacy.ledger.book import Page
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.witness import WitnessLog
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema

SIZE = 80
CASES: dict[str, dict[str, Any]] = {
    "auto, classes": {"model": "auto", "epochs": 3, "size": "private"},
    "auto, numbers": {"model": "auto"},
    "grids": {"model": "grids", "epochs": 3},
    "logistic": {"model": "logistic", "epochs": 1},
}
ROWS = ((Page, "append"),)
DISK = (*ROWS, (WitnessLog, "note"), (files, "write"), (files, "remove"))
"""Everything that a fit puts on disk or takes from it."""


def fit(case: str, folder: Path, *, resume: bool = False, data: Any = None, **options: Any) -> FittedModel:
    numbers = case == "auto, numbers"
    table = (numeric_frame(SIZE) if numbers else frame(SIZE)) if data is None else data
    given = {"epsilon": 2.0, "delta": 1e-4, "test_seed": 5, "stop_below": 0.0, **CASES[case], **options}
    return fit_table(table, numeric_schema() if numbers else SCHEMA, run_folder=folder, resume=resume, **given)


def result(folder: Path) -> dict[str, Any]:
    """All that a finished fit left, but for times of day, their hashes, and the numbers of rows: resuming adds some."""
    record = json.loads((folder / "fit.json").read_text())
    del record["privacy"]["head"]
    for row in record["ledger"]:
        del row["time"], row["seq"]
    book = Ledger.read(folder / "ledger")
    book.verify()
    entries = [(each.purpose, each.event, each.part, each.split, each.state) for each in book.entries()]
    model = [(folder / name).read_bytes() for name in ("model.safetensors", "encoder.json", "schema.toml")]
    return {"record": record, "spent": book.spent(), "entries": entries, "model": model}


def left_behind(folder: Path) -> list[str]:
    """Secrets beside the folder."""
    return [path.name for path in folder.parent.glob(f".{folder.name}*")]


def fork(work: Callable[[], Any]) -> int:
    """The id of a child that does ``work`` and leaves without cleaning up."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def wait(child: int) -> bool:
    """Whether the child was killed; else it came to its end."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def count(work: Callable[[], Any], operations: Any, monkeypatch: Any) -> int:
    """How many of ``operations`` there are in ``work``."""
    seen: list[int] = []
    with monkeypatch.context() as patch:
        for owner, name in operations:
            patch.setattr(owner, name, _watched(getattr(owner, name), lambda: seen.append(1), lambda: None))
        work()
    return len(seen)


def kill_at(work: Callable[[], Any], place: int, operations: Any, *, after: bool) -> bool:
    """Do ``work`` in a child that is killed before or after the operation number ``place``; whether it came to it."""

    def disturbed() -> None:
        left = [place]

        def come() -> None:
            left[0] -= 1
            if left[0] < 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)

        def gone() -> None:
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        for owner, name in operations:
            setattr(owner, name, _watched(getattr(owner, name), come, gone))
        work()

    return wait(fork(disturbed))


def kill_after(work: Callable[[], Any], seconds: float) -> bool:
    """Do ``work`` in a child that is killed after some time; whether it was still at it."""
    child = fork(work)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return wait(child)


def _watched(original: Any, come: Callable[[], Any], gone: Callable[[], Any]) -> Any:
    def call(*given: Any, **named: Any) -> Any:
        come()
        found = original(*given, **named)
        gone()
        return found

    return call
