"""What can happen to a ledger, happening: killed writers, races, full and read-only disks, strange files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dpilot.errors import BudgetExceeded, LedgerError
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian, PureDP
from dpilot.privacy.ledger import Ledger, spending, store

ROOT = Path(__file__).parents[2]
HUGE = Budget(1e6, 1e-5)
SYSCALLS = ("pwrite64", "fdatasync", "fsync", "unlink", "fcntl")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def victim(*arguments: object, under: tuple[str, ...] = ()) -> Any:
    """Run a scenario of ledger_victim in a process of its own; its answer, or None if it was killed."""
    command = [*under, sys.executable, "-m", "tests.privacy.ledger_victim", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=590, check=False)
    if under:
        return None if "killed by SIGKILL" in done.stderr or done.returncode in (-9, 137) else json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def spent_ledger(folder: Path, times: int = 1) -> Ledger:
    ledger = Ledger.open(folder / "a.ledger", dataset="d", budget=HUGE)
    for _ in range(times):
        with ledger.reserve(PureDP(1.0), purpose="spend"):
            pass
    return ledger


class TestKilled:
    def test_at_every_statement_of_a_spend(self, tmp_path: Path) -> None:
        found = victim("at_every_statement", tmp_path)
        assert len(found) > 20
        assert [case["status"] for case in found] == [-9] * (len(found) - 1) + [0]
        for case in found:
            assert case["bodies"] <= case["entries"] <= 1
            assert case["epsilon"] == case["entries"]
        assert [case["bodies"] for case in found] == sorted(case["bodies"] for case in found)
        assert {(case["bodies"], case["entries"]) for case in found} >= {(0, 0), (1, 1)}

    def test_at_every_statement_of_a_creation(self, tmp_path: Path) -> None:
        found = victim("creating_at_every_statement", tmp_path)
        assert len(found) > 10
        assert {case["there"] for case in found[:-1]} == {True, False}

    def test_at_random_moments(self, tmp_path: Path) -> None:
        self._check(victim("at_random_moments", tmp_path, 20))

    @pytest.mark.slow
    def test_at_five_hundred_random_moments(self, tmp_path: Path) -> None:
        found = victim("at_random_moments", tmp_path, 500)
        assert len(found) == 500
        self._check(found)

    def _check(self, found: list[dict[str, Any]]) -> None:
        for case in found:
            assert case["bodies"] <= case["entries"]
            assert case["epsilon"] == case["entries"]
        assert sum(case["began"] for case in found) > len(found) / 10

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
    @pytest.mark.parametrize("call", SYSCALLS)
    def test_at_every_system_call_that_writes(self, tmp_path: Path, call: str) -> None:
        for k in range(1, 200):
            folder = tmp_path / str(k)
            folder.mkdir()
            path, witness = spent_ledger(folder).path, folder / "witness"
            inject = ("strace", "-f", "-o", "/dev/null", "-e", f"trace={call}")
            inject += ("-e", f"inject={call}:signal=KILL:when={k}", "-P", str(path), "-P", f"{path}-journal")
            survived = victim("look_after_spend", path, witness, under=(*inject, "-P", str(folder)))
            began = witness.stat().st_size if witness.exists() else 0
            for ledger in (Ledger.read(path), Ledger.open(path, dataset="d")):
                ledger.verify()
                assert 1 + began <= len(ledger.entries()) <= 2
            if survived is not None:
                assert began == 1
                assert k > 1 or call == "fsync"  # SQLite syncs data, not metadata, on this system
                return
        pytest.fail("the spend never ended")


class TestRaces:
    def test_eight_workers_never_overspend(self, tmp_path: Path) -> None:
        self._check(victim("race", tmp_path, 8, 3))

    @pytest.mark.slow
    def test_eight_workers_never_overspend_in_two_hundred_rounds(self, tmp_path: Path) -> None:
        found = victim("race", tmp_path, 8, 200)
        assert len(found) == 200
        self._check(found)

    def _check(self, found: list[dict[str, Any]]) -> None:
        for case in found:
            assert case["won"] == case["entries"]
            assert case["done"]
            assert case["epsilon"] <= 1.0
            assert case["delta"] <= 1e-5
        assert all(case["won"] == 4 for case in found[::3])  # quarters of one
        assert all(case["won"] == 5 for case in found[1::3])  # mu^2 = 1/81 each, 0.268^2 in all
        assert all(case["won"] == 4 for case in found[2::3])  # each priced at a fresh share of delta

    def test_two_creators_end_up_with_one_ledger(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real, first, other = os.link, [True], []

        def slow_link(source: Path, target: Path) -> None:
            if first:
                first.pop()
                other.append(Ledger.open(target, dataset="d", budget=HUGE))  # another process is quicker
            real(source, target)

        monkeypatch.setattr(os, "link", slow_link)
        with Ledger.open(tmp_path / "a", dataset="d", budget=HUGE).reserve(PureDP(1.0), purpose="x"):
            pass
        assert other[0].spent().epsilon == 1.0
        assert [file.name for file in tmp_path.iterdir()] == ["a"]

    @pytest.mark.parametrize("times", [1, 2, 3, 9])
    def test_a_spend_that_was_overtaken_is_priced_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
    ) -> None:
        ledger = Ledger.open(tmp_path / "a", dataset="d", budget=Budget(1.0, 1e-5))
        real, quicker = spending.find_price, [PureDP(0.05)] * times

        def overtaken(*arguments: Any) -> Any:
            answer = real(*arguments)
            if quicker and threading.current_thread() is threading.main_thread():
                event = quicker.pop()
                thread = threading.Thread(target=lambda: ledger.commit([("quicker", event)]))
                with monkeypatch.context() as undone:
                    undone.setattr(store, "_PATIENCE", 0.2)
                    undone.setattr(threading, "excepthook", lambda _: None)  # the door is shut after three times
                    thread.start()
                    thread.join()
            return answer

        monkeypatch.setattr(spending, "find_price", overtaken)
        with ledger.reserve(Gaussian(16.0), purpose="slower"):
            pass
        passed = min(times, 3)
        assert [entry.purpose for entry in ledger.entries()] == ["quicker"] * passed + ["slower"]
        assert ledger.entries()[-1].cost.delta == pytest.approx(1e-5 / (passed + 2), rel=0.01)

    def test_a_spend_that_was_overtaken_may_no_longer_fit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger = Ledger.open(tmp_path / "a", dataset="d", budget=Budget(1.0, 1e-5))
        real, quicker = spending.find_price, [PureDP(0.5)]

        def overtaken(*arguments: Any) -> Any:
            answer = real(*arguments)
            if quicker:
                ledger.commit([("quicker", quicker.pop())])
            return answer

        monkeypatch.setattr(spending, "find_price", overtaken)
        with pytest.raises(BudgetExceeded), ledger.reserve(PureDP(0.75), purpose="slower"):
            pytest.fail("the body ran")
        assert [entry.purpose for entry in ledger.entries()] == ["quicker"]


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


class TestDisks:
    @pytest.mark.parametrize("room", [0, 4096, 20_000])
    def test_a_file_that_cannot_grow_loses_nothing(self, tmp_path: Path, room: int) -> None:
        ledger = spent_ledger(tmp_path, 3)
        found = victim("full_disk", ledger.path, tmp_path / "witness", room)
        assert found["status"] == 0
        assert 3 + found["bodies"] <= found["entries"] <= 4 + found["bodies"]
        spent_ledger(tmp_path)
        assert len(ledger.entries()) == found["entries"] + 1

    @pytest.mark.skipif(os.getuid() != 0 or shutil.which("mount") is None, reason="needs to mount a small disk")
    def test_a_disk_that_is_full_loses_nothing(self, tmp_path: Path) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk], check=False)
        if mounted.returncode:
            pytest.skip("may not mount here")
        try:
            found = victim("small_disk", disk / "a.ledger", tmp_path / "witness")
            assert found["status"] == 0
            assert found["entries"] > 3
            assert found["bodies"] <= found["entries"] <= found["bodies"] + 1
            _fill(disk / "filler")
            with pytest.raises(LedgerError, match="disk is full"):
                Ledger.open(disk / "b.ledger", dataset="d", budget=HUGE)
            left = sorted(file.name for file in disk.iterdir() if file.suffix != ".lock")
            assert left == ["a.ledger", "filler"]
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_a_read_only_folder_is_read_and_not_spent_from(self, open_folder: Path) -> None:
        ledger = spent_ledger(open_folder, 2)
        content = ledger.path.read_bytes()
        found = victim("read_only_folder", ledger.path, open_folder / "witness")
        assert found == {"status": 0, "entries": 2, "bodies": 0, "epsilon": 2.0}
        assert ledger.path.read_bytes() == content

    def test_a_result_is_not_lost_when_its_end_cannot_be_booked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger = spent_ledger(tmp_path)

        def fail(*_: object) -> None:
            raise LedgerError("the disk is gone")

        with pytest.warns(RuntimeWarning, match="was not booked"), ledger.reserve(PureDP(1.0), purpose="x"):
            monkeypatch.setattr(store, "_insert", fail)
        monkeypatch.undo()
        assert [entry.state for entry in ledger.entries()] == ["committed", "reserved"]

    def test_missing_folders_and_folders_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(LedgerError, match="not a folder"):
            Ledger.open(tmp_path / "none" / "a", dataset="d", budget=HUGE)
        with pytest.raises(LedgerError, match="is a folder"):
            Ledger.open(tmp_path, dataset="d", budget=HUGE)
        assert list(tmp_path.iterdir()) == []


class TestSafekeeping:
    def test_every_connection_syncs_fully(self, tmp_path: Path) -> None:
        path = spent_ledger(tmp_path).path
        connection = store._connect(path, "rw")
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        connection.close()

    def test_the_name_of_a_new_ledger_is_synced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced, real = [], os.fsync

        def fsync(handle: int) -> None:
            synced.append((os.readlink(f"/proc/self/fd/{handle}"), (tmp_path / "a").exists()))
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        Ledger.open(tmp_path / "a", dataset="d", budget=HUGE)
        assert synced == [(str(tmp_path), True)]

    @pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
    def test_file_and_folder_are_synced_before_the_body(self, tmp_path: Path) -> None:
        path, witness, log = spent_ledger(tmp_path).path, tmp_path / "witness", tmp_path / "log"
        trace = ("strace", "-f", "-y", "-o", str(log), "-e", "trace=fdatasync,fsync,unlink,write,pwrite64")
        if victim("look_after_spend", path, witness, under=trace) is None:
            pytest.skip("may not trace here")
        calls = [line for line in log.read_text().splitlines() if str(tmp_path) in line]
        before = calls[: next(i for i, call in enumerate(calls) if "write" in call and f"<{witness}>" in call)]
        assert f"<{path}>" in before[-3]
        assert "sync" in before[-3]
        assert "unlink" in before[-2]
        assert f"<{tmp_path}>" in before[-1]
        assert "sync" in before[-1]

    def test_a_clock_that_jumps_back_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Clock(datetime):
            year_now = 2030

            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                cls.year_now -= 5
                return datetime(cls.year_now, 1, 1, tzinfo=tz)

        monkeypatch.setattr(store, "datetime", Clock)
        ledger = spent_ledger(tmp_path, 3)
        times = [row.time for row in ledger._book.rows()]
        assert times == sorted(times, reverse=True)
        assert len(set(times)) == 7
        ledger.verify()
        assert [entry.seq for entry in ledger.entries()] == [1, 3, 5]

    @pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "fuse", "lustre"])
    def test_network_file_systems_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        mounts = tmp_path / "mountinfo"
        point = str(tmp_path / "x y").replace(" ", r"\040")
        mounts.write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / {point} rw,relatime shared:1 - {kind} host:/b rw\n")
        monkeypatch.setattr(store, "_MOUNTS", mounts)
        (tmp_path / "x y" / "deep").mkdir(parents=True)
        with pytest.raises(LedgerError, match=f"network file system .{kind}.*local"):
            Ledger.open(tmp_path / "x y" / "deep" / "a", dataset="d", budget=HUGE)
        (tmp_path / "link").symlink_to(tmp_path / "x y" / "deep")
        with pytest.raises(LedgerError, match="network"):
            Ledger.open(tmp_path / "link" / "a", dataset="d", budget=HUGE)
        Ledger.open(tmp_path / "a", dataset="d", budget=HUGE)

    def test_local_layers_are_not_refused(self) -> None:
        for kind in ("ext4", "xfs", "overlay", "tmpfs", "fuse.gocryptfs", "fuseblk", ""):
            assert store._NETWORK.fullmatch(kind) is None
