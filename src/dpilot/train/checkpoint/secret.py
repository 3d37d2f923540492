"""The secret of a run that can be resumed: the keys of its noise and batches, in a file that only its owner reads.

The file lies outside the run folder, because the folder may be shared and these keys undo the noise. It is written
after the public checkpoint of the same step, so it is never ahead of it; a secret that lags is ratcheted forward.

Beside it lies the log of what its releases since the last checkpoint covered (``witness``).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES, Chain
from dpilot.noise import KeyedNoise
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.witness import AGAIN, WitnessLog, read_private

FORMAT: Final = 3


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Where the chains of a run stand before step ``step``, and the key that seals its files and groups its units."""

    run: str
    step: int
    noise: Chain
    sampling: Chain
    seal: bytes

    def at(self, step: int) -> Secret:
        """The same secret ratcheted forward to ``step``; the keys before it cannot be found from it."""
        if step < self.step:
            raise InvalidInput(
                f"the secret of the run stands at step {self.step} and the checkpoint at step {step}: the keys in "
                f"between are gone, so the steps cannot be repeated exactly. {AGAIN}"
            )
        noise, sampling = self.noise, self.sampling
        for _ in range(step - self.step):
            noise, sampling = noise.next(), sampling.next()
        return replace(self, step=step, noise=noise, sampling=sampling)

    def __repr__(self) -> str:
        return f"Secret(step={self.step})"


class SecretFile:
    """The secret of one run at ``path``, mode 0600, and the log of its steps beside it; one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = WitnessLog(path.with_name(path.name + ".steps"))

    def read(self) -> Secret:
        """The stored secret, or InvalidInput that says what is missing."""
        data = read_private(self.path)
        if data.get("format") != FORMAT:
            raise InvalidInput(f"{self.path} is not a secret of format {FORMAT}: a newer dpilot may have written it.")
        noise, sampling = (Chain(bytes.fromhex(key), place) for key, place in (data["noise"], data["sampling"]))
        return Secret(data["run"], data["step"], noise, sampling, bytes.fromhex(data["seal"]))

    def write(self, secret: Secret) -> None:
        """Store where the chains stand now, and forget the steps before."""
        chains = {
            name: [chain.key.hex(), chain.position]
            for name, chain in (("noise", secret.noise), ("sampling", secret.sampling))
        }
        plain = {"format": FORMAT, "run": secret.run, "step": secret.step, "seal": secret.seal.hex()}
        files.write(self.path, json.dumps({**plain, **chains}).encode(), mode=0o600)
        self.log.clear()

    def delete(self) -> None:
        """The run is complete: nothing is left that could undo its noise."""
        files.remove(self.path)
        self.log.delete()


def run_key(noise: KeyedNoise) -> bytes:
    """A key for all of a run, from the noise before its first step: it seals public files, and groups units."""
    return noise.state.generator("seal").bytes(KEY_BYTES)


def keyed_hash(key: bytes, kind: str, parts: Iterable[bytes]) -> str:
    """A hash of ``parts``, each with its length, that nobody can make without ``key``.

    >>> keyed_hash(bytes(32), "run", [b"ab", b"c"]) == keyed_hash(bytes(32), "run", [b"a", b"bc"])
    False
    """
    made = hashlib.blake2b(key=key, person=kind.encode(), digest_size=32)
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.hexdigest()


def tensor_bytes(tensors: Mapping[str, Tensor]) -> Iterable[bytes]:
    """Everything that a set of named tensors is, in an order of its own."""
    for name, tensor in sorted(tensors.items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def check_hash(path: Path, found: str, expected: str) -> None:
    """Refuse a file that was altered since the run wrote it."""
    if not hmac.compare_digest(found.encode(), expected.encode()):
        raise InvalidInput(
            f"{path} was altered since the run wrote it: expected the file as it was, because what it says decides "
            "how much noise is added. Put the original back, or start a new run: it is a new spend."
        )
