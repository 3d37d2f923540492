"""No attack of the catalogue moves a released sum by more than its bound: it is refused unpaid, or held."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from tests.attacks.case import OPEN, Attack
from tests.attacks.catalogue import ATTACKS
from tests.attacks.judge import POSITIONS, bite, built, chunk_sizes, judge
from tests.thin import thin

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a thread under vmap
CHUNKS = ("critical", "coprime", "one", "default")


def mark(name: str, way: str) -> tuple[pytest.MarkDecorator, ...]:
    """An attack that is not held yet must succeed, but in the ways that are known to hold it."""
    known = name in OPEN and way not in OPEN[name].held_by
    return (pytest.mark.xfail(strict=True, reason=OPEN[name].why),) if known else ()


def attacks(every: int) -> pytest.MarkDecorator:
    """Every attack, of which one in ``every`` runs in ``make test``."""
    cases = [
        pytest.param(function, id=name, marks=(*mark(name, "auto"), *((pytest.mark.slow,) if place % every else ())))
        for place, (name, function) in enumerate(ATTACKS.items())
    ]
    return pytest.mark.parametrize("attack", cases)


def attacks_by(argument: str, ways: tuple[str, ...]) -> pytest.MarkDecorator:
    """Every attack in each of ``ways``."""
    cases = [
        pytest.param(function, way, id=f"{name}-{way}", marks=mark(name, way))
        for name, function in ATTACKS.items()
        for way in ways
    ]
    return pytest.mark.parametrize(("attack", argument), cases)


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """Undo what attacks set in the whole process."""
    collated = dict(default_collate_fn_map)
    yield
    torch.set_default_dtype(torch.float32)
    default_collate_fn_map.clear()
    default_collate_fn_map.update(collated)


@attacks(every=6)
def test_an_attack_is_refused_or_within_one_bound(attack: Attack) -> None:
    case = built(attack)
    verdict = judge(attack, case.width, case.position)
    assert verdict.holds, verdict


@pytest.mark.slow
@attacks_by("chunk", CHUNKS)
@pytest.mark.parametrize("position", POSITIONS)
def test_an_attack_is_refused_or_bounded_at_every_chunk_size(attack: Attack, chunk: str, position: str) -> None:
    verdict = judge(attack, chunk_sizes(built(attack))[CHUNKS.index(chunk)], position)
    assert verdict.holds, verdict


@pytest.mark.slow
@attacks_by("chosen", ("vmap", "loop"))
def test_an_attack_is_refused_or_bounded_with_every_engine(attack: Attack, chosen: str) -> None:
    case = built(attack)
    verdict = judge(attack, case.width, case.position, chosen=chosen)
    assert verdict.holds, verdict


@pytest.mark.slow
@attacks(every=1)
def test_an_attack_is_refused_or_bounded_in_a_loop_of_ones_own(attack: Attack) -> None:
    case = built(attack)
    verdict = judge(attack, case.width, case.position, way="own loop")
    assert verdict.holds, verdict


@attacks(every=16)
def test_an_attack_on_persons_is_refused_or_bounded(attack: Attack) -> None:
    """Rows meet that are not one person's, in chunks of as many rows as the critical width, and of as many persons."""
    case = built(attack)
    for chunk in (max(1, case.width // 4), case.width):
        verdict = judge(attack, chunk, case.position, way="persons")
        assert verdict.holds, verdict


@pytest.mark.parametrize("attack", thin(ATTACKS.values(), 9), ids=ATTACKS)
def test_an_attack_is_what_it_says(attack: Attack) -> None:
    """An engine that trusts the batched pass is moved by more than a bound where records meet, and only there."""
    case = built(attack)
    if case.mixes is not None:
        assert (bite(attack, case.position) > 1.01) == case.mixes


def test_the_catalogue_is_large() -> None:
    assert len(ATTACKS) >= 60
