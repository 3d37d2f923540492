"""No attack of the catalogue moves a released sum by more than its bound: it is refused unpaid, or held."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from tests.attacks.case import OPEN, Attack
from tests.attacks.catalogue import ATTACKS
from tests.attacks.judge import POSITIONS, bite, built, chunk_sizes, judge

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a thread under vmap
CHUNKS = ("critical", "coprime", "one", "default")
every_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)


def held(*, strict: bool) -> pytest.MarkDecorator:
    """Every attack, of those that run in ``make test`` every second one.

    Those that are not held yet are expected to succeed (``strict``: here they must).
    """
    cases = []
    for place, (name, function) in enumerate(ATTACKS.items()):
        known = (pytest.mark.xfail(strict=strict, reason=OPEN[name]),) if name in OPEN else ()
        marks = (*known, pytest.mark.slow) if place % 2 else known
        cases.append(pytest.param(function, id=name, marks=marks))
    return pytest.mark.parametrize("attack", cases)


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """Undo what attacks set in the whole process."""
    collated = dict(default_collate_fn_map)
    yield
    torch.set_default_dtype(torch.float32)
    default_collate_fn_map.clear()
    default_collate_fn_map.update(collated)


@held(strict=True)
def test_an_attack_is_refused_or_within_one_bound(attack: Attack) -> None:
    case = built(attack)
    verdict = judge(attack, case.width, case.position)
    assert verdict.holds, verdict


@pytest.mark.slow
@held(strict=False)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_an_attack_is_refused_or_bounded_at_every_chunk_size(attack: Attack, chunk: str, position: str) -> None:
    verdict = judge(attack, chunk_sizes(built(attack))[CHUNKS.index(chunk)], position)
    assert verdict.holds, verdict


@pytest.mark.slow
@held(strict=False)
@pytest.mark.parametrize("chosen", ["vmap", "loop"])
def test_an_attack_is_refused_or_bounded_with_every_engine(attack: Attack, chosen: str) -> None:
    case = built(attack)
    verdict = judge(attack, case.width, case.position, chosen=chosen)
    assert verdict.holds, verdict


@pytest.mark.slow
@held(strict=False)
def test_an_attack_is_refused_or_bounded_in_a_loop_of_ones_own(attack: Attack) -> None:
    case = built(attack)
    verdict = judge(attack, case.width, case.position, way="own loop")
    assert verdict.holds, verdict


@every_attack
def test_an_attack_is_what_it_says(attack: Attack) -> None:
    """An engine that trusts the batched pass is moved by more than a bound where records meet, and only there."""
    case = built(attack)
    if case.mixes is not None:
        assert (bite(attack, case.position) > 1.01) == case.mixes


def test_the_catalogue_is_large() -> None:
    assert len(ATTACKS) >= 60
