"""The ledger: the append-only, crash-safe list of what a data set has lost, and the only way to spend more.

Promises: what was reserved stays spent whatever dies, two processes never spend the same epsilon, and a row that was
altered is seen. May import: the rest of privacy, which does not import it.
"""

from dpilot.privacy.ledger.discovery import dataset_name, find_ledger, locate_ledger
from dpilot.privacy.ledger.history import Entry, Extension, Grant, Stage
from dpilot.privacy.ledger.ledger import Ledger, as_ledger, commitment, describe_ledger, ledger_exists, migrate, reopen
from dpilot.privacy.ledger.spending import Committed
from dpilot.privacy.ledger.totals import Balance, OpenedLedger, extend_total, fit_budget, open_for_fit, split_budget

__all__ = [
    "Balance",
    "Committed",
    "Entry",
    "Extension",
    "Grant",
    "Ledger",
    "OpenedLedger",
    "Stage",
    "as_ledger",
    "commitment",
    "dataset_name",
    "describe_ledger",
    "extend_total",
    "find_ledger",
    "fit_budget",
    "ledger_exists",
    "locate_ledger",
    "migrate",
    "open_for_fit",
    "reopen",
    "split_budget",
]
