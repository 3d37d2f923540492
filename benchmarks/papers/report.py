"""RESULTS.md, the picture and the tables of the front page, from the lines alone."""

from __future__ import annotations

import math
import re
from importlib import import_module
from pathlib import Path

from benchmarks.papers import lines as files
from benchmarks.papers import picture
from benchmarks.papers.lines import Lines
from benchmarks.papers.printed import printed, texts
from benchmarks.papers.table import Entry, Table, interval

HEADLINES = (
    ("slaclip", "1", "mnist, 3", "SlaClip", "data-free default, paid"),
    ("slaclip", "1", "mnist, 1", "SlaClip", "data-free default, paid"),
    ("zhao", "A5", "skewed-mnist, 4", "Bounded Adaptive", "data-free default, paid"),
    ("zhao", "A6", "adult, 0.1", "Bounded Adaptive", "autopilot (linear head), paid"),
    ("zhao", "A6", "dutch, 0.1", "Bounded Adaptive", "autopilot (linear head), paid"),
    ("panda", "2", "CIFAR-10, ResNet-20 of CIFAR-100, epsilon 1", "linear scaling, their constants", "autopilot"),
    ("provan", "1", "n = 5,000", "AdaClip", "auto, nothing declared"),
    ("provan", "3", "n = 10,000", "AdaClip", "auto, nothing declared"),
)
"""(paper, table, row, the column of their method, ours with everything paid): what the front page begins with."""
PAPERS = ("slaclip", "zhao", "rehn", "panda", "provan", "best", "autopilot")
HERE = Path(__file__).parent
HEADS = HERE / "head.md"
FRONT = HERE.parent / "README.md"


def write() -> None:
    lines = files.read()
    (HERE / "RESULTS.md").write_text(results(lines))
    FRONT.write_text(front(FRONT.read_text(), lines))
    picture.draw(lines, HERE / "papers.svg")


def tables_of(paper: str) -> list[Table]:
    """The tables of a paper, in the order in which they are worth measuring."""
    found: list[Table] = import_module(f"benchmarks.papers.{paper}").tables()
    return found


def results(lines: Lines) -> str:
    """Every table that has a measured cell, and what is missing."""
    text = [HEADS.read_text()]
    for paper in PAPERS:
        said = texts(paper)
        text.append(f"\n## {said['paper']}\n")
        for table in tables_of(paper):
            text.append(_section(paper, table, lines))
        text += [f"- Not there: **{what}**: {why}." for what, why in said.get("missing", {}).items()]
    return "\n".join(text) + "\n"


def _section(paper: str, table: Table, lines: Lines) -> str:
    said = texts(paper)[table.name]
    done = [row for row in table.rows() if any(entry.found(lines) for entry in table.entries if entry.row == row)]
    rows = len(table.rows())
    status = f"{len(table.decided_rows(lines))} of {rows} rows reproduced"
    head = f"### {' '.join(said['title'].split())}\n\n*{status}.* The claim: {said['claim']}\n"
    if not done:
        return f"{head}\nNothing is measured yet. What would differ: {' '.join(said['differs'].split())}\n"
    body = _flat(paper, table, lines, done) if len(table.columns()) > 1 else _tall(paper, table, lines, done)
    differs = " ".join(said["differs"].split())
    return f"{head}\n{body}\n\nWhat the lines say: {table.verdict(table, lines)}\n\nWhat differs: {differs}\n"


def _flat(paper: str, table: Table, lines: Lines, rows: list[str]) -> str:
    """One line of the page for each column of the table, as papers have few rows and many algorithms."""
    head = ["", *(row + ("" if table.decided(row, lines) else " (not decided)") for row in rows)]
    body = [
        [column, *(_cell(paper, table, table.entry(row, column), lines) for row in rows)] for column in table.columns()
    ]
    return _markdown(head, [line for line in body if any(line[1:])])


def _tall(paper: str, table: Table, lines: Lines, rows: list[str]) -> str:
    column = table.columns()[0]
    return _markdown(["", column], [[row, _cell(paper, table, table.entry(row, column), lines)] for row in rows])


def _cell(paper: str, table: Table, entry: Entry | None, lines: Lines) -> str:
    """What they print, and ours."""
    if entry is None:
        return ""
    theirs, found = printed(paper, table.name, entry.row, entry.column), entry.found(lines)
    if not found:
        return theirs and f"{theirs}; -"
    ours = " / ".join(_figure(entry.values(lines, name), table) for name in entry.figures)
    seeds = "" if len(found) == len(entry.seeds) else f" ({len(found)})"
    return f"{theirs}; **{ours}**{seeds}" if theirs else f"**{ours}**{seeds}"


def _figure(values: list[float], table: Table) -> str:
    mean, half = table.scale * sum(values) / len(values), table.scale * interval(values)
    return f"{mean:.{table.digits}f}" + ("" if math.isnan(half) else f" ± {half:.{table.digits}f}")


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _headline(lines: Lines) -> str:
    rows = []
    for paper, name, row, column, ours in HEADLINES:
        table = next(table for table in tables_of(paper) if table.name == name)
        entries = [entry for entry in table.entries if entry.row == row and entry.decides and entry.found(lines)]
        pick = max if all(entry.largest for entry in entries) else min
        best = pick(entries, key=lambda entry: entry.mean(lines)) if entries else None
        cells = (table.entry(row, column), best, table.entry(row, ours))
        figures = [_figure(each.values(lines), table) if each and each.found(lines) else "-" for each in cells]
        told = f"{best.column}: {figures[1]}" if best else "-"
        theirs = printed(paper, name, row, column)
        rows.append([f"{paper} {name}: {row}", f"{column}: {theirs}", figures[0], told, f"{ours}: {figures[2]}"])
    return _markdown(
        ["table", "printed", "the same here", "best here by their protocol", "here, everything paid"], rows
    )


def front(text: str, lines: Lines) -> str:
    """The front page with its tables: a headline for each paper, and what is reproduced."""
    rows = []
    for paper in PAPERS:
        for table in tables_of(paper):
            count, decided = len(table.rows()), len(table.decided_rows(lines))
            said = texts(paper)[table.name]
            verdict = table.verdict(table, lines) if decided else "not measured, or not with enough seeds"
            rows.append([f"{paper} {table.name}", said["claim"], f"{decided} of {count}", verdict])
    made = _markdown(["table", "the claim", "rows reproduced", "what our lines say"], rows)
    return _filled(_filled(text, "headline", _headline(lines)), "reproduced", made)


def _filled(text: str, mark: str, made: str) -> str:
    """The page with what stands between a mark and its end made anew."""
    between = rf"(?s)(<!-- {mark} -->\n).*(<!-- end of {mark} -->)"
    return re.sub(between, lambda found: f"{found[1]}{made}\n{found[2]}", text)
