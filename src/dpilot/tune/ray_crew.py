"""Trials on a Ray cluster: a fixed number of workers, each one Ray task for the whole tuning, that take trials in turn.

Ray sees the workers and nothing of the trials: these go over a connection to each worker, as to a process of
``tune.pool``, and so no task, log line or file of the cluster tells how many there were. No task is tried again
(``max_retries=0``; with Ray's default one whose process dies runs four times, and each would be a release).
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Listener
from queue import SimpleQueue
from typing import Any, Final

from torch.utils.data import TensorDataset

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.keys import fresh_key
from dpilot.train.batches.unit_reader import UnitsById
from dpilot.tune.pool import TrialLost, gather, records_of
from dpilot.tune.recipe import Recipe
from dpilot.tune.trial_transfer import TransferredTrial
from dpilot.tune.worker import Conditions, Refusal, TrialOutput, answer_trial

__all__ = ["RayExecutor"]

_PATIENCE: Final = 120.0  # seconds for a cluster to start the workers, nodes included


@dataclass(frozen=True, slots=True)
class _Work:
    """What comes before trials: what they share, and the records where they were not sent yet."""

    conditions: Conditions
    recipe: Recipe
    records: tuple[list[Any], Any] | None


class RayExecutor:
    """``workers`` tasks of a Ray cluster, each with ``cpus`` and (a fraction of) ``gpus``, for the trials of one task.

    Guarantee:
        Workers start before anything is paid or drawn, and end with this object: how many there are is declared. A
        trial is paid before it is sent, sent once, and goes to one worker; of one that is lost nothing is tried again.

    Edge cases:
        no cluster yet       a local one is started, without a dashboard; a running one is joined (``ray.init``)
        too few resources    InvalidInput after two minutes: nothing was paid
        a worker that dies   TrialLost, which says no more; the others are ended, and everything stays paid
        the network          what passes is as sensitive as the records, and travels as Ray's own traffic does
    """

    def __init__(self, workers: int = 2, *, cpus: float = 1.0, gpus: float = 0.0) -> None:
        self.workers = _validate.count(workers=workers)
        self._cpus = _validate.positive(cpus=cpus)
        self._has_records: set[int] = set()
        self._conditions = replace(Conditions.here(self.workers), threads=max(1, int(cpus)))
        self._crew = _start(self.workers, self._cpus, _validate.non_negative(gpus=gpus))
        self._close = weakref.finalize(self, _end, self._crew)

    def run(self, recipe: Recipe, trials: Sequence[TransferredTrial]) -> list[TrialOutput]:
        """What each trial released, in order."""
        if not self._close.alive:
            raise TrialLost("a worker of this executor was lost: expected a new one. What was paid stays paid.")
        try:
            with ThreadPoolExecutor(self.workers) as threads:
                idle = SimpleQueue[_Link]()
                for ready in [threads.submit(self._prepare, link, recipe) for link in self._crew]:
                    idle.put(ready.result())
                return gather(threads, idle, trials)
        except BaseException:
            self._close()
            raise

    def _prepare(self, link: _Link, recipe: Recipe) -> _Link:
        known = id(link) in self._has_records
        link.ask(_Work(self._conditions, replace(recipe, dataset=None), None if known else records_of(recipe)))
        self._has_records.add(id(link))
        return link


@dataclass(frozen=True, slots=True)
class _Link:
    """The connection to one worker."""

    connection: Connection[Any, Any]

    def ask(self, message: object) -> Any:
        try:
            _send(self.connection, message)
            answer = pickle.loads(self.connection.recv_bytes())
        except (OSError, EOFError):
            raise TrialLost(
                "a Ray worker ended before its trial did: expected every trial to be run to its end. All of them stay "
                "paid and none is tried again. See to the memory of the nodes, or use fewer workers."
            ) from None
        if isinstance(answer, Refusal):
            raise InvalidInput(f"a Ray worker cannot run the trials ({answer.why}). Expected it to; use workers=1.")
        return answer


def _start(workers: int, cpus: float, gpus: float) -> list[_Link]:
    try:
        import ray
    except ImportError:
        raise InvalidInput('executor is "ray", which is not installed: pip install "dpilot[ray]".') from None
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    key = fresh_key("workers")
    with Listener((ray.util.get_node_ip_address(), 0), authkey=key) as listener:
        task = ray.remote(max_retries=0, num_cpus=cpus, num_gpus=gpus)(serve)
        tasks = [task.remote(listener.address, key) for _ in range(workers)]
        links: list[_Link] = []
        waiting = threading.Thread(target=_accept, args=(listener, links, workers), daemon=True)
        waiting.start()
        waiting.join(_PATIENCE)
        if len(links) < workers:
            for each in tasks:
                ray.cancel(each, force=True)
            _end(links)
            raise InvalidInput(
                f"Ray started {len(links)} of {workers} workers of {cpus:g} CPUs and {gpus:g} GPUs in {_PATIENCE:g} s: "
                "expected all. Nothing was paid. Ask for fewer or smaller ones, or see to the cluster (ray status)."
            )
    return links


def _send(connection: Connection[Any, Any], message: object) -> None:
    connection.send_bytes(pickle.dumps(message))  # its own send() would share the memory of tensors with this machine


def _accept(listener: Listener, links: list[_Link], workers: int) -> None:
    with suppress(OSError):
        while len(links) < workers:
            links.append(_Link(listener.accept()))


def _end(links: Sequence[_Link]) -> None:
    for link in links:
        link.connection.close()


def serve(address: Any, key: bytes) -> None:
    """The one Ray task of a worker: it answers until the other side is gone, and says nothing else to anybody."""
    with suppress(BaseException), Client(address, authkey=key) as link, _silence():
        recipe, records = None, None
        while True:
            message = pickle.loads(link.recv_bytes())
            if isinstance(message, _Work):
                records = message.records or records
                recipe = _with_records(message, records)
                _send(link, None)
            else:
                assert recipe is not None
                _send(link, answer_trial(recipe, *message))


def _with_records(work: _Work, records: Any) -> Recipe:
    work.conditions.apply()
    tensors, units = records
    rows = TensorDataset(*tensors)
    return replace(work.recipe, dataset=rows if units is None else UnitsById(rows, units))


@contextmanager
def _silence() -> Iterator[None]:
    """What a module prints goes nowhere: a cluster keeps it."""
    kept = [(stream.fileno(), os.dup(stream.fileno())) for stream in (sys.__stdout__, sys.__stderr__) if stream]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for place, _ in kept:
            os.dup2(nowhere, place)
        yield
    finally:
        for place, copy in kept:
            os.dup2(copy, place)
            os.close(copy)
        os.close(nowhere)
