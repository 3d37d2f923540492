"""The ledger: the append-only, crash-safe list of what a data set has lost, and the only way to spend more."""

from dpilot.privacy.ledger.committed import Committed
from dpilot.privacy.ledger.history import Entry, Stage
from dpilot.privacy.ledger.ledger import Ledger
from dpilot.privacy.ledger.opening import as_ledger, commitment

__all__ = ["Committed", "Entry", "Ledger", "Stage", "as_ledger", "commitment"]
