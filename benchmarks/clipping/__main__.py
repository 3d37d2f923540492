"""Threshold trajectories of every rule from three first thresholds, and what a rule costs beside constant.

python -m benchmarks clipping [--quick]

A simulation: seeded noise, scales read from the data, no ledger and no privacy claim.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
from pathlib import Path

import torch

from benchmarks.clipping import tasks
from benchmarks.clipping.simulate import SIGMA, rule_seconds, step_seconds, trajectory
from benchmarks.clipping.tasks import Task
from dpilot import clipping

FIRST = (0.1, 1.0, 10.0)
HERE = Path(__file__).parent

Lines = dict[str, dict[float, list[float]]]
Costs = dict[str, tuple[float, float]]


def lines(task: Task) -> Lines:
    """Rule -> first threshold -> thresholds, in the normalized form so that one step size fits all."""
    return {
        name: {first: trajectory(task, clipping.get(name, threshold=first, normalized=True)) for first in FIRST}
        for name in clipping.names()
    }


def costs(task: Task, repeats: int) -> tuple[float, Costs]:
    """The median step under constant, and for each rule its own median time and the same as a share beside constant."""
    step = step_seconds(task, clipping.get("constant"), repeats)
    plain = rule_seconds(task, clipping.get("constant"), 20 * repeats)
    each = {name: rule_seconds(task, clipping.get(name), 20 * repeats) for name in clipping.names()}
    return step, {name: (time, (time - plain) / step) for name, time in each.items()}


def draw(found: dict[str, Lines], target: Path) -> None:
    """One row a task, one column a first threshold, one line a rule."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dpilot"
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(len(found), len(FIRST), figsize=(12, 7), sharey="row", layout="constrained")
    for row, (task, rules) in zip(grid, found.items(), strict=True):
        for axes, first in zip(row, FIRST, strict=True):
            for index, (name, paths) in enumerate(rules.items()):
                axes.semilogy(paths[first], ("-", "--", ":")[index // 5], label=name, linewidth=1.2)
            axes.set(title=f"{task}\nfirst threshold {first:g}", xlabel="step")
            axes.title.set_fontsize(9)
        row[0].set_ylabel("threshold")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=7)
    figure.savefig(target, metadata={"Date": None})


def report(found: dict[str, Lines], measured: dict[str, tuple[float, Costs]]) -> str:
    """The results as Markdown."""
    text = [
        "# Clipping rules: trajectories and cost\n",
        f"{datetime.date.today().isoformat()}, a 2-core x86 CPU, torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread, commit {_commit()}.",
        "Command: `python -m benchmarks clipping`. **A simulation**: seeded noise, scales read from the data,",
        f"no ledger, no privacy claim. Noise multiplier {SIGMA:g}; normalized form; default parameters.\n",
        "![threshold trajectories](trajectories.svg)\n",
        "## Where the thresholds end (mean of the last tenth of the steps)\n",
    ]
    for task, rules in found.items():
        text += [f"\n{task}:\n", _row("rule", *(f"from {first:g}" for first in FIRST)), "|---|---|---|---|"]
        text += [_row(name, *(_end(paths[first]) for first in FIRST)) for name, paths in rules.items()]
    text += ["\n## Cost beside constant (medians of processor time on one thread)\n"]
    for task, (step, each) in measured.items():
        text += [f"\n{task}: a step under constant takes {1e3 * step:.2f} ms.\n"]
        text += [_row("rule", "clip and update, microseconds", "beside constant, share of a step"), "|---|---|---|"]
        text += [_row(name, f"{1e6 * time:.0f}", f"{100 * share:+.2f} %") for name, (time, share) in each.items()]
    return "\n".join(text) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _end(path: list[float]) -> str:
    last = path[-max(1, len(path) // 10) :]
    return f"{sum(last) / len(last):.3g}"


def _commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    return answer.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks clipping", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, nothing written")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    both = [tasks.adult(quick), tasks.fashion(quick)]
    measured = {task.name: costs(task, 3 if quick else 15) for task in both}
    found = {task.name: lines(task) for task in both}
    text = report(found, measured)
    print(text)
    if not quick:
        draw(found, HERE / "trajectories.svg")
        (HERE / "RESULTS.md").write_text(text)


if __name__ == "__main__":
    main()
