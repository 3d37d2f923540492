"""The secret of a private step in a loop of one's own, and the folders from which the step can go on."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, closing
from pathlib import Path

from dpilot.errors import InvalidInput
from dpilot.keys import Chain
from dpilot.noise import KeyedNoise
from dpilot.privacy.ledger import Committed, Ledger
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.secret import Secret, SecretFile, run_key
from dpilot.train.checkpoint.store import MANIFEST, Manifest, StoredRun, write_public
from dpilot.train.checkpoint.witness import WitnessLog
from dpilot.train.job import Job
from dpilot.train.payment import Payment, PlanUse
from dpilot.train.step import TrainingState
from dpilot.train.trainer import own_secret


class StepSecret:
    """Keeps the keys of a step in a file that only its owner reads, and lets them go as steps are stored.

    The public half of a checkpoint is written where the loop asks for it, into a folder for each if it likes. The
    secret follows as the next step begins: by then the loop has written what is its own, and the secret never stands
    ahead of the newest checkpoint.
    """

    def __init__(self, file: SecretFile, manifest: Manifest | None = None, key: bytes = b"") -> None:
        self._file = file
        self._manifest = manifest
        self._key = key
        self._next: Secret | None = None

    @classmethod
    def begin(cls, path: str | Path, ledger: Ledger | Committed | None, opened: ExitStack) -> StepSecret:
        """Take the file at ``path`` for a new run; one that another run left is refused. ``opened`` closes its log."""
        if not isinstance(ledger, Ledger):
            raise InvalidInput(
                "secret is given without a ledger to come back to: expected ledger=, a Ledger or its path."
            )
        where = Path(path).resolve()
        if where.exists():
            raise InvalidInput(
                f"{where} holds the secret of another run, which can be resumed with it: resume that run, or name "
                "another file. Where that run is given up, remove the file; its price stays spent."
            )
        file = SecretFile(where)
        opened.enter_context(closing(file.log))
        file.log.open(fresh=True)
        return cls(file)

    @classmethod
    def reopen(
        cls, folder: Path, manifest: Manifest, stored: StoredRun, path: str | Path | None, opened: ExitStack
    ) -> tuple[StepSecret, Secret]:
        """The secret of the run stored in ``folder``, at the step that was stored; ``opened`` closes its log."""
        file = SecretFile(Path(path or manifest.secret))
        opened.enter_context(closing(file.log))
        file.log.open(fresh=False)
        kept = own_secret(folder, manifest, stored, file).at(stored.steps_taken)
        return cls(file, manifest, kept.seal), kept

    @property
    def log(self) -> WitnessLog:
        return self._file.log

    def keep_first(self, job: Job, paid: Payment, noise: KeyedNoise, use: PlanUse) -> None:
        """Store the keys before the first step."""
        assert isinstance(paid.ledger, Ledger)
        self._key = run_key(noise)
        self._manifest = Manifest(
            run=secrets.token_hex(8),
            plan=job.plan,
            options=job.options,
            ledger=str(paid.ledger.path),
            seq=paid.seq,
            stage=paid.stage,
            head=paid.ledger.head(),
            secret=str(self._file.path),
            stamp=noise.stamp,
            every=job.plan.steps,
            example=job.example is not None,
        ).with_seal(self._key)
        self._file.write(self._secret(0, noise.state, use))

    def write(self, folder: Path, state: TrainingState, use: PlanUse) -> Path:
        """Write what is public of the run as it stands to ``folder``."""
        assert self._manifest is not None
        noise = state.context.noise
        assert isinstance(noise, KeyedNoise)
        folder.mkdir(parents=True, exist_ok=True)
        home = folder.resolve()
        if self._file.path.resolve().is_relative_to(home):
            raise InvalidInput(f"the secret is inside {folder}: expected it outside, as folders are shared.")
        files.write(home / MANIFEST, self._manifest.to_json().encode())
        write_public(home, state, self._key)
        self._next = self._secret(state.steps_taken, noise.state, use)
        return folder

    def ratchet(self) -> None:
        """Forget the keys of the steps before the newest checkpoint."""
        if self._next is not None:
            self._file.write(self._next)
            self._next = None

    def forget(self) -> None:
        """The run is done: nothing is left that could undo its noise."""
        self._next = None
        self._file.delete()

    def _secret(self, step: int, noise: Chain, use: PlanUse) -> Secret:
        assert self._manifest is not None
        return Secret(self._manifest.run, step, noise, use.sampler.state, self._key)
