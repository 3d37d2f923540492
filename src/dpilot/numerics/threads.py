"""Blocks of work on one thread each, several at a time: how many threads there are decides no bit of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["map_blocks"]

Block = TypeVar("Block")
Result = TypeVar("Result")


def map_blocks(work: Callable[[Block], Result], blocks: Iterable[Block]) -> list[Result]:
    """``work`` of each block, in order: as many at a time as torch has threads, and one thread for each.

    Guarantee:
        A block is computed as by a process with one thread: torch may divide a product otherwise among more of them,
        and round otherwise. What one block raises is raised.

    Edge cases:
        Threads compute with or without gradients as the caller does.
    """
    import torch

    todo, threads = list(blocks), torch.get_num_threads()
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def alone(block: Block) -> Result:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients and not inference):
            return work(block)

    with _restore_threads(threads):
        if threads == 1 or len(todo) < 2:
            return [work(block) for block in todo]
        with ThreadPoolExecutor(min(threads, len(todo)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(alone, todo))


@contextmanager
def _restore_threads(threads: int) -> Iterator[None]:
    """One thread for each product meanwhile; afterwards as many as before."""
    import torch

    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
