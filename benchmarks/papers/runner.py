"""Runs cells: in any order, in processes, until the minutes are over; what is measured is never measured again."""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.datasets import Missing
from benchmarks.papers import lines as files
from benchmarks.papers import models
from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Figures
from benchmarks.papers.table import Table

Answer = tuple[Cell, Figures | None, float, str]


def _say(text: str) -> None:
    print(text, flush=True)


def run(
    tables: Sequence[Table],
    target: Path,
    *,
    device: str = "cpu",
    workers: int = 1,
    minutes: float | None = None,
    known: dict[str, Figures] | None = None,
    tell: Callable[[str], None] = _say,
) -> dict[str, Figures]:
    """Measure what ``tables`` still lack, append it to ``target``, and return all that is known.

    Edge cases:
        minutes are over     cells under way are given up, and begun again by the next call; one worker ends its own
        a cell that raises   is told, written nowhere, and left out until the next call
    """
    found = files.read(target.parent) if known is None else known
    stop = time.monotonic() + 60 * (1e6 if minutes is None else minutes)
    stamp, failed = _stamp(device), set[str]()

    def pending(taken: set[str]) -> Cell | None:
        for table in tables:
            for cell in table.cells(found):
                if cell.key not in found and cell.key not in taken and cell.key not in failed:
                    return cell
        return None

    def receive(answer: Answer) -> None:
        cell, figures, seconds, problem = answer
        if figures is None:
            failed.add(cell.key)
            tell(f"{cell.key}: {problem}")
            return
        found[cell.key] = figures
        files.write(target, cell, figures, seconds, stamp)
        tell(
            f"{seconds:6.1f} s {cell.data} {cell.method} {cell.epsilon:g} {dict(cell.settings)} {cell.seed}: "
            f"{_short(figures)}"
        )

    if workers == 1:
        while time.monotonic() < stop and (cell := pending(set())) is not None:
            receive(measure(cell, device))
    else:
        _run_together(pending, receive, device, workers, stop)
    return found


def _run_together(
    pending: Callable[[set[str]], Cell | None],
    receive: Callable[[Answer], None],
    device: str,
    workers: int,
    stop: float,
) -> None:
    """As many cells at a time as there are workers, each in a process that is kept."""
    answers: SimpleQueue[Answer] = SimpleQueue()
    taken = set[str]()
    pool = multiprocessing.get_context("spawn").Pool(workers)
    try:
        while time.monotonic() < stop:
            while len(taken) < workers and (cell := pending(taken)) is not None:
                taken.add(cell.key)
                pool.apply_async(measure, (cell, device), callback=answers.put)
            if not taken:
                return
            try:
                answer = answers.get(timeout=max(0.01, min(5.0, stop - time.monotonic())))
            except Empty:
                continue
            taken.discard(answer[0].key)
            receive(answer)
    finally:
        pool.terminate()
        pool.join()


def measure(cell: Cell, device: str) -> Answer:
    """One cell by whoever knows its model; what goes wrong comes back as text."""
    started = time.perf_counter()
    try:
        figures: Figures | None = models.measure(cell, device)
        problem = ""
    except Missing:
        raise
    except Exception:  # whatever it is: the other cells go on
        figures, problem = None, traceback.format_exc(limit=-3)
    return cell, figures, time.perf_counter() - started, problem


def _short(figures: Figures) -> str:
    return " ".join(f"{name} {value:.4f}" for name, value in figures.items() if isinstance(value, float))


def _stamp(device: str) -> dict[str, str]:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    machine = f"{name}, torch {torch.__version__}"
    return {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "machine": machine}


def commit() -> str:
    """What was run: the commit of the checkout, or what DPILOT_COMMIT says where there is none."""
    done: Any = None
    if "DPILOT_COMMIT" not in os.environ:
        here = Path(__file__).parent
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=here, check=False
        )
    return os.environ.get("DPILOT_COMMIT") or (done.stdout.strip() if done else "") or "not known"


def default_workers(device: str) -> int:
    return 10 if device == "cuda" else max(1, (os.cpu_count() or 2) // 2)
