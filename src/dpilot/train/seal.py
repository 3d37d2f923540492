"""Seals of public files: keyed hashes that tell, when a run is resumed, whether a file is still the one it wrote."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from dpilot.errors import InvalidInput


def seal(key: bytes, kind: str, parts: Iterable[bytes]) -> str:
    """A hash of ``parts``, each with its length, that nobody can make without ``key``.

    >>> seal(bytes(32), "run", [b"ab", b"c"]) == seal(bytes(32), "run", [b"a", b"bc"])
    False
    """
    made = hashlib.blake2b(key=key, person=kind.encode(), digest_size=32)
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.hexdigest()


def content(tensors: Mapping[str, Tensor]) -> Iterable[bytes]:
    """Everything that a set of named tensors is, in an order of its own."""
    for name, tensor in sorted(tensors.items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def check(path: Path, found: str, expected: str) -> None:
    """Refuse a file that was altered since the run wrote it."""
    if not hmac.compare_digest(found.encode(), expected.encode()):
        raise InvalidInput(
            f"{path} was altered since the run wrote it: expected the file as it was, because what it says decides "
            "how much noise is added. Put the original back, or start a new run: it is a new spend."
        )
