"""Ranks as threads of one process, which talk over gloo: what processes do, without the seconds of starting them.

What is global in a process (generators for dropout, the environment) they share: tests of these start processes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dpilot.train.ranks import Together, use_ranks


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

    def one(pair: tuple[int, dist.ProcessGroup]) -> Any:
        rank, group = pair
        with use_ranks(Together(group)):
            try:
                return work(rank)
            except BaseException as problem:
                if not fails:
                    raise
                return problem

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, enumerate(groups(count))))
