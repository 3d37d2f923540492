"""Calibration against dp-accounting's own, in one run: seconds, ratio, and the fine epsilon of what was returned.

python -m benchmarks calibration [--quick]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from dpilot import Budget
from dpilot.privacy import calibrate, noise_multiplier, pld
from dpilot.privacy.events import Gaussian, PoissonSampled, Repeated
from dpilot.privacy.rdp import quiet

CASES = [(512 / 60_000, 3540, 3.0), (512 / 50_000, 8820, 8.0), (0.2, 400, 1.0)]
DELTA = 1e-5


def seconds(function: Callable[[], float], times: int) -> tuple[float, float]:
    """Median wall time and the last result."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        result = function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken), result


def ours(rate: float, steps: int, epsilon: float) -> float:
    calibrate._calibrate.cache_clear()
    return noise_multiplier(Budget(epsilon, DELTA), sample_rate=rate, steps=steps)


def theirs(rate: float, steps: int, epsilon: float) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def event(sigma: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, steps)

    with quiet():
        return float(dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, epsilon, DELTA, tol=1e-3))


def fine(sigma: float, rate: float, steps: int) -> float:
    return pld.epsilon(Repeated(PoissonSampled(rate, Gaussian(sigma)), steps), DELTA, 1e-4)


def main() -> None:
    times = 3 if "--quick" in sys.argv else 15
    ours(0.1, 10, 1.0)  # loads the library
    print(f"{'rate':>9} {'steps':>6} {'eps':>4} {'ours ms':>8} {'theirs ms':>10} {'ratio':>6}  fine epsilon / target")
    for rate, steps, epsilon in CASES:
        fast, sigma = seconds(lambda: ours(rate, steps, epsilon), times)  # noqa: B023
        slow, other = seconds(lambda: theirs(rate, steps, epsilon), 1 if times == 3 else 3)  # noqa: B023
        shares = [fine(value, rate, steps) / epsilon for value in (sigma, other)]
        print(
            f"{rate:9.6f} {steps:6d} {epsilon:4.0f} {fast * 1e3:8.0f} {slow * 1e3:10.0f} {slow / fast:6.1f}  "
            f"ours {shares[0]:.5f}, theirs {shares[1]:.5f}"
        )


if __name__ == "__main__":
    main()
