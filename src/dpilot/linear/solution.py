"""What a method releases: coefficients in standardised units, and what is known of their noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.descent import Descent
from dpilot.linear.gram_matrix import Gram

__all__ = ["Solution", "standard_errors"]


@dataclass(frozen=True, slots=True)
class Solution:
    """Released: ``theta``, one coefficient a column of the standardised table (intercept last, if any).

    ``noise`` is the standard deviation of privacy noise in each coordinate of whitening^-1 theta.
    """

    theta: Floats
    gram: Gram | None = None
    noise: float = 0.0
    whitening: Floats | None = None
    descent: Descent | None = None
    threshold: float | None = None
    choice: str | None = None


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
