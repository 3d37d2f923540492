"""Where a data set's ledger is: by name, folder, pattern, link, environment; and never in two places."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Ledger, dataset_name, find_ledger, locate_ledger
from dpilot.privacy.ledger.discovery import check_data

BUDGET = Budget(1.0, 1e-6)
NOWHERE: dict[str, str] = {}


def locate(data: str | Path) -> Path:
    return locate_ledger(data, environment=NOWHERE)


def make(data: Path) -> Path:
    """The ledger of the data, made."""
    path = locate(data)
    assert Ledger.create(path, dataset=dataset_name(data), budget=BUDGET)
    return path


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    folder = tmp_path / "sales"
    folder.mkdir()
    for year in (2020, 2021):
        (folder / f"{year}-1.parquet").write_bytes(b"PAR1")
    return folder


@pytest.mark.parametrize(
    ("name", "ledger"),
    [
        ("adult.csv", "adult.ledger"),
        ("adult.parquet", "adult.ledger"),
        ("a.b.CSV", "a.b.ledger"),
        ("records", "records.ledger"),
        ("survey.2020", "survey.2020.ledger"),
    ],
)
def test_the_ledger_lies_beside_the_file(tmp_path: Path, name: str, ledger: str) -> None:
    for _ in range(2):  # whether the data are there or not
        assert locate(tmp_path / name) == tmp_path / ledger
        (tmp_path / name).write_text("a\n")


def test_a_folder_and_its_patterns_have_the_folders_ledger(sales: Path) -> None:
    expected = sales.with_name("sales.ledger")
    for data in (sales, sales / "*.parquet", sales / "2020-?.parquet", sales / "**" / "x.parquet"):
        assert locate(data) == expected
        assert dataset_name(data) == "sales/"


def test_a_file_of_a_folder_that_has_a_ledger_is_counted_there(sales: Path) -> None:
    file = sales / "2020-1.parquet"
    assert locate(file) == sales / "2020-1.ledger"
    whole = make(sales)
    assert locate(file) == whole
    (sales / "deep").mkdir()
    assert locate(sales / "deep" / "x.csv") == whole


def test_a_folder_does_not_forget_what_its_files_lost(sales: Path) -> None:
    own = make(sales / "2020-1.parquet")
    for data in (sales, sales / "2020-*.parquet"):
        with pytest.raises(LedgerError, match=f"{own.name}.*--ledger"):
            locate(data)
    assert locate(sales / "2021-*.parquet") == sales.with_name("sales.ledger")


def test_a_file_and_a_folder_of_one_name_are_two_data_sets(sales: Path) -> None:
    file = sales.with_name("sales.csv")
    file.write_text("a\n")
    assert locate(file) == locate(sales)
    make(sales)
    with pytest.raises(LedgerError, match="ledger of a folder"):
        locate(file)


def test_links_and_relative_paths_lead_to_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "adult.csv"
    file.write_text("a\n")
    away = tmp_path / "away"
    away.mkdir()
    (away / "link.csv").symlink_to(file)
    (tmp_path / "door").symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.chdir(away)
    ways = (file, away / "link.csv", Path("link.csv"), Path("../adult.csv"), tmp_path / "door" / "adult.csv")
    assert {locate(way) for way in ways} == {tmp_path / "adult.ledger"}
    environment = {"DPILOT_LEDGERS": str(away)}
    assert len({locate_ledger(way, environment=environment) for way in ways}) == 1


def test_the_environment_names_a_folder_where_each_data_set_has_its_file(tmp_path: Path) -> None:
    environment = {"DPILOT_LEDGERS": str(tmp_path / "ledgers")}

    def place(data: Path) -> Path:
        return locate_ledger(data, environment=environment)

    one, other = place(tmp_path / "one" / "data.csv"), place(tmp_path / "other" / "data.csv")
    assert one != other
    assert one.parent == other.parent == tmp_path / "ledgers"
    assert one.name.startswith("data-")
    assert one.suffix == ".ledger"
    assert place(tmp_path / "one" / "data.parquet") == one  # as beside the data
    (tmp_path / "one" / "data").mkdir(parents=True)
    assert place(tmp_path / "one" / "data") != one
    assert locate_ledger("data.csv", environment={"DPILOT_LEDGERS": ""}) == locate("data.csv")


def test_the_environment_does_not_begin_anew_what_was_begun_beside_the_data(tmp_path: Path) -> None:
    beside = make(tmp_path / "data.csv")
    with pytest.raises(LedgerError, match="Move the file"):
        locate_ledger(tmp_path / "data.csv", environment={"DPILOT_LEDGERS": str(tmp_path / "x")})
    named = locate_ledger(tmp_path / "data.csv", ledger=beside, environment={"DPILOT_LEDGERS": str(tmp_path / "x")})
    assert named == beside


def test_a_named_ledger_wins(tmp_path: Path) -> None:
    make(tmp_path / "data.csv")
    assert locate_ledger(tmp_path / "data.csv", ledger="mine", environment=NOWHERE) == Path("mine")


def test_a_ledger_is_told_from_data_by_its_name_or_its_mark(tmp_path: Path) -> None:
    unnamed = tmp_path / "ledger"  # as run folders have it
    Ledger.create(unnamed, dataset="x", budget=BUDGET)
    (tmp_path / "data").write_text("a,b\n")
    (tmp_path / "empty").touch()
    assert find_ledger(unnamed, environment=NOWHERE) == unnamed
    assert find_ledger(tmp_path / "not-there.ledger", environment=NOWHERE) == tmp_path / "not-there.ledger"
    for name in ("data", "empty", "missing", "."):
        assert find_ledger(tmp_path / name, environment=NOWHERE) != tmp_path / name


def test_a_file_there_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.ledger").write_text("no ledger")
    with pytest.raises(LedgerError, match="not a dpilot ledger"):
        locate(tmp_path / "data.csv")


def test_names_that_a_terminal_would_obey_are_written_out(tmp_path: Path) -> None:
    name = dataset_name(tmp_path / "a\x1b[2J.csv")
    assert name.isprintable()
    assert Ledger.create(tmp_path / "x.ledger", dataset=name, budget=BUDGET)


def test_data_that_are_not_there_have_no_ledger_made(sales: Path) -> None:
    for data in (sales, sales / "*.parquet", sales / "2020-1.parquet"):
        check_data(data)
    for data in (sales / "*.csv", sales / "none.csv"):
        with pytest.raises(InvalidInput, match="expected a file"):
            check_data(data)


def test_of_threads_that_create_at_once_one_does(tmp_path: Path) -> None:
    path, made = tmp_path / "a.ledger", []
    start = threading.Barrier(8)

    def create(epsilon: float) -> None:
        start.wait()
        made.append(Ledger.create(path, dataset="a", budget=Budget(epsilon, 1e-6)))

    threads = [threading.Thread(target=create, args=(1.0 + place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True]
    Ledger.read(path).verify()
    assert os.listdir(tmp_path) == ["a.ledger"]
