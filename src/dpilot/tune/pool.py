"""Trials in processes of their own, several at a time: for modules that do not stack.

Everything is paid, and drawn from the receipts, before a process starts. A process that dies takes its trial with it:
the trial stays paid, is not tried again, and the tuner stops.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from queue import SimpleQueue
from typing import Any, BinaryIO, Protocol, TypeVar

from torch import Tensor
from torch.utils.data import TensorDataset

from dpilot.errors import DpilotError, InvalidInput
from dpilot.train.batches.unit_reader import UnitsById, rows_of
from dpilot.tune.recipe import Recipe
from dpilot.tune.trial_transfer import TransferredTrial
from dpilot.tune.worker import Conditions, Refusal, TrialOutput

__all__ = ["TrialLost", "check_sendable", "gather", "records_of", "run_in_processes"]


class TrialLost(DpilotError):
    """A worker process ended before its trial did. All trials stay paid, and none is tried again."""


def check_sendable(recipe: Recipe) -> None:
    """Refuse, before anything is spent, what a worker process could not be sent.

    Guarantee:
        Of the records only the type of their data set is read.

    Example:
        >>> from torch import nn, zeros
        >>> data = TensorDataset(zeros(1, 2), zeros(1).long())
        >>> check_sendable(Recipe(lambda: nn.Linear(2, 2), nn.CrossEntropyLoss(), data, 1, 1.0, "constant", "sgd", {}))
        Traceback (most recent call last):
        ...
        dpilot.errors.InvalidInput: model_fn cannot be sent to a worker process...
    """
    rows = rows_of(recipe.dataset)
    if type(rows) is not TensorDataset:
        raise InvalidInput(
            f"workers are asked for with records in a {type(rows).__name__}: expected a TensorDataset, which "
            "can be sent whatever its values. Leave workers=1 for others."
        )
    if not sys.executable:
        raise InvalidInput("workers are asked for where no Python can be started: leave workers=1.")
    for name in ("model_fn", "loss_fn", "clipping", "options", "example"):
        _check_pickles(name, getattr(recipe, name))


def run_in_processes(recipe: Recipe, trials: Sequence[TransferredTrial], workers: int) -> list[TrialOutput]:
    """What each trial released, in order; ``workers`` of them at a time, each with its share of the cores.

    Guarantee:
        A trial goes to one process, once. What a process prints goes nowhere, and a failure that it reports was
        found before it read a record.

    Edge cases:
        a process that dies     TrialLost, which says no more; the others are ended, and everything stays paid
        this process dies       the workers end with it
    """
    count = min(workers, len(trials))
    with _start_workers(recipe, count) as (idle, threads):
        return gather(threads, idle, trials)


class Asked(Protocol):
    """A worker: it answers each message."""

    def ask(self, message: object, /) -> Any: ...


Worker = TypeVar("Worker", bound=Asked)


def gather(
    threads: ThreadPoolExecutor, idle: SimpleQueue[Worker], trials: Sequence[TransferredTrial]
) -> list[TrialOutput]:
    """The answers of idle workers, each asked for one trial at a time by a thread of its own."""
    asked = [threads.submit(_run_one, idle, trial) for trial in trials]
    done, _ = wait(asked, return_when=FIRST_EXCEPTION)
    for failed in (each.exception() for each in done):
        if failed is not None:
            raise failed
    return [each.result() for each in asked]


def records_of(recipe: Recipe) -> tuple[list[Tensor], Any]:
    """The records as they are sent: tensors, and which rows are a unit's."""
    tensors = [each.clone() for each in rows_of(recipe.dataset).tensors]  # a view would take along what it is a view of
    return tensors, recipe.dataset.rows if isinstance(recipe.dataset, UnitsById) else None


@dataclass(frozen=True, slots=True)
class _Worker:
    """A process and its two pipes."""

    process: subprocess.Popen[bytes]
    sink: BinaryIO
    source: BinaryIO

    @classmethod
    def start(cls, threads: int) -> _Worker:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import sys; sys.path[:] = {sys.path!r}; from dpilot.tune.worker import main; main()",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(names, str(threads))},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        return cls(process, process.stdin, process.stdout)  # type: ignore[arg-type]

    def ask(self, *messages: object) -> Any:
        """Send ``messages`` and wait for the answer; a worker that refuses need not have read all of them."""
        with suppress(OSError):
            for message in messages:
                pickle.dump(message, self.sink)
            self.sink.flush()
        try:
            answer = pickle.load(self.source)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise TrialLost(
                "a worker process ended before its trial did: expected every trial to be run to its end. All of them "
                "stay paid and none is tried again. See to the machine's memory, or use fewer workers."
            ) from None
        if isinstance(answer, Refusal):
            raise InvalidInput(f"a worker process cannot run the trials ({answer.why}). Expected it to; use workers=1.")
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self.sink, self.source):
            with suppress(OSError):
                pipe.close()


@contextmanager
def _start_workers(recipe: Recipe, count: int) -> Iterator[tuple[SimpleQueue[_Worker], ThreadPoolExecutor]]:
    """Processes that know the recipe, and a thread to wait for each."""
    conditions, idle = Conditions.here(count), SimpleQueue[_Worker]()
    public = conditions, replace(recipe, dataset=None)
    records = records_of(recipe)
    with ExitStack() as stack:
        crew = []
        for _ in range(count):
            worker = _Worker.start(conditions.threads)
            stack.callback(worker.close)
            crew.append(worker)
        threads = stack.enter_context(ThreadPoolExecutor(count))
        for worker in crew:
            stack.callback(worker.kill)  # before the threads that wait for it
        for ready in [threads.submit(worker.ask, public, records) for worker in crew]:
            ready.result()
        for worker in crew:
            idle.put(worker)
        yield idle, threads


def _run_one(idle: SimpleQueue[Worker], trial: TransferredTrial) -> TrialOutput:
    worker = idle.get()
    try:
        done: TrialOutput = worker.ask(trial)
        return done
    finally:
        idle.put(worker)


class _Importable(pickle.Unpickler):
    """Finds what another process would find: the script that runs is not there."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            raise pickle.UnpicklingError(f"{name} is of __main__, the script or notebook that runs")
        if not _findable(module.partition(".")[0]):
            raise pickle.UnpicklingError(f"{name} is of {module}, which is not where modules are imported from")
        return super().find_class(module, name)


def _findable(package: str) -> bool:
    return any(finder.find_spec(package, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))


def _check_pickles(name: str, value: Any) -> None:
    try:
        _Importable(BytesIO(pickle.dumps(value))).load()
    except Exception as problem:
        raise InvalidInput(
            f"{name} cannot be sent to a worker process ({type(problem).__name__}: {problem}): expected what pickle "
            "can send, such as a function or class of a module that can be imported; no lambda, nothing of __main__. "
            "Define it in a file of its own, or leave workers=1."
        ) from problem
