"""Full-batch Gaussian stages compose in squares of mu."""

from __future__ import annotations

import numpy as np
import pytest

from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu, leftover_mu, stages_mu

DELTA = 1e-5


@pytest.mark.parametrize(
    ("trials", "final", "total", "leftover"),
    [
        ([0.1] * 3 + [0.2] * 3, 0.88, 0.99634, 0.88405),
        ([0.05] * 3 + [0.1] * 3, 0.96, 0.99173, 0.96848),
        ([0.01] * 3 + [0.1] * 3, 0.97, 0.99498, 0.97512),
        ([0.05] * 3 + [0.2] * 3, 0.90, 0.99717, 0.90308),
    ],
)
def test_stages_add_in_squares_and_leave_what_the_reference_says(trials, final, total, leftover):
    mus = [gdp_mu(Budget(e, DELTA)) for e in trials]
    spent = stages_mu([*mus, gdp_mu(Budget(final, DELTA))])
    assert gdp_epsilon(spent, DELTA) == pytest.approx(total, abs=2e-5)
    left = leftover_mu(gdp_mu(Budget(1.0, DELTA)), mus)
    assert gdp_epsilon(left, DELTA) == pytest.approx(leftover, abs=2e-5)


def test_what_is_left_never_overshoots_the_total():
    rng = np.random.default_rng(9)
    for _ in range(500):
        total = float(10 ** rng.uniform(-3, 2))
        trials = (rng.dirichlet(np.ones(4)) ** 0.5 * total * rng.uniform(0.01, 0.999999)).tolist()
        left = leftover_mu(total, trials)
        assert stages_mu([*trials, left]) <= total
        assert stages_mu([*trials, left * (1 + 1e-9)]) > total * (1 - 1e-9)
    assert leftover_mu(2.0, []) == 2.0
    with pytest.raises(InvalidInput):
        leftover_mu(1.0, [0.6, 0.8])
