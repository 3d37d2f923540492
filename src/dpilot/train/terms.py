"""On what terms a run is held: where it is paid, where it is kept, and whether it is a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.keys import Chain
from dpilot.noise import KeyedNoise, seeded_noise
from dpilot.privacy.ledger import Committed, Ledger
from dpilot.train.checkpoint import MANIFEST
from dpilot.train.payment import LEDGER, Purpose
from dpilot.train.run import RECORD


@dataclass(frozen=True, slots=True)
class Terms:
    """The ledger and purpose of a run, its checkpoint folder and secret file, and the seed of a test."""

    ledger: Ledger | Committed | None = None
    purpose: Purpose = field(default_factory=Purpose)
    data_id: str | None = None
    folder: Path | None = None
    every: int = 1
    secret: Path | None = None
    test_seed: int | None = None

    def __post_init__(self) -> None:
        _validate.count(checkpoint_every=self.every)
        if self.folder is None and self.secret is not None:
            raise InvalidInput("secret is given without checkpoint: expected both, as only a stored run has a secret.")
        if self.folder is not None:
            object.__setattr__(self, "secret", secret_path(self.folder, self.secret))
            if isinstance(self.ledger, Committed):
                raise InvalidInput("checkpoint needs the whole ledger: expected a Ledger, not one commitment of it.")

    def check_free(self) -> None:
        """Refuse a folder that holds a run, and a secret file that is another's or has no place."""
        if self.folder is None or self.secret is None:
            return
        if any((self.folder / name).exists() for name in (MANIFEST, LEDGER, RECORD)):
            raise InvalidInput(f"{self.folder} holds a run: resume it with Trainer.resume, or name another folder.")
        if self.secret.exists():
            raise InvalidInput(f"{self.secret} holds the secret of another run: resume that run, or name another file.")
        if not self.secret.parent.is_dir() and self.secret.parent != self.folder.resolve().parent:
            raise InvalidInput(f"{self.secret.parent} is not a folder: expected one for the secret. Make it first.")

    def noise(self) -> KeyedNoise:
        """Fresh noise from the system, or the stamped noise of a test."""
        return KeyedNoise() if self.test_seed is None else seeded_noise(self.test_seed)

    def coins(self) -> Chain | None:
        """The batches of a test are those of its seed; otherwise the sampler finds its own key."""
        return None if self.test_seed is None else seeded_noise(self.test_seed).state


def secret_path(folder: Path, given: Path | None) -> Path:
    """Where the secret of a run goes: beside its folder unless told otherwise, and never inside."""
    home = folder.resolve()
    chosen = home.with_name(f".{home.name}.secret") if given is None else Path(given).resolve()
    if chosen.is_relative_to(home):
        raise InvalidInput(
            f"secret is {str(given)!r}, inside the run folder: expected a file outside, as folders are shared."
        )
    return chosen


@contextmanager
def told(ledger: Ledger | Committed, folder: Path | None) -> Iterator[None]:
    """Add to whatever stops a run what became of its price, and how to go on."""
    try:
        yield
    except BaseException as problem:
        where = f" in {ledger.path}" if isinstance(ledger, Ledger) else ""
        again = f" Trainer.resume({str(folder)!r}, ...) goes on from its last checkpoint." if folder else ""
        problem.add_note(f"The run's price stays spent{where}.{again}")
        raise
