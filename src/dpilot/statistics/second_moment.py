"""The second moment of bounded records: what least squares needs of them."""

from __future__ import annotations

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.mechanism import SYSTEM, Draws, Noise, gaussian_event, release_symmetric
from dpilot.privacy.events import Event
from dpilot.statistics.rows import Data, into_ball, parts


def second_moment_event(noise_multiplier: float) -> Event:
    """What ``second_moment`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def second_moment(
    data: Data, *, radius: float, noise_multiplier: float, receipt: Draws, noise: Noise = SYSTEM
) -> Floats:
    """The noisy sum of z z^T over the records, a symmetric (d, d) matrix, not divided by anything.

    ::

        smat( sum svec(z z^T) + N(0, (noise_multiplier * radius^2)^2 I) )        z = x scaled down to |z| <= radius

    Guarantee:
        One record moves svec(sum z z^T) by |z z^T|_F = |z|^2 <= radius^2, all columns and products together: put the
        intercept and the target among the columns, and they are covered. A Gaussian of ``noise_multiplier``.

    Edge cases:
        Rows longer than ``radius`` are scaled down to it. A record that is not finite is the null record.
        The result is symmetric but, being noisy, may have negative eigenvalues.

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> paid = Receipt(second_moment_event(1.0))
        >>> noisy = second_moment(np.eye(2).repeat(500, 0), radius=1.0, noise_multiplier=1.0, receipt=paid)
        >>> bool(np.abs(noisy - 500 * np.eye(2)).max() < 10)
        True

    Reference:
        svec and its noise: Sheffet 2017; as sufficient statistics: Wang, "Revisiting differentially private linear
        regression", UAI 2018.
    """
    radius = _validate.positive(radius=radius)
    total = np.asarray(sum(_gram(into_ball(rows, radius)) for rows in parts(data)))
    return release_symmetric(
        total, bound=radius * radius, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise
    )


def _gram(rows: Floats) -> Floats:
    return rows.T @ rows
