"""Records, errors and residuals of groups: paid, bounded, right on average, covering."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.metrics import regression, residuals
from dpilot.metrics.residuals import (
    SHARE,
    Groups,
    both_events,
    exact_residuals,
    noisy_residuals,
    residual_scores,
    split_noise,
)
from dpilot.noise import seeded_noise
from dpilot.privacy.accountant import gdp_mu
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt

SITES = Groups(("north", "south", "nobody's"), "site")


def drawn(size, seed):
    """The first group is predicted well, the second too high by 0.1; nobody is in the third."""
    rng = np.random.default_rng(seed)
    x, group = rng.uniform(-0.6, 0.6, size), (rng.random(size) < 0.4).astype(float)
    return np.clip(x + rng.normal(0, 0.1, size), -1, 1), x + 0.1 * group, group


def noisy(records, deviation, seed):
    paid = {"receipt": Receipt(Gaussian(deviation)), "noise": seeded_noise(seed)}
    return noisy_residuals(*records, SITES, half_range=50.0, noise_multiplier=deviation, **paid)


def test_neighbours_move_the_table_by_no_more_than_the_bound(replay):
    def run(data):
        receipt = Receipt(Gaussian(1.0))
        return residual_scores(noisy_residuals(*data, SITES, half_range=1.0, noise_multiplier=1.0, receipt=receipt))

    results = replay(run, drawn(20, 0))
    extreme = tuple(np.append(values, end) for values, end in zip(drawn(20, 0), (1.0, -1.0, 2.0), strict=True))
    results += replay(run, extreme)
    assert max(result.largest for result in results) > 0.99


def test_one_record_moves_the_table_by_itself_though_sums_are_long():
    """Sums about a power of two, where floats become coarser: each small number is rounded one way or the other."""
    small = 2.0**-38
    rest = np.concatenate([np.ones(2**14 - 1), [0.5], np.tile([small / 2 * 1.0000001] * 4 + [-2 * small], 10_000)])
    held = [np.concatenate([first, rest]) for first in ([], [1.0])]
    one, two = (exact_residuals(np.zeros(len(r)), r, np.zeros(len(r)), SITES, half_range=1.0).table for r in held)
    assert np.array_equal((two - one)[0], [1.0, 1.0, 1.0])


def test_figures_of_all_and_of_groups_cost_what_figures_of_all_alone_would():
    assert gdp_mu(both_events(2.0)) == pytest.approx(gdp_mu(Gaussian(2.0)))
    assert split_noise(2.0)[0] < split_noise(2.0)[1]
    assert SHARE < 0.5


def test_a_table_without_a_receipt_is_refused():
    with pytest.raises(BudgetExceeded):
        noisy_residuals(
            *drawn(5, 0), SITES, half_range=1.0, noise_multiplier=1.0,
            receipt=Receipt(Gaussian(1.0), drawn=Gaussian(1.0)),
        )  # fmt: skip


def test_exact_figures_are_those_of_the_records():
    y, p, group = drawn(1000, 1)
    found = {(each.name, each.of): each for each in residual_scores(exact_residuals(y, p, group, SITES, half_range=50))}
    for code, name in enumerate(SITES.names[:2]):
        here, of = group == code, f"site = {name}"
        assert found["group records", of].value == pytest.approx(here.sum())
        assert found["group RMSE", of].value == pytest.approx(50 * np.sqrt(np.mean((y - p)[here] ** 2)))
        assert found["group mean residual", of].value == pytest.approx(50 * np.mean((p - y)[here]))
        assert found["group RMSE", of].exact
    assert found["group records", "site = nobody's"].value == 0


@pytest.mark.parametrize("population", [False, True], ids=["noise", "noise and sampling"])
@pytest.mark.parametrize(("size", "deviation"), [(400, 3.7), (4000, 3.7)])
def test_figures_are_covered(size, deviation, population):
    fixed = drawn(size, 2)
    wanted = residual_scores(exact_residuals(*(drawn(300_000, 3) if population else fixed), SITES, half_range=50.0))
    held = Counter()
    for seed in range(200):
        found = residual_scores(noisy(drawn(size, 100 + seed) if population else fixed, deviation, seed))
        for each, true in zip(found, wanted, strict=True):
            aim = true.value * size / 300_000 if population and each.name == "group records" else true.value
            low, high = each.sampling_interval if population else each.noise_interval
            held[each.name, each.of] += low <= aim <= high
    known = {key: count for key, count in held.items() if "nobody" not in key[1] or key[0] == "group records"}
    assert min(known.values()) > 200 * 0.9, known


def test_a_group_that_is_treated_worse_is_seen():
    found = {(each.name, each.of): each for each in residual_scores(noisy(drawn(4000, 5), 3.7, 5))}
    north, south = (found["group mean residual", f"site = {name}"].noise_interval for name in ("north", "south"))
    assert north[1] < south[0]
    assert south[0] > 2.5


def test_null_records_add_nothing():
    records = drawn(10, 1)
    odd = ([np.nan, 2.0, 0.5, 0.1, 0.1, 0.1], [0.0, 0.0, np.inf, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, np.nan, 3.0, 0.5])
    more = tuple(np.append(values, extra) for values, extra in zip(records, odd, strict=True))
    one, two = (exact_residuals(*each, SITES, half_range=1.0) for each in (records, more))
    assert np.array_equal(one.table, two.table)


def test_shapes_are_checked():
    with pytest.raises(InvalidInput, match="groups"):
        exact_residuals(np.zeros(3), np.zeros(3), np.zeros(2), SITES, half_range=1.0)


def test_no_number_of_a_record_raises_whatever_numpy_is_set_to():
    small = np.array([1e-200, 1e-100, 5e-324, 0.5])
    with np.errstate(all="raise"):
        assert np.isfinite(residuals._table(small, np.zeros(4), np.zeros(4), 1)).all()
        assert np.isfinite(regression._vector(small, np.zeros(4))).all()
