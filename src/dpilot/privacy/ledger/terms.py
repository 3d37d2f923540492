"""What row 0 fixes for good: the data set, the mode and the bound; and whether a later caller means the same."""

from __future__ import annotations

import secrets
from typing import Final

from dpilot import _validate
from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy import filters
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger.folding import Body, open_body
from dpilot.privacy.ledger.history import History, text

MODES: Final = ("adaptive", "precommitted")


def first_row(dataset: str, budget: Budget | None, mode: str | None, bound: str | None) -> Body:
    """Row 0 of a new ledger; "adaptive" and "basic" unless told otherwise."""
    if not isinstance(budget, Budget):
        raise InvalidInput(f"budget is {budget!r}: expected a Budget for a new ledger, such as Budget(1.0, 1e-5).")
    mode = _validate.one_of(MODES, mode=mode or "adaptive")
    allowed = filters.ADAPTIVE if mode == "adaptive" else ("pld",)
    bound = _validate.one_of(allowed, f'Mode "{mode}" admits no other.', bound=bound or allowed[0])
    order = filters.choose_order(budget) if bound == "rdp" else None
    identity = secrets.token_hex(16)
    return open_body(identity, text("dataset", dataset), budget, mode, bound, order)


def check_same(history: History, dataset: str, budget: Budget | None, mode: str | None, bound: str | None) -> None:
    """Raise LedgerError where the caller expects another ledger than the one in the file."""
    asked = {"dataset": dataset, "budget": budget, "mode": mode, "bound": bound}
    found = {
        "dataset": history.dataset,
        "budget": history.budget,
        "mode": history.mode,
        "bound": history.bound_name,
    }
    for name, value in asked.items():
        if value is not None and value != found[name]:
            raise LedgerError(
                f"{name} is {value!r}, but the ledger was opened for {found[name]!r}: one data set has one ledger, on "
                f"fixed terms. Use the ledger's own {name}, or another path; ledger.extend raises a budget."
            )
