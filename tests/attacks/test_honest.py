"""Honest models run, whichever engine takes them: norms and gradients are those of a float64 loop over records."""

from __future__ import annotations

import pytest
import torch

from dpilot import engine
from tests.attacks.case import Case, regression, squared
from tests.attacks.honest import LIBRARY, MODELS, PRODUCTS, Honest, Make, N, Product, product
from tests.attacks.judge import judge
from tests.attacks.oracle import alone, wrong
from tests.thin import thin


def check(case: Honest) -> None:
    ours = engine.per_sample(case.model, case.loss, case.batch, per_batch=case.per_batch)
    assert bool(ours.norms.isfinite().all())
    assert float(ours.norms.min()) > 0
    if not case.random:
        truth = alone(case.model, case.loss, case.batch, case.per_batch, case.truth)
        found = wrong(ours, truth, excess=case.excess)
        assert not found, found


@pytest.mark.parametrize(
    ("spelling", "width"),  # 2 widths in turn are slow: make test runs every spelling at one width
    thin([(spelling, (N, N + 1, 1)[(i + j) % 3]) for i, spelling in enumerate(PRODUCTS) for j in range(3)], 6),
)
def test_every_spelling_of_a_product_runs_at_every_width(spelling: str, width: int) -> None:
    torch.manual_seed(0)
    check(product(spelling, width))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [N, N + 1, 1, None])
@pytest.mark.parametrize("spelling", PRODUCTS)
def test_a_whole_run_of_a_product_is_within_one_bound(spelling: str, chunk: int | None) -> None:
    verdict = judge(lambda: Case(Product(spelling, N), squared, *regression()), chunk, "first")
    assert verdict.refused is None
    assert verdict.holds, verdict


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_an_honest_model_runs(make: Make) -> None:
    torch.manual_seed(0)
    check(make())


@pytest.mark.slow
@pytest.mark.parametrize("make", LIBRARY.values(), ids=LIBRARY)
def test_a_model_of_another_library_runs(make: Make) -> None:
    torch.manual_seed(0)
    check(make())
