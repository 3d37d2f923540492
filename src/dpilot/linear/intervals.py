"""Standard errors of the coefficients, from what was released already: they cost nothing."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.solution import Solution

__all__ = ["standard_errors"]

_INEFFICIENCY: Final = 1.35  # of clipped steps beside least squares: set so that simulated intervals cover


def standard_errors(solution: Solution, size: float) -> Floats | None:
    """The standard error of each standardised coefficient, sampling and privacy noise together; None if unknown.

    ::

        variance = diag(P P^T) (noise^2 + 1.35 risk / size),     P the whitening, noise that of the averaged steps

    The target is the coefficient of the population whose clipped, standardised records these are. Clipping bias is not
    in it, and the risk is the noisy one, floored at the noise it has.

    Edge cases:
        Only what the steps found has one: solutions read off the moments, and other methods, give None.
    """
    if solution.descent is None or solution.whitening is None or solution.gram is None:
        return None
    if solution.choice not in (None, "steps"):
        return None
    risk = max(solution.gram.risk(solution.theta), solution.gram.noise)
    spread = solution.noise**2 + _INEFFICIENCY * risk / max(size, 1.0)
    return np.asarray(np.linalg.norm(solution.whitening, axis=1) * math.sqrt(spread))
