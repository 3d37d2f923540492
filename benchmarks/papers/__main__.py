"""The tables of five papers, and ours beside them.

DPILOT_DATA=folder [DPILOT_WEIGHTS=folder] python -m benchmarks papers NAME ... [--table T ...] [--row R ...] [--quick]
                                                   [--device cuda] [--minutes M] [--workers W] [--lines FILE]

| NAME | what |
|---|---|
| slaclip, zhao, rehn, panda, provan | a paper's tables |
| best, autopilot | the best honest figures of ours, and the autopilot beside its oracle |
| report | RESULTS.md and the figures, from the lines that are there |
| keep | writes data sets (--table NAME) in the form of cells into the folder that DPILOT_CACHE names |

Each cell that is measured is one line of measured/*.jsonl; the next call goes on where this one stopped. ``--quick``
runs the smallest form of every table, and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from benchmarks.datasets import Missing
from benchmarks.papers import data, lines, report, runner
from benchmarks.papers.report import PAPERS, tables_of
from benchmarks.papers.table import Table


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks papers", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*PAPERS, "report", "keep"])
    parser.add_argument("--table", action="append", default=[], help="only these; may be repeated")
    parser.add_argument("--row", action="append", default=[], help="only rows whose name begins so")
    parser.add_argument("--quick", action="store_true", help="the smallest form of every table; nothing is written")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--lines", type=Path, help="the file of lines to append to")
    options = parser.parse_args()
    for name in options.names:
        if name == "report":
            report.write()
        elif name == "keep":
            for each in options.table:
                data.keep(each, Path(os.environ["DPILOT_CACHE"]))
        elif options.quick:
            quick(name, options.table, options.device)
    chosen = [] if options.quick else [name for name in options.names if name in PAPERS]
    if chosen:
        grid(chosen, options)


def grid(names: list[str], options: argparse.Namespace) -> None:
    """Measure what the tables lack, one after the other, in one pool of processes."""
    tables = [table.only(options.row) for name in names for table in chosen_of(name, options.table, len(names) > 1)]
    target = options.lines or lines.HERE / f"{'-'.join(names)}.jsonl"
    known = {**lines.read(), **lines.read(target.parent)}
    workers = options.workers or runner.default_workers(options.device)
    runner.run(tables, target, device=options.device, workers=workers, minutes=options.minutes, known=known)


def chosen_of(name: str, wanted: list[str], some: bool = False) -> list[Table]:
    """The tables of a paper that are wanted, in the order in which they were named; ``some``: it need not have one."""
    known = {table.name: table for table in tables_of(name)}
    found = [known[each] for each in (wanted or known) if each in known]
    if not found and not some:
        names = ", ".join(table.name for table in tables_of(name))
        raise SystemExit(f"table is {', '.join(wanted)!r}: expected one of {names}.")
    return found


def quick(name: str, wanted: list[str], device: str) -> None:
    """One cell of each column of every table's first row, in its smallest form: whether it runs, not how good it is."""
    for table in chosen_of(name, wanted):
        started, done = time.perf_counter(), 0
        for cell in table.quick():
            try:
                _, figures, seconds, problem = runner.measure(cell, device)
            except Missing as missing:
                print(f"{name} {table.name}: skipped: {missing}")
                break
            if figures is None:
                raise SystemExit(f"{name} {table.name}: {cell.key}: {problem}")
            done += 1
            print(f"{name} {table.name}: {cell.method} {seconds:.1f} s {list(figures)}", flush=True)
        print(
            f"{name} {table.name}: {done} cells in {time.perf_counter() - started:.0f} s; no figures, only that it runs"
        )


if __name__ == "__main__":
    main()
