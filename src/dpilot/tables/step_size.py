"""A step size from declared numbers alone: free, until a tuner pays for a better one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["RADIUS", "StepNumbers", "data_free_step"]

RADIUS: Final = 4.0
_MOST: Final = 16.0


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What may decide the step size: the plan's numbers, the number of parameters, and the model's and target's kind.

    ``mean_square`` is about the squared length of a row of features, by declaration.
    """

    batch_size: float
    steps: int
    noise_multiplier: float
    parameters: int
    mean_square: float
    model: str
    numeric_target: bool


def data_free_step(numbers: StepNumbers) -> float:
    """The step with which the noise alone would carry the parameters a distance of 4, in a run of constant steps.

    ::

        lr = min(4 B / (sigma sqrt(p T)), 16)

    for gradients in units of the clipping threshold: T steps of noise sigma / B in each of p coordinates make a random
    walk of length lr sigma sqrt(p T) / B. A logistic model of a table has weights of length 3 to 12, so a walk of about
    that length still leaves the signal; the cosine that ends the run takes most of the walk back.

    Edge cases:
        numeric target        a squared loss has curvature everywhere, so lr is at most 1 / (mean squared row)

    Example:
        >>> numbers = StepNumbers(1024, 400, 2.0, 240, 12.0, "logistic", numeric_target=False)
        >>> round(data_free_step(numbers), 3)
        6.61

    Reference:
        4 and 16 were chosen on bank marketing, credit default, law school and the Dutch census at epsilon 0.3, 1, 4.
    """
    noise = numbers.noise_multiplier * math.sqrt(numbers.parameters * numbers.steps) / numbers.batch_size
    lr = min(RADIUS / noise, _MOST)
    return min(lr, 1 / numbers.mean_square) if numbers.numeric_target else lr
