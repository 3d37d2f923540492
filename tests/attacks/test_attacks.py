"""No attack of the catalogue moves a released sum by more than its bound: it is refused unpaid, or held."""

from __future__ import annotations

import pytest

from tests.attacks.case import Attack
from tests.attacks.catalogue import ATTACKS
from tests.attacks.judge import POSITIONS, bite, built, chunk_sizes, judge

every_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)


@every_attack
@pytest.mark.parametrize("position", ["last", "first"])
def test_no_attack_moves_a_sum_by_more_than_its_bound(attack: Attack, position: str) -> None:
    verdict = judge(attack, built(attack).width, position)
    assert verdict.holds, verdict


@pytest.mark.slow
@every_attack
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("which", ["critical", "coprime", "one", "default"])
def test_no_attack_holds_at_any_chunk_size(attack: Attack, which: str, position: str) -> None:
    chunk = chunk_sizes(built(attack))[["critical", "coprime", "one", "default"].index(which)]
    verdict = judge(attack, chunk, position)
    assert verdict.holds, verdict


@every_attack
def test_an_attack_is_what_it_says(attack: Attack) -> None:
    """An engine that trusts the batched pass is moved by more than a bound where records meet, and only there."""
    mixes = built(attack).mixes
    if mixes is not None:
        assert (max(bite(attack, position) for position in ("last", "first")) > 1.01) == mixes


def test_the_catalogue_is_large() -> None:
    assert len(ATTACKS) >= 60
