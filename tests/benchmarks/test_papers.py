"""The runner of the papers' tables: what is measured, chosen, resumed and written; every table's smallest form."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from benchmarks.papers import __main__ as command
from benchmarks.papers import data, lines, models, networks, printed, report, runner
from benchmarks.papers.cell import Cell
from benchmarks.papers.slaclip import tables as slaclip_tables
from benchmarks.papers.table import SEEDS, Entry, Table

TABLES = [(paper, table) for paper in report.PAPERS for table in report.tables_of(paper)]
HAS_DATA = bool(os.environ.get("DPILOT_DATA"))


def _table(rates: tuple[float, ...] = (0.1, 0.2)) -> Table:
    grid = tuple(Cell("d=2, n=300", "least-squares", "least squares", 1.0, {"rate": rate}) for rate in rates)
    return Table("t", (Entry("row", "column", grid, ("error",), largest=False),), lambda table, lines: "said")


def _known(cells: list[Cell], errors: list[float]) -> dict[str, lines.Figures]:
    return {cell.key: {"error": error} for cell, error in zip(cells, errors, strict=True)}


def test_a_cell_is_the_same_however_its_settings_are_ordered() -> None:
    one, other = Cell("a", "b", "c", 1, {"x": 1, "y": 2}), Cell("a", "b", "c", 1.0, {"y": 2, "x": 1})
    assert one.key == other.key
    assert len({one.key, one.at(1).key, one.of(x=2).key}) == 3


def test_fresh_seeds_follow_only_when_the_grid_is_complete() -> None:
    entry = _table().entries[0]
    first = entry.cells({})
    assert [cell.seed for cell in first] == [0, 0]
    assert len(entry.cells(_known(first[:1], [1.0]))) == 2
    chosen = entry.cells(_known(first, [1.0, 0.5]))[2:]
    assert [cell.seed for cell in chosen] == list(SEEDS)
    assert all(cell.settings["rate"] == 0.2 for cell in chosen)


def test_a_run_that_came_to_no_number_is_not_chosen() -> None:
    entry = _table().entries[0]
    chosen = entry.chosen(_known(entry.cells({}), [math.nan, 7.0]))
    assert chosen is not None
    assert chosen.settings["rate"] == 0.2


def test_a_row_is_decided_by_three_fresh_seeds() -> None:
    table = _table((0.1,))
    cells = table.cells({})
    assert not table.decided("row", _known(cells[:2], [1.0, 1.0]))
    assert table.decided("row", _known(cells, [1.0] * 3))


def test_a_stopped_run_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    target, told = tmp_path / "lines.jsonl", list[str]()
    table = _table()
    assert runner.run([table], target, minutes=0.0, tell=told.append) == {}
    found = runner.run([table], target, tell=told.append)
    assert len(found) == len(told) == 5
    with target.open("a") as file:
        file.write('{"cell": {"data"')  # a machine stopped here
    assert lines.read(tmp_path) == found
    assert runner.run([table], target, tell=told.append) == found
    assert len(told) == 5


def test_a_cell_that_raises_is_told_and_left_out(tmp_path: Path) -> None:
    told = list[str]()
    wrong = Cell("d=2, n=300", "least-squares", "no such method", 1.0)
    table = Table("t", (Entry("row", "column", (wrong,)),), lambda table, lines: "")
    assert runner.run([table], tmp_path / "lines.jsonl", tell=told.append) == {}
    assert len(told) == 3
    assert "no such method" in told[0]


def test_their_noise_multiplier_is_used_as_it_is_and_never_costs_more_than_the_row_says() -> None:
    entry = slaclip_tables()[0].entries[0]
    plan = networks.plan_of(entry.grid[0], dict(entry.grid[0].settings), 60_000)
    assert plan.noise_multiplier == 1.447
    assert (plan.steps, plan.budget.epsilon) == (59 * 30, 3.0)


def test_predictions_are_scored_by_class_and_group() -> None:
    import torch

    test = data.Data(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]), 2, torch.tensor([0, 1, 0, 1]))
    found = networks.scores(torch.tensor([0, 1, 1, 1]), test)
    assert found == pytest.approx(
        {"accuracy": 0.75, "macro": 0.75, "worst": 0.5, "male": 1.0, "female": 0.5, "parity": 0.5}
    )


@pytest.mark.parametrize(
    "name", ["cnn-2", "cnn-4", "two-layer-cnn", "char-lstm", "mean-of-words", "linear", "logistic"]
)
def test_every_network_is_known_by_its_name(name: str) -> None:
    import torch

    assert sum(each.numel() for each in models.make(name, torch.zeros(2, 7), 10).parameters()) > 10


def test_what_is_said_and_printed_of_a_table_belongs_to_one() -> None:
    for paper in report.PAPERS:
        said = printed.texts(paper)
        names = {table.name for table in report.tables_of(paper)}
        assert set(said) == names | {"paper", "missing"}
        assert all(set(said[name]) == {"title", "claim", "differs"} for name in names)
    places = {(paper, table.name, e.row, e.column) for paper, table in TABLES for e in table.entries}
    assert {key for key in printed._all() if key[0] != "paper"} <= places


def test_results_and_front_page_are_those_of_the_lines() -> None:
    known = lines.read()
    assert (report.HERE / "RESULTS.md").read_text() == report.results(known)
    page = report.FRONT.read_text()
    assert page == report.front(page, known)


def test_a_quick_cell_is_no_cell_of_a_table() -> None:
    known = lines.read()
    for _, table in TABLES:
        assert all(cell.settings["quick"] for cell in table.quick())
        assert not {cell.key for cell in table.quick()} & set(known)


def test_the_smallest_form_of_a_table_runs(capsys: pytest.CaptureFixture[str]) -> None:
    command.quick("provan", ["stream"], "cpu")
    assert "3 cells" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not HAS_DATA, reason="DPILOT_DATA is not set")
@pytest.mark.parametrize(("paper", "table"), [pytest.param(p, t, id=f"{p} {t.name}") for p, t in TABLES if p != "best"])
def test_every_table_runs_in_its_smallest_form(paper: str, table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    command.quick(paper, [table.name], "cpu")
    told = capsys.readouterr().out
    assert "only that it runs" in told or "skipped" in told


@pytest.mark.slow
def test_processes_find_what_one_process_finds(tmp_path: Path) -> None:
    table = _table()
    together = runner.run([table], tmp_path / "lines.jsonl", workers=2, tell=lambda text: None)
    assert together == runner.run([table], tmp_path / "other" / "lines.jsonl", tell=lambda text: None)
