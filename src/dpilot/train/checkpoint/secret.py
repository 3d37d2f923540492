"""The secret of a run that can be resumed: the keys of its noise and batches, in a file that only its owner reads.

The file lies outside the run folder, because the folder may be shared and these keys undo the noise. It is written
after the public checkpoint of the same step, so it is never ahead of it; a secret that lags is ratcheted forward.

Beside it lies a log with one line a step since the last checkpoint: a keyed hash of what went into the release,
written before the noise was added. A resumed run that comes to another sum there (other data, other code, another
machine's rounding) stops before it adds the same noise to it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpilot.errors import DpilotError, InvalidInput
from dpilot.keys import KEY_BYTES, Chain
from dpilot.noise import KeyedNoise
from dpilot.train.checkpoint import files

FORMAT: Final = 2
_LINE: Final = struct.Struct("<Q32s")
_AGAIN: Final = "Start a new run: it is a new spend, and the ledger says so."


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Where the chains of a run stand before step ``step``, and the key that seals its public files."""

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
                f"between are gone, so the steps cannot be repeated exactly. {_AGAIN}"
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
        self.log = path.with_name(path.name + ".steps")
        self._handle: int | None = None
        self._seen: dict[int, bytes] = {}

    def open(self, *, fresh: bool) -> None:
        """Take the files for this process; the log of an interrupted run is read, that of a ``fresh`` one begins."""
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_TRUNC if fresh else 0)
        try:
            self._handle = os.open(self.log, flags, 0o600)
        except FileNotFoundError:
            raise InvalidInput(
                f"{self.log} is not there: without the log nobody can tell which sums the run's noise already covers. "
                f"Keep it beside the secret. {_AGAIN}"
            ) from None
        except OSError as problem:
            raise DpilotError(
                f"{self.log} cannot be opened ({problem.strerror}): expected a folder of yours."
            ) from None
        _lock(self._handle, self.path)
        content = self.log.read_bytes()
        os.ftruncate(self._handle, len(content) // _LINE.size * _LINE.size)  # a line cut short was never acted on
        lines = (_LINE.unpack_from(content, at) for at in range(0, len(content) - _LINE.size + 1, _LINE.size))
        self._seen = dict(lines)

    def read(self) -> Secret:
        """The stored secret, or InvalidInput that says what is missing."""
        try:
            if os.name == "posix" and self.path.stat().st_mode & 0o077:
                raise InvalidInput(f"{self.path} can be read by others: expected mode 0600. {_AGAIN}")
            data = json.loads(self.path.read_text())
        except FileNotFoundError:
            raise InvalidInput(
                f"{self.path} is not there: without the run's secret its steps cannot be repeated exactly. {_AGAIN}"
            ) from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
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
        content = json.dumps({**plain, **chains})
        files.write(self.path, content.encode(), mode=0o600)
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
        self._seen = {}

    def witness(self, place: int, digest: bytes) -> None:
        """Note what goes into release ``place``, or refuse it if something else went there before."""
        if place in self._seen:
            if self._seen[place] != digest:
                raise InvalidInput(
                    f"step {place} comes to another sum than before the interruption: the data, the code or the "
                    f"arithmetic changed, and the same noise must not cover two sums. {_AGAIN}"
                )
            return
        if self._handle is not None:
            os.write(self._handle, _LINE.pack(place, digest))
            os.fdatasync(self._handle)
        self._seen[place] = digest

    def close(self) -> None:
        """Let another process have the files."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def delete(self) -> None:
        """The run is complete: nothing is left that could undo its noise."""
        files.remove(self.path)
        files.remove(self.log)


class WitnessedNoise:
    """A keyed noise source that lets no noise cover two different sums, across interruptions too."""

    __slots__ = ("_file", "_noise")

    def __init__(self, noise: KeyedNoise, file: SecretFile) -> None:
        self._noise = noise
        self._file = file

    @property
    def stamp(self) -> str:
        return self._noise.stamp

    def gaussian(self, values: Sequence[Any], *, bound: float, noise_multiplier: float) -> list[Any]:
        chain = self._noise.state
        self._file.witness(chain.position, _digest(chain, values, bound * noise_multiplier))
        return self._noise.gaussian(values, bound=bound, noise_multiplier=noise_multiplier)

    def choice(self, log_weights: NDArray[np.float64]) -> int:
        chain = self._noise.state
        self._file.witness(chain.position, _digest(chain, [log_weights], 0.0))
        return self._noise.choice(log_weights)


def _digest(chain: Chain, values: Sequence[Any], scale: float) -> bytes:
    """Keyed by this position of the chain: once it is ratcheted, nobody can test a guess against the log."""
    made = hashlib.blake2b(struct.pack("<d", scale), key=chain.generator("witness").bytes(KEY_BYTES), digest_size=32)
    for value in values:
        made.update(np.ascontiguousarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value).data)
    return made.digest()


def _lock(handle: int, path: Path) -> None:
    with suppress(ImportError):  # where there is no fcntl, one process at a time is the caller's care
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(f"{path} is in use: expected one process a run. Wait for it, or stop it.") from None


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
