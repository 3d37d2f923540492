"""One picture: printed against measured, and four of the papers' figures, from the lines alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.papers import panda, provan, slaclip, zhao
from benchmarks.papers.lines import Lines
from benchmarks.papers.printed import printed
from benchmarks.papers.table import Table


def draw(lines: Lines, target: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dpilot"
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 3, figsize=(13, 8), layout="constrained")
    for axes, panel in zip(grid.flat, (_accuracy, _error, _curve, _pareto, _thresholds, _walks), strict=True):
        panel(axes, lines)
        axes.title.set_fontsize(10)
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)


def _pairs(paper: str, table: Table, lines: Lines) -> list[tuple[float, float]]:
    """The first printed figure of each entry, and ours."""
    found = []
    for entry in table.entries:
        theirs = re.match(r"[\d.]+", printed(paper, table.name, entry.row, entry.column))
        if theirs and entry.found(lines):
            found.append((float(theirs[0]), table.scale * entry.mean(lines)))
    return found


def _scatter(axes: Any, parts: dict[str, list[tuple[float, float]]]) -> None:
    every = [value for pairs in parts.values() for pair in pairs for value in pair]
    for (label, pairs), mark in zip(parts.items(), "o^s", strict=False):
        if pairs:
            axes.plot(*zip(*pairs, strict=True), mark, label=label, alpha=0.7)
    axes.plot([min(every), max(every)], [min(every), max(every)], "k:", linewidth=1)
    axes.set(xlabel="printed", ylabel="measured here")
    axes.legend(fontsize=8)


def _accuracy(axes: Any, lines: Lines) -> None:
    parts = {
        "SlaClip, Table 1": _pairs("slaclip", slaclip.fair(), lines),
        "Zhao, A5 (macro)": _pairs("zhao", zhao.pictures(), lines),
    }
    _scatter(axes, parts)
    axes.set_title("Accuracy in per cent, their protocol")


def _error(axes: Any, lines: Lines) -> None:
    _scatter(axes, {f"Provan, Table {name}": _pairs("provan", provan.errors(name), lines) for name in ("1", "3")})
    axes.set(title="L2 error, his protocol", xscale="log", yscale="log")


def _curve(axes: Any, lines: Lines) -> None:
    found = [(float(entry.row[4:]), entry.mean(lines)) for entry in provan.curve().entries if entry.found(lines)]
    if found:
        axes.loglog(*zip(*found, strict=True), "o-")
    axes.set(title="Provan, Figure 1: error against C", xlabel="threshold C", ylabel="L2 error")


def _pareto(axes: Any, lines: Lines) -> None:
    table = zhao.pictures()
    for entry in table.entries:
        if entry.row == table.rows()[0] and entry.found(lines):
            axes.plot(100 * entry.mean(lines), 100 * entry.mean(lines, "worst"), "o", label=entry.column)
    axes.set(title=f"Zhao, Figure 2: {table.rows()[0]}", xlabel="macro accuracy", ylabel="worst class")
    axes.legend(fontsize=7)


def _thresholds(axes: Any, lines: Lines) -> None:
    table = slaclip.fair()
    for entry in table.entries:
        found = entry.found(lines)
        if entry.row == table.rows()[0] and found and entry.decides:
            path = found[0]["thresholds"]
            axes.semilogy([place / (len(path) - 1) for place in range(len(path))], path, label=entry.column)
    axes.set(title=f"Thresholds, {table.rows()[0]} (one seed)", xlabel="share of the run", ylabel="threshold")
    axes.legend(fontsize=7)


def _walks(axes: Any, lines: Lines) -> None:
    table = panda.line()
    for column in table.columns():
        found = [
            (float(entry.row.split()[1]), entry.mean(lines, "r"))
            for entry in table.entries
            if entry.column == column and entry.found(lines)
        ]
        if found:
            axes.loglog(*zip(*found, strict=True), "o-", label=column)
    axes.set(title="Panda, Figure 3: r against epsilon", xlabel="epsilon", ylabel="r = lr T")
    axes.legend(fontsize=7)
