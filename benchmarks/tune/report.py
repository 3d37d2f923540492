"""RESULTS.md and its plots, from what the parts wrote."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tune import data
from benchmarks.tune.methods import FEW, reduction
from benchmarks.tune.threshold import best
from dpilot.tune import compare

Found = dict[str, Any]


def write(measured: Path, target: Path) -> None:
    """Every part that was measured, in one page."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(measured.glob("*.json"))}
    parts = {
        "goals": goals,
        "shares": shares,
        "hopeless": hopeless,
        "adult": adult,
        "speed": speed,
        "defaults": defaults,
        "threshold": threshold,
    }
    lines = [target.joinpath("preface.md").read_text().rstrip(), ""]
    for name, tell in parts.items():
        if name in found:
            lines += [*tell(found[name]), "", *_stamps(found[name]), ""]
    target.joinpath("RESULTS.md").write_text("\n".join(lines).rstrip() + "\n")
    if "shares" in found:
        draw_shares(found["shares"], target / "shares.svg")


def goals(found: Found) -> Iterator[str]:
    yield "## Methods at the same total epsilon"
    yield ""
    yield "Median test accuracy (least to greatest) of the runs counted in the second column; every row pays for all it"
    yield "does, but grid_oracle and non-private. Relative error-rate reduction (Panda et al. 2024, Table 3):"
    yield "(ours - random) / (oracle - random), of mean accuracies as theirs, random being one run with the"
    yield "whole budget and a draw from three decades of step sizes."
    for goal in data.GOALS:
        if goal.name not in found:
            continue
        each = found[goal.name]["found"]
        ways = each["ways"]
        aim = f", aim {goal.target:.1%}" if goal.target else ""
        yield ""
        yield f"**{goal.name}**, epsilon {goal.epsilon:g}, n = {each['n']:,}{aim}"
        yield ""
        yield "| method | runs | test accuracy | to the oracle | seconds a run |"
        yield "|---|---|---|---|---|"
        top = statistics.median(ways["grid_oracle"]) if "grid_oracle" in ways else None
        for name, values in ways.items():
            seconds = f"{each['seconds'][name]:.2g}" if name in each["seconds"] else ""
            gap = "" if top is None else f"{100 * (statistics.median(values) - top):+.2f}"
            yield f"| {name} | {len(values)} | {_spread(values)} | {gap} | {seconds} |"
        if top is None:
            continue
        yield f"| non-private | 1 | {each['non-private']:.2%} | {100 * (each['non-private'] - top):+.2f} | |"
        if "random_search, 1 run" in ways:
            mean = {name: statistics.mean(values) for name, values in ways.items()}
            found_by = [
                f"{name} {reduction(mean[name], mean['random_search, 1 run'], mean['grid_oracle']):.1%}"
                for name in FEW
                if name in mean
            ]
            yield ""
            yield "Relative error-rate reduction: " + ", ".join(found_by) + "."
        yield ""
        yield f"Oracle: lr {each['oracle']['lr']:.3g}, {each['oracle']['steps']} steps; by C r / (mu n): " + ", ".join(
            f"{float(ratio):.3g}: {statistics.mean(values):.2%}" for ratio, values in each["oracle"]["by ratio"].items()
        )
        yield ""
        yield "The last autopilot said: " + " ".join(each["said"]["autopilot"])
    yield ""
    yield "`compare(Budget(1.0, 1e-5), size=50_000)`, from declared numbers alone:"
    yield ""
    yield "```"
    yield str(compare(data.GOALS[0].budget, size=50_000))
    yield "```"


def shares(found: Found) -> Iterator[str]:
    yield "## Accuracy against the share of mu^2 that tuning takes"
    yield ""
    yield "![accuracy against the share](shares.svg)"
    yield ""
    names = list(found)
    yield "| share | " + " | ".join(names) + " |"
    yield "|---|" + "---|" * len(names)
    for share in found[names[0]]["found"]:
        cells = [_spread(found[name]["found"][share]) for name in names]
        yield f"| {float(share):.1%}{' (data-free)' if share == '0' else ''} | " + " | ".join(cells) + " |"


def hopeless(found: Found) -> Iterator[str]:
    yield "## Where trials are hopeless"
    for name, each in found.items():
        values = each["found"]
        yield ""
        yield f"500 records of {name}, epsilon 0.1, {len(values['data-free'])} runs. Trials made: {values['trials']}."
        yield f'It says: "{values["said"]}"'
        yield ""
        yield "| | mean test accuracy | standard error |"
        yield "|---|---|---|"
        for way in ("linear_scaling", "autopilot", "data-free"):
            error = statistics.stdev(values[way]) / len(values[way]) ** 0.5
            yield f"| {way} | {statistics.mean(values[way]):.2%} | {error:.2%} |"


def adult(found: Found) -> Iterator[str]:
    yield "## Adult, epsilon 1, through AutoClassifier"
    for each in (entry["found"] for entry in found.values()):
        best = [max(column) for column in zip(*(_medians(v) for v in each["oracle"].values()), strict=True)]
        yield ""
        yield f"Spent: epsilon {each['epsilon']:.4f}. Published test rows; {len(each['autopilot'])} fits."
        yield ""
        yield "| | accuracy | AUC |"
        yield "|---|---|---|"
        accuracies, areas = zip(*each["autopilot"], strict=True)
        yield f"| AutoClassifier, median (least to greatest) | {_spread(accuracies)} | {_spread(areas)} |"
        yield f"| grid oracle, median | {best[0]:.2%} | {best[1]:.2%} |"
        yield "| logistic regression, non-private, same rows | {:.2%} | {:.2%} |".format(*each["non-private"])
        yield ""
        yield "Decisions of the last fit: " + " ".join(each["decisions"])


def speed(found: Found) -> Iterator[str]:
    yield "## Seven trials beside one"
    yield ""
    yield "| device, n x d x classes | a step of 1 trial, ms | of 7 trials, ms | ratio |"
    yield "|---|---|---|---|"
    for name, each in found.items():
        times = each["found"]
        yield f"| {name} | {1000 * times['one']:,.2f} | {1000 * times['seven']:,.2f} | {times['ratio']:.2f} |"


def defaults(found: Found) -> Iterator[str]:
    each = found["study"]["found"]
    yield "## Where the defaults come from"
    yield ""
    yield "Data: " + "; ".join(f"{name} ({size:,})" for name, size in each["data"].items()) + "."
    yield "Whole and an eighth of each, epsilon 0.1, 0.3, 1 and 3; points lost to the best r of the surface, unpaid."
    yield ""
    yield "| kappa of the data-free r = kappa mu n | mean loss | worst |"
    yield "|---|---|---|"
    for kappa, (average, worst) in each["kappa"].items():
        yield f"| {float(kappa):.4f} | {average:.2f} | {worst:.2f} |"
    yield ""
    yield (
        "Linear scaling, everything paid, one thing changed at a time (chosen: "
        + ", ".join(f"{name} {value}" for name, value in each["chosen"].items())
        + "). Where the cases that have trials are others, only the first two columns compare:"
    )
    yield ""
    yield "| | mean loss | worst | cases that have trials | mean loss of these | worst |"
    yield "|---|---|---|---|---|---|"
    for name, average, worst, count, average_tried, worst_tried in each["variants"]:
        yield f"| {name} | {average:.2f} | {worst:.2f} | {count} | {average_tried:.2f} | {worst_tried:.2f} |"


def threshold(found: Found) -> Iterator[str]:
    each = found["study"]["found"]
    names = list(next(iter(each.values())))
    yield "## Where the clipping threshold comes from"
    yield ""
    yield "Mean test accuracy of the best of four walks, C r / (mu n) from 1/32 to 1/4, at each threshold C; 100 steps."
    yield ""
    yield "| data | " + " | ".join(f"C = {name}" for name in names) + " |"
    yield "|---|" + "---|" * len(names)
    for task, rows in each.items():
        yield f"| {task} | " + " | ".join(f"{best(rows[name]):.2%}" for name in names) + " |"


def draw_shares(found: Found, target: Path) -> None:
    """Accuracy against the share, one panel a task: medians, and every run as a dot."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dpilot"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(found), figsize=(5 * len(found), 3.4), layout="constrained", squeeze=False)
    for axes, (name, entry) in zip(panels[0], found.items(), strict=True):
        points = {100 * float(share): values for share, values in entry["found"].items()}
        for share, values in points.items():
            axes.plot([share] * len(values), [100 * value for value in values], ".", color="0.6")
        axes.plot(list(points), [100 * statistics.median(values) for values in points.values()], "o-")
        axes.set(title=name, xlabel="share of mu^2 for tuning, %", ylabel="test accuracy, %")
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2%} ({min(values):.2%} to {max(values):.2%})"


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _stamps(found: Found) -> Iterator[str]:
    for stamp in dict.fromkeys((each["date"], each["commit"], each["machine"]) for each in found.values()):
        yield f"Measured {stamp[0]}, commit {stamp[1]}, {stamp[2]}."
