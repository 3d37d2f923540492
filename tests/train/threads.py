"""Ranks as threads of one process, which talk over gloo: what processes do, without the seconds of starting them.

One of them computes at a time, until it waits for the others: the engine looks at what is global in a process, such as
generators, and would find the doings of another rank there. Tests of dropout start processes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist

from dpilot.train.ranks import Together, use_ranks


class Turns:
    """A process group whose rank lets another one compute while it waits."""

    def __init__(self, group: dist.ProcessGroup, turn: Lock) -> None:
        self._group, self._turn = group, turn

    def size(self) -> int:
        return self._group.size()

    def rank(self) -> int:
        return self._group.rank()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def collective(*arguments: Any) -> Any:
            return Waiting(getattr(self._group, name)(*arguments), self._turn)

        return collective


class Waiting:
    """What a collective returns."""

    def __init__(self, work: Any, turn: Lock) -> None:
        self._work, self._turn = work, turn

    def wait(self) -> None:
        self._turn.release()
        try:
            self._work.wait()
        finally:
            self._turn.acquire()


def groups(count: int, seconds: float = 20.0) -> list[dist.ProcessGroup]:
    """A group for each of so many ranks."""
    store, limit = dist.HashStore(), timedelta(seconds=seconds)

    def join(rank: int) -> dist.ProcessGroup:
        group = dist.ProcessGroup(store, rank, count)
        backend = dist.ProcessGroupGloo(store, rank, count, limit)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        return group

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(join, range(count)))


def run_on_ranks(count: int, work: Callable[[int], Any], *, fails: bool = False) -> list[Any]:
    """What ``work`` returns on each rank, or where it ``fails`` raises."""
    turn = Lock()

    def one(pair: tuple[int, dist.ProcessGroup]) -> Any:
        rank, group = pair
        with turn, use_ranks(Together(Turns(group, turn))):
            try:
                return work(rank)
            except BaseException as problem:
                if not fails:
                    raise
                return problem

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, enumerate(groups(count, 100.0))))
