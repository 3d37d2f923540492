"""Why an adaptive threshold needs a floor: the mean of points at 0 (60 %) and at 1 (40 %).

It is the toy of Figure 1 of Zhao et al. 2026. Public numbers, no noise, no privacy: a picture of the rule alone.
Run it to draw the picture::

    python examples/clipping_toy.py docs/clipping_toy.svg
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from dpilot import clipping
from dpilot.clipping import Clipping

POINTS = torch.tensor([0.0] * 60 + [1.0] * 40, dtype=torch.float64)
RULES = {
    "unbounded": clipping.get("quantile", tau=1.0, target=0.5),
    "floor 0.1": clipping.get("bounded", tau=1.0, target=0.5, floor=0.1),
    "floor 0.6": clipping.get("bounded", tau=1.0, target=0.5, floor=0.6),
}


@dataclass(frozen=True, slots=True)
class Path:
    """The estimate of the mean and the threshold after each step."""

    estimates: list[float]
    thresholds: list[float]


def descend(rule: Clipping, steps: int = 2000, step_size: float = 0.1, first: float = 0.5) -> Path:
    """Gradient descent on the mean of (x - estimate)^2 / 2 with gradients clipped by the rule."""
    state = rule.init(noise_multiplier=1.0, expected_batch_size=len(POINTS), dimension=1)
    estimate, path = torch.tensor(first, dtype=torch.float64), Path([], [])
    for _ in range(steps):
        gradients = estimate - POINTS
        weights, extras = rule.clip(gradients.abs(), state)
        estimate = estimate - step_size * (weights * gradients).mean()
        state = rule.update(state, extras.sum(0))
        path.estimates.append(float(estimate))
        path.thresholds.append(float(state.threshold))
    return path


def draw(target: str) -> None:
    """One line a rule: the estimate on the left, the threshold on the right."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dpilot"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for (name, rule), style in zip(RULES.items(), ("-", "--", ":"), strict=True):
        path = descend(rule)
        left.plot(path.estimates, style, label=f"{name}: ends at {path.estimates[-1]:.3f}")
        right.semilogy(path.thresholds, style, label=name)
    left.axhline(0.4, color="grey", linewidth=0.8)
    left.set(xlabel="step", ylabel="estimate of the mean (true: 0.4)")
    right.set(xlabel="step", ylabel="threshold", ylim=(1e-5, 2))
    left.legend(), right.legend()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "clipping_toy.svg")
