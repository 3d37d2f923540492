"""Random models are refused, or their records' gradients are those of each record alone."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest

from dpilot import engine
from dpilot.errors import DpilotError
from tests.attacks.generator import HONEST, MIXING, Program, program
from tests.attacks.oracle import alone, norm, together, wrong

QUICK, ALL = 30, 2000


def verdict(made: Program) -> str:
    """'refused', 'right', or what is wrong."""
    truth = alone(made.model, made.loss, made.batch, True)
    earlier = tuple(t.flip(0) for t in made.batch)
    try:
        engine.per_sample(made.model, made.loss, earlier, per_batch=True)  # what it leaves behind must not show
        ours = engine.per_sample(made.model, made.loss, made.batch, per_batch=True)
    except DpilotError:
        return "refused"
    return wrong(ours, truth, tolerance=1e-6) or "right"


def verdicts(seeds: range) -> Counter[tuple[bool, str]]:
    """Verdicts by whether records meet; the first wrong program is shown."""
    found: Counter[tuple[bool, str]] = Counter()
    failures = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            made = program(seed)
            said = verdict(made)
            found[made.mixes, said if said in ("refused", "right") else "wrong"] += 1
            if said not in ("refused", "right"):
                failures.append(f"seed {seed}, {said}\n{made.source}")
    assert not failures, f"{len(failures)} programs are accepted and wrong. {failures[0]}"
    return found


def test_no_random_model_is_accepted_and_wrong() -> None:
    found = verdicts(range(QUICK))
    assert found[False, "right"] > found[False, "refused"], f"honest programs are refused: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, ALL, 100))
def test_none_of_many_random_models_is_accepted_and_wrong(start: int) -> None:
    verdicts(range(start, start + 100))


def meets(made: Program) -> bool:
    """Whether a record's gradient in the batch is another than alone."""
    truth = alone(made.model, made.loss, made.batch, True)
    batched = together(made.model, made.loss, made.batch, True)
    apart = [norm({name: b[name] - g for name, g in a.items()}) for a, b in zip(truth, batched, strict=True)]
    return max(apart) > 1e-6 * max(norm(one) for one in truth)


def test_records_meet_in_programs_that_mix_and_in_no_others() -> None:
    made = [program(seed) for seed in range(100)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [one.seed for one in made if not one.mixes and meets(one)] == []
        mixing = [meets(one) for one in made if one.mixes]
    assert sum(mixing) > 0.75 * len(mixing)


def test_programs_are_made_of_every_kind_of_operation() -> None:
    made = [program(seed) for seed in range(600)]
    seen = {kind for one in made for kind in one.kinds}
    assert seen >= HONEST.keys() | MIXING.keys()
    assert len(seen) > 40
    assert 0.3 < sum(one.mixes for one in made) / len(made) < 0.7


def test_a_seed_makes_the_same_program_again() -> None:
    assert program(7).source == program(7).source
