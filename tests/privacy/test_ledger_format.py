"""The file: what is found when it was touched, what is refused, and what earlier versions wrote."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from dpilot.errors import LedgerError
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import PureDP
from dpilot.privacy.ledger import Ledger, store
from dpilot.privacy.ledger.store import NOTHING_BEFORE, LedgerRow, _digest, next_row
from tests.privacy.golden import make

GOLDEN = Path(make.__file__).parent
VERSIONS = (1,)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.open(tmp_path / "a.ledger", dataset="d", budget=Budget(3.0, 1e-5))
    for part in (None, "train", "test"):
        with made.reserve(PureDP(0.25), purpose="x", part=part):
            pass
    return made


def forged(path: Path, rows: Sequence[Sequence[Any]], head: tuple[Any, ...]) -> Path:
    """A file with the right tables and any content: what somebody with an editor can make."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA application_id = {store._APPLICATION}")
    connection.execute("PRAGMA user_version = 1")
    for statement in store._SCHEMA[:2]:
        connection.execute(statement)
    connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.execute("INSERT INTO head VALUES (?, ?, ?)", head)
    for statement in store._SCHEMA[2:]:
        connection.execute(statement)
    connection.close()
    return path


def refused(path: Path, match: str = ".") -> None:
    """Every door says LedgerError, naming the file, and the file stays as it is."""
    content = path.read_bytes()
    doors: list[Callable[[], Any]] = [
        lambda: Ledger.read(path),
        lambda: Ledger.open(path, dataset="d"),
        lambda: Ledger.open(path, dataset="d", budget=Budget(3.0, 1e-5)),
    ]
    for door in doors:
        with pytest.raises(LedgerError, match=match) as caught:
            door()
        assert str(path) in str(caught.value)
    assert path.read_bytes() == content


class TestAltered:
    def test_the_forger_can_make_a_true_copy(self, ledger: Ledger, tmp_path: Path) -> None:
        rows = ledger._book.rows()
        copy = forged(tmp_path / "copy", [astuple(row) for row in rows], (0, len(rows), rows[-1].hash))
        assert Ledger.read(copy).verify(ledger.head()) == ledger.verify()

    @pytest.mark.parametrize("column", ["seq", "kind", "key", "time", "body", "previous", "hash"])
    def test_any_column_of_any_row(self, ledger: Ledger, tmp_path: Path, column: str) -> None:
        rows = ledger._book.rows()
        for place, row in enumerate(rows):
            for other in _others(getattr(row, column)):
                altered = [list(astuple(each)) for each in rows]
                altered[place][list(LedgerRow.__slots__).index(column)] = other
                refused(forged(tmp_path / "forged", altered, (0, len(rows), rows[-1].hash)))

    def test_any_row_removed_moved_or_added(self, ledger: Ledger, tmp_path: Path) -> None:
        rows = [list(astuple(row)) for row in ledger._book.rows()]
        last = rows[-1][-1]
        for place in range(len(rows)):
            shorter = rows[:place] + rows[place + 1 :]
            refused(forged(tmp_path / "forged", shorter, (0, len(rows), last)))
            closed_up = [[new, *row[1:]] for new, row in enumerate(shorter)]
            head = (0, len(shorter), closed_up[-1][-1])
            if place != len(rows) - 1:  # the last row, removed with its head, leaves no trace in the file: see below
                refused(forged(tmp_path / "forged", closed_up, head))
        swapped = [rows[0], [1, *rows[3][1:]], rows[2], [3, *rows[1][1:]], *rows[4:]]
        refused(forged(tmp_path / "forged", swapped, (0, len(rows), last)))
        refused(
            forged(tmp_path / "forged", [*rows, [len(rows), *rows[1][1:2], "k", *rows[1][3:]]], (0, len(rows), last))
        )

    def test_numbers_that_skip_though_the_chain_holds(self, ledger: Ledger, tmp_path: Path) -> None:
        rows: list[LedgerRow] = []
        for row in ledger._book.rows():
            rows.append(next_row(rows, row.kind, row.content()))
        skipping, previous = [], NOTHING_BEFORE
        for row in rows:
            fields = (row.seq + (row.seq > 2), row.kind, row.key, row.time, row.body, previous)
            previous = _digest(*fields)
            skipping.append((*fields, previous))
        refused(forged(tmp_path / "forged", skipping, (0, len(rows), previous)), "row 3")

    def test_a_tail_that_was_cut(self, ledger: Ledger, tmp_path: Path) -> None:
        rows = [astuple(row) for row in ledger._book.rows()]
        for kept in range(len(rows)):
            refused(forged(tmp_path / "forged", rows[:kept], (0, len(rows), rows[-1][-1])), "head says otherwise")

    @pytest.mark.parametrize("head", [(0, 6, None), (0, 8, None), (0, 7, "0" * 64), (0, "7", b"x"), (0, 7, "")])
    def test_the_head(self, ledger: Ledger, tmp_path: Path, head: tuple[Any, ...]) -> None:
        rows = [astuple(row) for row in ledger._book.rows()]
        assert len(rows) == 7
        refused(forged(tmp_path / "forged", rows, (*head[:2], rows[-1][-1] if head[2] is None else head[2])))

    def test_a_file_rewritten_whole_is_found_by_a_head_kept_elsewhere(self, ledger: Ledger, tmp_path: Path) -> None:
        kept = ledger.head()
        rows = [astuple(row) for row in ledger._book.rows()]
        cut = Ledger.read(forged(tmp_path / "cut", rows[:3], (0, 3, rows[2][-1])))
        cut.verify()  # consistent in itself: only the note below tells
        with pytest.raises(LedgerError, match="does not continue"):
            cut.verify(kept)
        chained: list[LedgerRow] = []
        for row in ledger._book.rows():
            chained.append(next_row(chained, row.kind, {**row.content(), "purpose": "forged"}))
        whole = Ledger.read(
            forged(tmp_path / "whole", [astuple(row) for row in chained], (0, len(chained), chained[-1].hash))
        )
        whole.verify()
        with pytest.raises(LedgerError, match="does not continue"):
            whole.verify(kept)

    def test_an_older_head_still_verifies_a_ledger_that_grew(self, ledger: Ledger) -> None:
        kept = ledger.head()
        with ledger.reserve(PureDP(0.25), purpose="more"):
            pass
        assert ledger.verify(kept) == ledger.head() != kept
        for wrong in ("", ":", "x:y", f"1:{kept.partition(':')[2]}", "-1:" + NOTHING_BEFORE, "99:" + NOTHING_BEFORE):
            with pytest.raises(LedgerError, match="does not continue"):
                ledger.verify(wrong)

    def test_rows_that_chain_but_make_no_sense(self, ledger: Ledger, tmp_path: Path) -> None:
        opened = ledger._book.rows()[0].content()
        reserve = ledger._book.rows()[1].content()
        stage, charge = reserve["stages"][0], reserve["charges"][0]
        cases: list[list[tuple[str, dict[str, Any]]]] = [
            [("reserve", reserve)],
            [("open", {**opened, "format": 2})],
            [("open", {**opened, "bound": "magic"}), ("reserve", reserve)],
            [("open", {**opened, "budget": {"epsilon": "NaN", "delta": "1E-5"}})],
            [("open", opened), ("refund", {"of": 1, "stage": 0})],
            [("open", opened), ("commit", {"of": 1, "stage": 0})],
            [("open", opened), ("reserve", reserve), ("commit", {"of": 1, "stage": 1})],
            [("open", opened), ("reserve", reserve), ("commit", {"of": 1, "stage": -1})],
            [("open", opened), ("reserve", reserve), *[("commit", {"of": 1, "stage": 0})] * 2],
            [("open", opened), ("reserve", reserve), ("begin", {"of": 1, "stage": 0})],
            [("open", opened), ("reserve", {**reserve, "charges": [{**charge, "loss": "-1"}]})],
            [("open", opened), ("reserve", {**reserve, "charges": [{**charge, "loss": 0.1}]})],
            [("open", opened), ("reserve", {**reserve, "charges": [{**charge, "loss": "Infinity"}]})],
            [("open", opened), ("reserve", {**reserve, "stages": [{**stage, "event": {"type": "os.system"}}]})],
            [("open", opened), ("reserve", {**reserve, "stages": [{**stage, "purpose": "\x1b[2J"}]})],
            [("open", opened), ("reserve", {})],
        ]
        for case in cases:
            rows: list[LedgerRow] = []
            for kind, body in case:
                rows.append(next_row(rows, kind, body))
            path = forged(tmp_path / "forged", [astuple(row) for row in rows], (0, len(rows), rows[-1].hash))
            with pytest.raises(LedgerError):
                Ledger.read(path).spent()

    def test_a_flipped_bit_is_found_or_changes_nothing(self, ledger: Ledger, tmp_path: Path) -> None:
        self._flip(ledger, tmp_path, 61)

    @pytest.mark.slow
    def test_any_flipped_bit_is_found_or_changes_nothing(self, ledger: Ledger, tmp_path: Path) -> None:
        self._flip(ledger, tmp_path, 1)

    def _flip(self, ledger: Ledger, tmp_path: Path, stride: int) -> None:
        content = ledger.path.read_bytes()
        truth, chance, found = make.told(ledger), random.Random(3), 0
        flipped = tmp_path / "flipped"
        for place in range(0, len(content), stride):
            bit = 1 << chance.randrange(8)
            damaged = content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
            flipped.write_bytes(damaged)
            try:
                reader = Ledger.read(flipped)
                reader.verify()
                assert make.told(reader) == truth
            except LedgerError:
                found += 1
            assert flipped.read_bytes() == damaged
        assert found > len(content) / stride / 10

    def test_a_flipped_bit_in_the_text_of_any_column_is_found(self, ledger: Ledger, tmp_path: Path) -> None:
        content = ledger.path.read_bytes()
        chance = random.Random(5)
        for row in ledger._book.rows():
            for text in (row.kind, row.key, row.time, row.body, row.previous, row.hash):
                places = list(_occurrences(content, text.encode()))
                assert places
                for start in places:
                    place = start + chance.randrange(len(text))
                    damaged = bytearray(content)
                    damaged[place] ^= 1 << chance.randrange(7)
                    flipped = tmp_path / "flipped"
                    flipped.write_bytes(damaged)
                    with pytest.raises(LedgerError):
                        Ledger.read(flipped).verify()


class TestForeign:
    @pytest.mark.parametrize("size", [0, 1, 16, 99, 100, 1024, 4095, 4096, 8192, 16383])
    def test_a_file_that_was_cut_short(self, ledger: Ledger, tmp_path: Path, size: int) -> None:
        cut = tmp_path / "cut"
        cut.write_bytes(ledger.path.read_bytes()[:size])
        refused(cut)

    @pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\x89PNG\r\n\x1a\n" + b"x" * 5000, b"SQLite format 3\x00junk"])
    def test_a_file_of_another_kind(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "other").write_bytes(content)
        refused(tmp_path / "other", "is not a dpilot ledger")

    def test_another_database(self, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "other.db") as connection:
            connection.execute("CREATE TABLE rows (seq INTEGER)")
        connection.close()
        refused(tmp_path / "other.db", "not a dpilot ledger")

    def test_a_newer_format(self, ledger: Ledger) -> None:
        with sqlite3.connect(ledger.path) as connection:
            connection.execute("PRAGMA user_version = 2")
        connection.close()
        refused(ledger.path, "format 2: expected at most 1.*update dpilot")

    @pytest.mark.parametrize(
        "change",
        [
            "PRAGMA user_version = 0",
            "PRAGMA journal_mode = WAL",
            "DROP TRIGGER rows_remain",
            "CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM head; END",
            "CREATE VIEW v AS SELECT 1",
        ],
    )
    def test_a_ledger_whose_tables_were_changed(self, ledger: Ledger, change: str) -> None:
        connection = sqlite3.connect(ledger.path)
        connection.execute(change)
        connection.close()
        refused(ledger.path, "not as dpilot made them")

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE rows SET body = '{}' WHERE seq = 1",
            "DELETE FROM rows WHERE seq = 6",
            "DELETE FROM head",
            "UPDATE head SET count = 1",
            "INSERT OR REPLACE INTO rows SELECT * FROM rows WHERE seq = 6",
            "INSERT OR REPLACE INTO rows SELECT 7, kind, key, time, body, previous, hash FROM rows WHERE seq = 1",
            "INSERT INTO rows SELECT 9, kind, 'k', time, body, previous, hash FROM rows WHERE seq = 1",
        ],
    )
    def test_the_file_itself_refuses_to_be_changed(self, ledger: Ledger, statement: str) -> None:
        connection = sqlite3.connect(ledger.path)
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
        connection.close()
        ledger.verify()


class TestGolden:
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("name", make.NAMES)
    def test_what_earlier_versions_wrote_is_read_and_grows(self, tmp_path: Path, version: int, name: str) -> None:
        folder = GOLDEN / f"v{version}"
        path = Path(shutil.copy(folder / f"{name}.ledger", tmp_path))
        said = json.loads((folder / f"{name}.json").read_text())
        reader = Ledger.read(path)
        assert reader.verify(said["head"]) == said["head"]
        assert make.told(reader) == said
        again = Ledger.open(path, dataset="gölden")
        if name == "precommitted":
            with again.committed().stage("score"):
                pass
        else:
            with again.reserve(make.Gaussian(50.0), purpose="later"):
                pass
        assert again.entries()[-1].state == "committed"
        assert again.verify(said["head"]) != said["head"]

    def test_rows_are_still_written_as_the_newest_version_says(self, tmp_path: Path) -> None:
        make.make(tmp_path)
        for name in make.NAMES:
            old = Ledger.read(GOLDEN / f"v{VERSIONS[-1]}" / f"{name}.ledger")._book.rows()
            new = Ledger.read(tmp_path / f"{name}.ledger")._book.rows()
            assert [row.kind for row in new] == [row.kind for row in old]
            for one, other in zip(new, old, strict=True):
                assert _shape(one.content()) == _shape(other.content())


def _others(value: Any) -> list[Any]:
    if isinstance(value, int):
        return [value + 100, -value - 1]
    return [value + " ", value[:-1], value.encode(), 7, ("x" if value[0] != "x" else "y") + value[1:]]


def _occurrences(content: bytes, text: bytes) -> Iterator[int]:
    place = content.find(text)
    while place >= 0:
        yield place
        place = content.find(text, place + 1)


def _shape(data: Any) -> Any:
    """Names, texts and structure; numbers may move in their last digits between versions of libraries."""
    if isinstance(data, dict):
        return {name: _shape(value) for name, value in data.items() if name not in ("ledger", "writer", "loss")}
    return [_shape(value) for value in data] if isinstance(data, list) else data


def test_a_row_cannot_be_changed_in_memory_unnoticed(ledger: Ledger) -> None:
    from dpilot.privacy.ledger.store import check_chain

    rows = ledger._book.rows()
    with pytest.raises(LedgerError, match="row 2"):
        check_chain([*rows[:2], replace(rows[2], body='{"of":1,"stage":1}'), *rows[3:]])
