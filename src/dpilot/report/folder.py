"""What lies beside a page in its run's folder, as far as the page speaks of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpilot.errors import DpilotError
from dpilot.records import FIT, RUN

__all__ = ["RunFolder"]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Whether the folder holds a statement that can be read, who signed it, and whether it holds the run's own ledger.

    ``signer``: the short name of the key whose signature the statement bears; "" where it bears none.
    """

    statement: bool
    signer: str
    ledger: bool

    @classmethod
    def of(cls, folder: str | Path | None) -> RunFolder | None:
        """None where this is no run's folder: a page that is written elsewhere says nothing of what lies beside it."""
        where = None if folder is None else Path(folder)
        if where is None or not any((where / name).is_file() for name in (FIT, RUN)):
            return None
        from dpilot.train.checkpoint.statement import STATEMENT, fingerprint, read_statement

        if not (where / STATEMENT).is_file():
            return cls(False, "", (where / "ledger").is_file())
        try:
            _, signature = read_statement(where)
            signer = "" if signature is None else fingerprint(signature["key"])
        except (DpilotError, ValueError, KeyError, TypeError):  # damaged: nothing can be said of it
            return cls(False, "", (where / "ledger").is_file())
        return cls(True, signer, (where / "ledger").is_file())
