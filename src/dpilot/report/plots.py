"""Plots of released and public numbers. Nothing here sees a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from dpilot import _validate
from dpilot.privacy.batch_rule import BatchAdvice


def batch_plot(advices: Sequence[BatchAdvice], path: str | Path) -> Path:
    """Cumulative noise against batch size, log-log, one line an epsilon, the recommended point marked."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise _validate.missing_extra("matplotlib", "plot") from None

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for advice in advices:
        (drawn,) = axes.plot(
            [row.batch_size for row in advice.table],
            [row.cumulative_noise for row in advice.table],
            marker=".",
            label=f"epsilon {advice.budget.epsilon:g}",
        )
        chosen = next(row for row in advice.table if row.batch_size == advice.batch_size)
        axes.plot(chosen.batch_size, chosen.cumulative_noise, "o", ms=11, mfc="none", mew=2, color=drawn.get_color())
        label = f"{advice.batch_size:,} x {advice.steps:,} steps"
        point = (chosen.batch_size, chosen.cumulative_noise)
        late = 2 * math.log(chosen.batch_size) > sum(math.log(advice.table[end].batch_size) for end in (0, -1))
        place = {"xytext": (-8, -16), "ha": "right"} if late else {"xytext": (8, 8)}
        axes.annotate(label, point, textcoords="offset points", fontsize=9, **place)
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="cumulative noise, noise multiplier x sqrt(steps)")
    axes.set_title(f"{advices[0].size:,} records, {advices[0].epochs:g} epochs, delta {advices[0].budget.delta:g}")
    axes.grid(which="both", alpha=0.25)
    axes.legend(title="circle: recommended")
    figure.savefig(path, dpi=130)
    return Path(path)
