"""A row that was exchanged for another, with a hash of its own that is right, breaks the chain all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpilot.errors import LedgerError
from dpilot.privacy.ledger.store import LedgerRow, check_chain, next_row


def chain(length: int) -> tuple[LedgerRow, ...]:
    rows: tuple[LedgerRow, ...] = ()
    for place in range(length):
        rows = (*rows, next_row(rows, "reserve", {"place": place}))
    return rows


def test_a_chain_as_written_is_sound() -> None:
    check_chain(chain(4))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_exchanged_row_with_its_hash_made_right_is_found(place: int) -> None:
    rows = chain(4)
    forged = next_row(rows[:place], "reserve", {"place": "cheaper"})
    with pytest.raises(LedgerError, match=f"row {place + 1} "):
        check_chain((*rows[:place], forged, *rows[place + 1 :]))


def test_a_row_moved_into_another_place_is_found() -> None:
    first, second, third, last = chain(4)
    for wrong in ((first, third, second, last), (first, third, last), (second, third, last), (first, first, second)):
        with pytest.raises(LedgerError):
            check_chain(wrong)
    with pytest.raises(LedgerError, match="row 2"):
        check_chain((first, second, replace(third, seq=3), last))
