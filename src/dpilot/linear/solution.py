"""What a method releases: coefficients in standardised units, and what is known of their noise."""

from __future__ import annotations

from dataclasses import dataclass

from dpilot._arrays import Floats
from dpilot.linear.descent import Descent
from dpilot.linear.gram import Gram

__all__ = ["Solution"]


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
