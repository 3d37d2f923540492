"""What it costs: budgets, events, accountants, calibration, selection, the batch rule, the ledger.

Promises that no cost is below the true one, and that nothing is spent that the ledger does not hold. Imports the
ground only, and no torch. Inside: events -> rdp, pld -> selection -> accountant -> calibrate, filters -> ledger.

>>> from dpilot import Budget, privacy
>>> sigma = privacy.noise_multiplier(Budget(1.0, 1e-5), sample_rate=0.01, steps=1000)
>>> privacy.epsilon(noise_multiplier=sigma, sample_rate=0.01, steps=1000, delta=1e-5) <= 1.0
True
"""

from __future__ import annotations

from dpilot import _validate
from dpilot.privacy import accountant as _accountant
from dpilot.privacy import events
from dpilot.privacy.batch_rule import BatchAdvice, BatchRow, batch_rule
from dpilot.privacy.budget import Budget, Cost, check_delta, default_delta
from dpilot.privacy.calibrate import noise_multiplier, scale_for
from dpilot.privacy.gaussian import gdp_delta, gdp_epsilon, gdp_mu
from dpilot.privacy.selection import selection_epsilon

__all__ = [
    "BatchAdvice",
    "BatchRow",
    "Budget",
    "Cost",
    "batch_rule",
    "check_delta",
    "default_delta",
    "epsilon",
    "events",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "noise_multiplier",
    "scale_for",
    "selection_epsilon",
]


def epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float, accountant: str = "pld") -> float:
    """epsilon of ``steps`` Poisson-sampled Gaussian steps at ``delta``: never below the true one.

    Args:
        noise_multiplier: the standard deviation of the noise over the L2 sensitivity.
        sample_rate: the probability with which a step takes a record, in (0, 1].
        steps: how many steps there are.
        delta: the delta of the guarantee, in (0, 1).
        accountant: "pld" (tight), "rdp", or "gdp" (exact, refused unless ``sample_rate`` is 1).
    """
    rate = _validate.rate("It is batch_size / size, declared.", sample_rate=sample_rate)
    step = events.PoissonSampled(rate, events.Gaussian(noise_multiplier))
    return _accountant.epsilon(events.Repeated(step, _validate.count(steps=steps)), delta, accountant)
