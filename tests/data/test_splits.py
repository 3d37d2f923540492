"""Each record's part depends on its own coin alone, and the coins are fair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from tests.data.raising import raising_cells
from tests.distributions import REJECT, frequency_p_value

SHARES = {"train": 0.7, "held-out": 0.2, "other": 0.1}
SPLIT = Split(SHARES, bytes(range(32)))
BY_ID = Split(SPLIT.shares, SPLIT.key, "id")


def membership(parts, length):
    member = np.full(length, -1)
    for place, indices in enumerate(parts.values()):
        assert (member[indices] == -1).all()
        member[indices] = place
    return member.tolist()


@given(st.integers(0, 300))
def test_a_record_added_at_the_end_moves_no_other(length):
    before, after = (membership(SPLIT.indices(n), n) for n in (length, length + 1))
    assert before == after[:length]
    assert -1 not in after


def test_a_record_keeps_its_part_by_id_wherever_it_stands():
    ids = [f"user-{i}" for i in range(500)]
    there = membership(BY_ID.indices_of(ids), 500)
    assert membership(BY_ID.indices_of(ids[::-1]), 500) == there[::-1]
    assert membership(BY_ID.indices_of([*ids, "one more"]), 501)[:500] == there
    assert membership(BY_ID.indices_of([None, np.nan, "é", 3, b"x", np.int64(3)]), 6)[3::2] == [there_of(3)] * 2


def there_of(identity):
    return membership(BY_ID.indices_of([identity]), 1)[0]


def test_by_place_a_record_taken_out_moves_those_after_it():
    before, after = (membership(SPLIT.indices(length), length) for length in (10_000, 9_999))
    kept = np.delete(before, 5_000)
    assert np.array_equal(kept[:5_000], after[:5_000])
    assert not np.array_equal(kept[5_000:], after[5_000:])


@pytest.mark.parametrize("how", [lambda n: SPLIT.indices(n), lambda n: BY_ID.indices_of(range(n))])
def test_parts_have_their_shares(how):
    sizes = [indices.size for indices in how(50_000).values()]
    assert sum(sizes) == 50_000
    assert frequency_p_value(sizes, list(SHARES.values())) > REJECT
    assert frequency_p_value(sizes, [0.65, 0.25, 0.1]) < REJECT


def test_splits_are_independent_and_have_ids_of_their_own():
    first, second = Split.draw(SHARES), Split.draw(SHARES)
    assert first.id != second.id
    agree = np.mean(np.equal(membership(first.indices(10_000), 10_000), membership(second.indices(10_000), 10_000)))
    assert agree == pytest.approx(0.54, abs=0.03)  # .7^2 + .2^2 + .1^2
    by_id = [membership(Split(SHARES, split.key, "id").indices_of(range(10_000)), 10_000) for split in (first, second)]
    assert np.mean(np.equal(*by_id)) == pytest.approx(0.54, abs=0.03)
    other_shares = Split({"train": 0.7, "held-out": 0.3}, first.key)
    assert other_shares.id != first.id


def test_the_id_and_the_representation_give_no_key_away():
    split = Split.draw(SHARES)
    for shown in (repr(split), split.id):
        assert split.key.hex() not in shown
        assert repr(split.key) not in shown
    assert len(split.id) == 16


def test_shares_are_asked_by_name():
    assert SPLIT.share("held-out") == 0.2
    with pytest.raises(InvalidInput, match="part"):
        SPLIT.share("test")


@pytest.mark.parametrize("shares", [{"a": 1.0}, {"a": 0.5, "b": 0.4}, {"a": 0.0, "b": 1.0}, {}, {"a": 0.6, "b": 0.6}])
def test_shares_are_checked(shares):
    with pytest.raises(InvalidInput):
        Split.draw(shares)


def test_keys_are_checked():
    with pytest.raises(InvalidInput, match="32 bytes"):
        Split(SHARES, b"short")


def test_a_split_goes_by_places_or_by_ids() -> None:
    shares = {"train": 0.5, "test": 0.5}
    places, ids = Split.draw(shares), Split.draw(shares, by="id")
    assert Split(shares, places.key, "id").id != places.id
    with pytest.raises(InvalidInput, match="goes by place"):
        places.indices_of(["a"])
    with pytest.raises(InvalidInput, match="goes by id"):
        ids.indices(3)


def test_no_id_raises() -> None:
    split = Split.draw({"train": 0.5, "test": 0.5}, by="id")
    odd = [*raising_cells(SystemExit).values(), *raising_cells(ValueError).values()]
    parts = split.indices_of(["\ud800", 10**5000, *odd, None, float("nan"), "ordinary"])
    assert sum(len(part) for part in parts.values()) == 5 + len(odd)
