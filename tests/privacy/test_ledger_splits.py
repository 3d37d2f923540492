"""Parts cost each other nothing only where it is sure that they are parts of one split."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import PureDP
from dpilot.privacy.ledger import Ledger

HALF = PureDP(0.5)


def made(tmp_path: Path, **terms: str) -> Ledger:
    return Ledger.open(tmp_path / "a.ledger", dataset="d", budget=Budget(3.0, 1e-5), **terms)


def spend(ledger: Ledger, part: str | None, split: str | None = None) -> None:
    with ledger.reserve(HALF, part=part, split=split):
        pass


def refused(ledger: Ledger, part: str, split: str | None) -> None:
    """At every door, with the remedy, and nothing is written."""
    head = ledger.head()
    with pytest.raises(InvalidInput, match=r"Pass split=split\.id"):
        ledger.fits(HALF, part=part, split=split)
    with pytest.raises(InvalidInput, match=r"Pass split=split\.id"), ledger.reserve(HALF, part=part, split=split):
        pytest.fail("the body ran")
    with pytest.raises(InvalidInput, match=r"Pass split=split\.id"):
        ledger.commit([("x", HALF), ("y", HALF, part, split)])
    assert ledger.head() == head


def test_unnamed_parts_are_of_one_split_and_cost_their_maximum(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    for part in ("train", "held-out", "train"):
        spend(ledger, part)
    assert ledger.spent().epsilon == 1.0


def test_unnamed_parts_are_refused_after_a_named_split(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    spend(ledger, "train", "first")
    refused(ledger, "held-out", None)
    spend(ledger, "held-out", "first")
    spend(ledger, "held-out", "second")
    assert ledger.spent().epsilon == 1.0


def test_named_splits_are_refused_after_unnamed_parts(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    spend(ledger, "train")
    refused(ledger, "held-out", "second")
    spend(ledger, "held-out")
    assert ledger.spent().epsilon == 0.5


def test_entries_of_no_part_go_with_either(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    for part in (None, "train", None, "held-out"):
        spend(ledger, part)
    assert ledger.spent().epsilon == 1.5


@pytest.mark.parametrize("mode", ["adaptive", "precommitted"])
def test_one_commitment_does_not_mix_either(tmp_path: Path, mode: str) -> None:
    ledger = made(tmp_path, mode=mode)
    with pytest.raises(InvalidInput, match=r"\['main', 'other'\]"):
        ledger.commit([("x", HALF, "train"), ("y", HALF, "held-out", "other")])
    assert ledger.entries() == ()


def test_planned_stages_count_before_they_begin(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    committed = ledger.commit([("x", HALF, "train", "first")])
    refused(ledger, "train", None)
    with committed.stage("x"):
        pass


def test_a_planned_stage_without_a_split_is_found_without_one(tmp_path: Path) -> None:
    ledger = made(tmp_path, mode="precommitted")
    ledger.commit([("x", HALF, "train"), ("y", HALF, "held-out")])
    for purpose, part in (("x", "train"), ("y", "held-out")):
        with ledger.reserve(HALF, purpose=purpose, part=part):
            pass
    assert [entry.state for entry in ledger.entries()] == ["committed"] * 2
