"""The ledger: the append-only, crash-safe list of what a data set has lost, and the only way to spend more."""

from dpilot.privacy.ledger.history import Entry, Stage
from dpilot.privacy.ledger.ledger import Ledger, as_ledger, commitment, reopen
from dpilot.privacy.ledger.spending import Committed

__all__ = ["Committed", "Entry", "Ledger", "Stage", "as_ledger", "commitment", "reopen"]
