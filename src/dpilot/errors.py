"""What can go wrong, as types a caller may want to catch.

Every message names the value, the rule it broke and the remedy. Nothing here is ever raised because of the
value of one record: an exception that depends on a record is itself a release.
"""

from __future__ import annotations


class DpilotError(Exception):
    """Base of everything dpilot raises on purpose."""


class InvalidInput(DpilotError, ValueError):
    """A declared number, name or option breaks a rule. Raised before anything is spent."""


class BudgetExceeded(DpilotError):
    """A spend does not fit what is left of the budget. Nothing was written."""


class LedgerError(DpilotError):
    """A ledger cannot be used: altered, foreign, of a newer format, or of another data set."""


class UnsupportedModel(DpilotError):
    """The model mixes samples or has a layer whose per-sample gradient cannot be had."""


class PrivacyWarning(UserWarning):
    """What a promise does not cover: noise that is fixed, a fit that no ledger counts, a fit that a ledger refused."""


class InternalError(DpilotError):
    """A rule that dpilot itself should have kept was broken. Please report it: it is a bug of ours."""
