"""The batch rule: Rehn et al.'s figures, the plateau, and advice without data."""

from __future__ import annotations

import pytest

from dpilot import Budget, privacy
from dpilot.errors import InvalidInput

CANDIDATES = [256, 1024, 4096, 16384]
CUMULATIVE = {  # size 50,000, 8 epochs, delta 1e-5
    0.5: [64.11, 59.60, 58.37, 56.49],
    1: [41.40, 34.45, 32.22, 30.60],
    2: [31.26, 22.26, 18.78, 17.01],
    4: [25.32, 16.28, 12.00, 9.89],
    8: [20.69, 12.60, 8.37, 6.10],
}
RECOMMENDED = {0.5: 1024, 1: 4096, 2: 16384, 4: 16384, 8: 16384}


@pytest.mark.parametrize("epsilon", CUMULATIVE)
def test_published_figures(epsilon: float) -> None:
    advice = privacy.batch_rule(Budget(epsilon, 1e-5), size=50_000, epochs=8, candidates=CANDIDATES)
    assert [row.steps for row in advice.table] == [1562, 391, 98, 24]
    assert [row.cumulative_noise for row in advice.table] == pytest.approx(CUMULATIVE[epsilon], rel=1.5e-3)
    assert advice.batch_size == RECOMMENDED[epsilon]
    chosen = next(row for row in advice.table if row.batch_size == advice.batch_size)
    assert (chosen.steps, chosen.noise_multiplier) == (advice.steps, advice.noise_multiplier)
    assert chosen.effective_noise == pytest.approx(chosen.noise_multiplier * 50_000 / chosen.batch_size)
    assert f"batch {advice.batch_size:,}" in advice.reason


def test_tolerance_and_least_steps_are_parameters() -> None:
    budget = Budget(1.0, 1e-5)
    wide = privacy.batch_rule(budget, size=50_000, epochs=8, candidates=CANDIDATES, tolerance=0.2)
    strict = privacy.batch_rule(budget, size=50_000, epochs=8, candidates=CANDIDATES, tolerance=0.0)
    long = privacy.batch_rule(budget, size=50_000, epochs=8, candidates=CANDIDATES, min_steps=200, tolerance=0.0)
    assert (wide.batch_size, strict.batch_size, long.batch_size) == (1024, 16384, 1024)


def test_too_few_steps_are_said() -> None:
    advice = privacy.batch_rule(Budget(1.0, 1e-5), size=1000, epochs=0.1, candidates=[50, 100, 1000])
    assert advice.batch_size == 50
    assert advice.steps == 2
    assert "no candidate gives 20 steps" in advice.reason


def test_default_candidates_end_with_the_full_batch() -> None:
    table = privacy.batch_rule(Budget(1.0, 1e-4), size=300, epochs=40).table
    assert [row.batch_size for row in table] == [32, 64, 128, 256, 300]
    assert privacy.batch_rule(Budget(1.0, 1e-2), size=1, epochs=1).table[0].batch_size == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"size": 0}, "size"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": float("nan")}, "epochs"),
        ({"candidates": [2000]}, "at most the size"),
        ({"candidates": [0]}, "batch_size"),
        ({"candidates": []}, "candidates"),
        ({"min_steps": 0}, "min_steps"),
        ({"tolerance": -1}, "tolerance"),
    ],
)
def test_bad_numbers_are_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        privacy.batch_rule(Budget(1.0, 1e-5), **({"size": 1000, "epochs": 1} | change))
