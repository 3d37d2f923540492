"""How many records there are, privately."""

from __future__ import annotations

from dpilot.mechanism import SYSTEM, Draws, Noise, gaussian_event, release
from dpilot.privacy.events import Event
from dpilot.statistics.rows import Data, parts


def count_event(noise_multiplier: float) -> Event:
    """What ``count`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def count(data: Data, *, noise_multiplier: float, receipt: Draws, noise: Noise = SYSTEM) -> float:
    """The number of records plus noise: ``n + N(0, noise_multiplier^2)``.

    Guarantee:
        Sensitivity 1, as one record adds one row. A Gaussian of ``noise_multiplier``.

    Edge cases:
        A record with a value that is not finite is the null record and is not counted. The result may be negative.

    Example:
        >>> import numpy as np
        >>> from dpilot.privacy.receipt import Receipt
        >>> noisy = count(np.zeros(1000), noise_multiplier=2.0, receipt=Receipt(count_event(2.0)))
        >>> 900 < noisy < 1100
        True
    """
    total = float(sum(rows.shape[0] for rows in parts(data)))
    return release(total, bound=1.0, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)
