"""Checkpoints of a model in pieces: a file for each rank, written and read by rank 0, one after the other.

    checkpoint.safetensors                 what is whole; names, shapes and hashes of what is not
    checkpoint-40-1-of-4.safetensors       after 40 steps, rank 1's rows of weights, averages, the optimizer's memory

The first file is replaced once the others are there, and they go when the next one names others: after a crash it names
files that are whole. Rows are dealt anew as they are read, so another number of ranks can go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from dpilot.engine.check import is_distributed
from dpilot.errors import InvalidInput
from dpilot.train.checkpoint import files
from dpilot.train.ranks import Ranks
from dpilot.train.shards import Shards, own_rows

Said = Mapping[str, Any]
"""What the first file says of the others."""
_ALL: Final = "checkpoint-*-of-*.safetensors"


def take_out(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Those that lie in pieces, which are no longer among ``tensors``."""
    return {name: tensors.pop(name) for name in [*tensors] if is_distributed(type(tensors[name]))}


def store(folder: Path, taken: int, held: Mapping[str, Any], ranks: Ranks) -> Said:
    """Write every rank's rows to ``folder``; all ranks take part, and rank 0 writes."""
    written: list[tuple[str, str]] = []

    def take(rank: int, content: bytes) -> None:
        name = f"checkpoint-{taken}-{rank}-of-{ranks.size}.safetensors"
        files.write(folder / name, content)
        written.append((name, _hash(content)))

    ranks.bring(save({name: each.to_local().detach().cpu().contiguous() for name, each in held.items()}), take)
    return {"shapes": {name: list(each.shape) for name, each in held.items()}, "files": written}


def remove_others(folder: Path, said: Said) -> None:
    """Take away the files that an older checkpoint named."""
    named = {name for name, _ in said["files"]}
    for path in folder.glob(_ALL):
        if path.name not in named:
            files.remove(path)


def read(folder: Path, said: Said, shards: Shards) -> dict[str, Any]:
    """This rank's rows of all that is stored, on however many ranks it was stored; rank 0 reads."""
    if shards.ranks.leads:
        _check_unaltered(folder, said)

    def cut(rank: int) -> bytes:
        with ExitStack() as opened:
            stored = [opened.enter_context(safe_open(folder / name, framework="pt")) for name, _ in said["files"]]
            size = shards.ranks.size
            return save({name: _rows(stored, name, shape[0], rank, size) for name, shape in said["shapes"].items()})

    found = load(shards.ranks.hand_out(cut))
    return {name: shards.piece(found[name], shape) for name, shape in said["shapes"].items()}


def _rows(stored: list[Any], name: str, rows: int, rank: int, size: int) -> Tensor:
    wanted, found = own_rows(rows, rank, size), []
    for number, file in enumerate(stored):
        there = own_rows(rows, number, len(stored))
        first = min(max(wanted.start, there.start), there.stop) - there.start
        last = max(min(wanted.stop, there.stop) - there.start, first)
        found.append(file.get_slice(name)[first:last])
    return torch.cat(found)


def _check_unaltered(folder: Path, said: Said) -> None:
    for name, expected in said["files"]:
        path = folder / name
        if not path.exists() or _hash(path.read_bytes()) != expected:
            raise InvalidInput(
                f"{path} is missing, or was altered since the run wrote it: expected the file as it was. Put the "
                "original back, or start a new run: it is a new spend."
            )


def _hash(content: bytes) -> str:
    return blake2b(content, digest_size=32).hexdigest()
