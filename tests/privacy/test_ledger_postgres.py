"""The ledger's contract, its races and its faults again, on a real PostgreSQL server; and what only a server has.

The suites of the file are run as they are, with a database in place of ``tmp_path``. What is about files alone is not.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from dpilot.errors import BudgetExceeded, InvalidInput, LedgerError
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian, PureDP
from dpilot.privacy.filters import Amount
from dpilot.privacy.ledger import Ledger, migrate, spending
from dpilot.privacy.ledger.book import settle_body
from dpilot.privacy.ledger.postgres import ledgers_in
from tests.privacy import test_ledger, test_ledger_holding, test_ledger_splits, test_ledger_totals, test_stages
from tests.privacy.test_ledger_faults import victim

if TYPE_CHECKING:
    from tests.privacy.postgres_server import Server, ServerFolder

ROOT = Path(__file__).parents[2]
HUGE = Budget(1e6, 1e-5)
FILES: Final = (  # tests of the file itself: its name, its bytes, its lock file, its folder
    "test_any_name_will_do", "TestTheFile", "test_files_go_with_the_end", "test_no_handle_is_left_open",
    "test_a_refused_spend_leaves_no_lock_held", "test_the_lock_of_a_committed_stage_is_its_own",
    "test_other_terms_are_refused_and_change_nothing", "test_unknown_terms_make_no_file", "test_reading_is_only",
    "test_copies_are_the_same_ledger_and_pickles_find_it_again", "test_nothing_but_declared_things_is_written",
    "test_an_end_that_was_booked_already_is_not_booked_twice", "test_what_is_spent_and_left_is_said_before_a_fit",
    "test_terms_are_checked_before_a_file_is_made",
    "test_what_another_process_spends_meanwhile_is_refused_with_the_commands", "test_two_data_sets_do_not_touch",
)  # fmt: skip

for suite in (test_ledger, test_ledger_holding, test_ledger_splits, test_ledger_totals, test_stages):
    for name, item in tuple(vars(suite).items()):
        if name.startswith(("test_", "Test")) and not name.startswith(FILES):
            globals()[name] = item


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, on_server: ServerFolder) -> ServerFolder:
    if request.node.name.startswith(FILES):
        pytest.skip("of files only")
    return on_server


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def spend(ledger: Ledger, epsilon: float = 1.0) -> None:
    with ledger.reserve(PureDP(epsilon), purpose="spend"):
        pass


class TestRaces:
    @pytest.mark.slow
    def test_eight_workers_never_overspend_in_thirty_rounds(self, on_server: ServerFolder) -> None:
        self._check(victim("race", os.fspath(on_server / "race"), 8, 30))

    def _check(self, found: list[dict[str, Any]]) -> None:
        assert [case["won"] for case in found] == [(4, 5, 4)[each % 3] for each in range(len(found))]
        for case in found:
            assert case["won"] == case["entries"]
            assert case["done"]
            assert case["epsilon"] <= 1.0
            assert case["delta"] <= 1e-5

    def test_eight_processes_that_open_a_new_ledger_make_one(self, on_server: ServerFolder) -> None:
        assert sum(victim("create_at_once", os.fspath(on_server / "new"), 8)) == 1
        Ledger.read(on_server / "new").verify()


class TestKilled:
    @pytest.mark.slow
    def test_a_client_at_every_statement_of_a_spend(self, on_server: ServerFolder, folder: Path) -> None:
        found = victim("at_every_statement", os.fspath(on_server / "k"), folder)
        assert len(found) > 10
        assert [case["status"] for case in found] == [-9] * (len(found) - 1) + [0]
        for case in found:
            assert case["bodies"] <= case["entries"] <= 1
            assert case["epsilon"] == case["entries"]
        assert {(case["bodies"], case["entries"]) for case in found} >= {(0, 0), (1, 1)}

    @pytest.mark.slow
    def test_a_client_at_a_hundred_random_moments(self, on_server: ServerFolder, folder: Path) -> None:
        self._check(victim("at_random_moments", os.fspath(on_server / "k"), 100, folder))

    def _check(self, found: list[dict[str, Any]]) -> None:
        for case in found:
            assert case["bodies"] <= case["entries"]
            assert case["epsilon"] == case["entries"]

    @pytest.mark.slow
    def test_the_server_while_clients_spend(self, server: Server, on_server: ServerFolder, folder: Path) -> None:
        ledger, witness = Ledger.open(on_server / "a", dataset="d", budget=HUGE), folder / "witness"
        command = [
            sys.executable,
            "-m",
            "tests.privacy.ledger_victim",
            "spend_on",
            os.fspath(ledger.path),
            str(witness),
        ]
        for _ in range(5):
            clients = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
            time.sleep(3.0)
            server.kill()
            for client in clients:
                client.kill()
                client.wait()
            ledger.verify()
            assert len(ledger.entries()) >= witness.stat().st_size > 0


class Proxy:
    """Between client and server: cuts the connection when a commit goes by, before or after the server has it."""

    def __init__(self, server: Server, folder: Path, moment: str) -> None:
        self._target, self._moment, self.cuts = str(server.folder / ".s.PGSQL.5432"), moment, 0
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(folder / ".s.PGSQL.5432"))
        self._door.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with closing(client), socket.socket(socket.AF_UNIX) as server:
            server.connect(self._target)
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while data := _receive(client):
                if b"COMMIT\0" in data and not self.cuts:
                    self.cuts += 1
                    if self._moment == "after":
                        server.sendall(data)
                        time.sleep(0.3)
                    for end in (client, server):
                        end.shutdown(socket.SHUT_RDWR)
                    return
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := _receive(server):
                if not (self.cuts == 1 and b"COMMIT\0" in data):
                    client.sendall(data)

    def close(self) -> None:
        self._door.close()


def _receive(end: socket.socket) -> bytes:
    with suppress(OSError):
        return end.recv(1 << 16)
    return b""


@contextmanager
def cut(server: Server, folder: Path, moment: str, name: str) -> Iterator[tuple[Ledger, Proxy]]:
    with closing(Proxy(server, folder, moment)) as proxy:
        url = f"postgresql://owner@/ledgers?host={folder}#{name}"
        yield Ledger.open(url, dataset="d"), proxy


class TestLostCommit:
    def test_that_the_server_has_is_found_and_not_repeated(self, server: Server, folder: Path) -> None:
        name = secrets.token_hex(4)
        Ledger.open(server.url(name), dataset="d", budget=HUGE)
        with cut(server, folder, "after", name) as (ledger, proxy):
            made = ledger.commit([("x", PureDP(1.0))])
            assert proxy.cuts == 1
        assert [entry.seq for entry in Ledger.read(server.url(name)).entries()] == [made.seq]

    def test_that_the_server_never_had_says_that_nothing_was_written(self, server: Server, folder: Path) -> None:
        name = secrets.token_hex(4)
        Ledger.open(server.url(name), dataset="d", budget=HUGE)
        with cut(server, folder, "before", name) as (ledger, proxy), pytest.raises(LedgerError, match="nothing was"):
            ledger.commit([("x", PureDP(1.0))])
        assert proxy.cuts == 1
        assert Ledger.read(server.url(name)).entries() == ()


class TestUsers:
    @pytest.fixture
    def user(self, server: Server) -> Iterator[str]:
        name = f"ann{secrets.token_hex(4)}"
        server.execute(f"CREATE ROLE {name} LOGIN")
        yield name
        server.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")

    def test_a_spender_has_a_cap_and_a_reader_spends_nothing(self, server: Server, user: str) -> None:
        name = secrets.token_hex(4)
        ledger = Ledger.open(server.url(name), dataset="d", budget=Budget(3.0, 1e-5))
        with pytest.raises(LedgerError, match="permission denied"):
            Ledger.read(server.url(name, user=user))
        assert ledgers_in(server.url(user=user)) == ()
        ledger.grant(user, role="read")
        assert [each.ledger for each in ledgers_in(server.url(user=user))] == [name]
        reader = Ledger.open(server.url(name, user=user), dataset="d")
        with pytest.raises(LedgerError, match="permission denied"):
            spend(reader)
        ledger.grant(user, role="spend", cap=1.0)
        spend(ledger, 1.5)
        spend(reader, 0.75)
        with pytest.raises(BudgetExceeded, match=f"cap of '{user}': epsilon 0.75 of 1"):
            spend(reader, 0.5)
        spend(reader, 0.25)
        with pytest.raises(BudgetExceeded, match="does not fit: the total"):
            spend(ledger, 0.75)
        assert [entry.cost.epsilon for entry in ledger.entries()] == [1.5, 0.75, 0.25]
        assert [(each.to, each.role, each.cap) for each in ledger.grants()] == [(user, "spend", 1.0)]

    def test_a_cap_composes_as_the_total_does(self, server: Server, user: str) -> None:
        name = secrets.token_hex(4)
        Ledger.open(server.url(name), dataset="d", budget=Budget(3.0, 1e-5), bound="gdp").grant(
            user, role="spend", cap=1.0
        )
        ledger = Ledger.open(server.url(name, user=user), dataset="d")
        with suppress(BudgetExceeded):
            for _ in range(20):
                ledger.commit([("x", Gaussian(9.0))])
        assert len(ledger.entries()) == 5  # mu^2 = 1/81 each, 0.268^2 in all

    def test_a_spender_can_neither_extend_nor_alter_nor_spend_as_another(self, server: Server, user: str) -> None:
        name = secrets.token_hex(4)
        ledger = Ledger.open(server.url(name), dataset="d", budget=Budget(3.0, 1e-5))
        ledger.grant(user, role="spend")
        theirs = Ledger.open(server.url(name, user=user), dataset="d")
        spend(theirs)
        with pytest.raises(LedgerError, match="only the owner"):
            theirs.extend(Budget(9.0, 1e-5), reason="more")
        with pytest.raises(LedgerError, match="only the owner"):
            theirs.grant(user, role="spend", cap=9.0)
        import psycopg

        rows = f'"dpilot:{name}".rows'
        for statement in (
            f"UPDATE {rows} SET body = ''",
            f"DELETE FROM {rows}",
            f"TRUNCATE {rows}",
            f"INSERT INTO {rows} VALUES (4, 'reserve', 'k', '', '{{\"by\": \"owner\"}}', '', '')",
        ):
            with pytest.raises(psycopg.Error):
                server.execute(statement, user=user)
        ledger.verify()

    def test_a_cap_is_of_one_name_and_no_group_spends_past_it(self, server: Server, user: str) -> None:
        name, group = secrets.token_hex(4), f"group{secrets.token_hex(4)}"
        server.execute(f"CREATE ROLE {group}; GRANT {group} TO {user}")
        ledger = Ledger.open(server.url(name), dataset="d", budget=Budget(3.0, 1e-5))
        for many in (group, "public"):
            with pytest.raises(LedgerError, match="no user who logs in"):
                ledger.grant(many, role="spend", cap=1.0)
        ledger.grant(group, role="read")
        server.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA "dpilot:{name}" TO {group}')  # past dpilot
        with pytest.raises(LedgerError, match="takes a grant to who spends"):
            spend(Ledger.open(server.url(name, user=user), dataset="d"), 2.0)
        assert ledger.entries() == ()
        server.execute(f"DROP OWNED BY {group}; DROP ROLE {group}")

    def test_a_cap_that_is_lowered_while_a_price_is_found_holds(
        self, server: Server, user: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = secrets.token_hex(4)
        ledger = Ledger.open(server.url(name), dataset="d", budget=Budget(3.0, 1e-5))
        ledger.grant(user, role="spend", cap=2.0)
        theirs = Ledger.open(server.url(name, user=user), dataset="d")
        find = spending._price

        def find_and_lower(*arguments: Any) -> Any:
            price = find(*arguments)
            monkeypatch.undo()
            ledger.grant(user, role="spend", cap=1.0)
            return price

        monkeypatch.setattr(spending, "_price", find_and_lower)
        with pytest.raises(BudgetExceeded, match="cap of"):
            theirs.commit([("x", PureDP(1.5))])

    def test_a_stage_is_run_and_settled_by_who_paid_for_it(self, server: Server, user: str) -> None:
        name = secrets.token_hex(4)
        ledger = Ledger.open(server.url(name), dataset="d", budget=Budget(3.0, 1e-5))
        ledger.grant(user, role="spend", cap=1.0)
        theirs = Ledger.open(server.url(name, user=user), dataset="d")
        planned = ledger.commit([("x", PureDP(1.0))])
        with pytest.raises(LedgerError, match="who paid for it"), theirs.committed(planned.seq).stage("x"):
            pytest.fail("ran past the cap")
        with pytest.raises(KeyboardInterrupt), ledger.reserve(PureDP(1.0)):
            raise KeyboardInterrupt
        cheap = settle_body(ledger.entries()[1].seq, 0, PureDP(0.1), Amount(Decimal("0.1"), Decimal(0)))
        with pytest.raises(LedgerError, match="who paid for it"), theirs._book.store.transaction() as appender:
            appender.append("settle", cheap)
        assert ledger.spent().epsilon == 2.0
        with theirs.commit([("x", PureDP(0.5))]).stage("x") as receipt:
            receipt.draw(PureDP(0.5))
        assert [entry.state for entry in ledger.entries()] == ["planned", "reserved", "committed"]

    def test_a_file_knows_no_users(self, folder: Path) -> None:
        ledger = Ledger.open(folder / "a", dataset="d", budget=HUGE)
        with pytest.raises(InvalidInput, match="knows no users"):
            ledger.grant("ann", role="read")
        assert ledger.grants() == ()


class TestAltered:
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE {0}.rows SET body = replace(body, '1', '2') WHERE seq = 1",
            "DELETE FROM {0}.rows WHERE seq = 2; UPDATE {0}.head SET count = 2",
            "UPDATE {0}.head SET count = 7",
        ],
    )
    def test_by_an_administrator_is_found(self, server: Server, statement: str) -> None:
        name = secrets.token_hex(4)
        ledger = Ledger.open(server.url(name), dataset="d", budget=HUGE)
        spend(ledger)
        schema = f'"dpilot:{name}"'
        server.execute(f"SET session_replication_role = replica; {statement.format(schema)}")
        with pytest.raises(LedgerError, match=r"altered|head says otherwise"):
            ledger.verify()

    def test_guards_that_are_gone_are_missed(self, server: Server) -> None:
        name = secrets.token_hex(4)
        ledger = Ledger.open(server.url(name), dataset="d", budget=HUGE)
        server.execute(f'ALTER TABLE "dpilot:{name}".rows DISABLE TRIGGER rows_follow')
        with pytest.raises(LedgerError, match="append-only are not as dpilot made them"):
            spend(ledger)


class TestMigration:
    def test_there_and_back_keeps_every_row(self, on_server: ServerFolder, folder: Path) -> None:
        first = Ledger.open(folder / "a", dataset="d", budget=Budget(3.0, 1e-5))
        spend(first, 0.5)
        head = first.head()
        there = migrate(folder / "a", on_server / "a")
        there.verify(head)
        assert there.entries() == first.entries()
        with pytest.raises(LedgerError, match="was moved to"):
            spend(first)
        assert Ledger.read(folder / "a").entries() == first.entries()
        spend(there, 0.25)
        back = migrate(there.path, folder / "b")
        back.verify(head)
        assert back.spent().epsilon == 0.75
        with pytest.raises(LedgerError, match="was moved to"):
            spend(there)

    def test_that_was_cut_short_ends_where_it_began(self, on_server: ServerFolder, folder: Path) -> None:
        from dpilot.privacy.ledger.book import move_body

        ledger = Ledger.open(folder / "a", dataset="d", budget=HUGE)
        with ledger._book.page() as page:
            page.append("move", move_body(on_server / "a"))
        with pytest.raises(LedgerError, match="was moved to"):
            migrate(folder / "a", folder / "elsewhere")
        spend(migrate(folder / "a", on_server / "a"))
        assert len(migrate(folder / "a", on_server / "a").entries()) == 1  # once more changes nothing

    def test_makes_the_target_once(self, on_server: ServerFolder, folder: Path) -> None:
        Ledger.open(on_server / "a", dataset="d", budget=Budget(1.0, 1e-5))
        spend(migrate(on_server / "a", folder / "a"), 1.0)
        (folder / "a").rename(folder / "b")  # or the same path on another machine
        with pytest.raises(LedgerError, match="was moved to"):
            migrate(on_server / "a", folder / "a")
        assert not (folder / "a").exists()
        again = migrate(folder / "b", folder / "c")
        assert migrate(again.path, on_server / "c").spent().epsilon == 1.0

    def test_waits_for_the_end_of_a_running_stage(self, on_server: ServerFolder, folder: Path) -> None:
        for here, there in ((folder / "a", on_server / "a"), (on_server / "b", folder / "b")):
            ledger = Ledger.open(here, dataset="d", budget=HUGE)
            with ledger.reserve(PureDP(1.0)) as receipt:
                with pytest.raises(LedgerError, match="is running"):
                    migrate(here, there)
                receipt.draw(PureDP(1.0))
            with pytest.raises(KeyboardInterrupt), ledger.reserve(PureDP(1.0)):
                raise KeyboardInterrupt
            assert [entry.state for entry in migrate(here, there).entries()] == ["committed", "reserved"]

    def test_onto_another_ledger_is_refused(self, on_server: ServerFolder, folder: Path) -> None:
        Ledger.open(folder / "a", dataset="d", budget=HUGE)
        Ledger.open(on_server / "b", dataset="d", budget=HUGE)
        with pytest.raises(LedgerError, match="there already"):
            migrate(folder / "a", on_server / "b")
        spend(Ledger.open(folder / "a", dataset="d"))


def test_other_terms_are_refused_and_write_nothing_and_pickles_find_it_again(on_server: ServerFolder) -> None:
    ledger = Ledger.open(on_server / "a", dataset="d", budget=HUGE)
    head = ledger.head()
    others: tuple[dict[str, Any], ...] = ({"dataset": "e"}, {"budget": Budget(1.0, 1e-5)}, {"mode": "precommitted"})
    for terms in ({"dataset": "d", **other} for other in others):
        with pytest.raises(LedgerError, match="on fixed terms"):
            Ledger.open(on_server / "a", **terms)
    with pytest.raises(InvalidInput, match="mode"):
        Ledger.open(on_server / "b", dataset="d", budget=HUGE, mode="other")
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger.read(on_server / "b")
    with pytest.raises(LedgerError, match="for reading only"):
        spend(Ledger.read(on_server / "a"))
    again = pickle.loads(pickle.dumps(ledger))
    assert (again.head(), again.path) == (head, ledger.path)
    assert copy.deepcopy(ledger) is ledger


def test_a_run_that_pays_on_the_server_is_resumed_and_pays_once(server: Server, folder: Path) -> None:
    import torch

    from dpilot import Plan, Trainer

    url = server.url(secrets.token_hex(4))
    ledger = Ledger.open(url, dataset="d", budget=Budget(3.0, 1e-5))
    data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randn(40, 1))
    loss = torch.nn.MSELoss(reduction="none")

    def each(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(output, target).mean(dim=1)

    def stop(record: Any) -> None:
        if record.step == 2:
            raise KeyboardInterrupt

    plan = Plan.calibrate(Budget(1.0, 1e-6), size=40, batch_size=10, steps=4, ledger=url)
    with pytest.raises(KeyboardInterrupt):
        Trainer(torch.nn.Linear(3, 1), each, plan, ledger=url, checkpoint=folder / "run", callback=stop).fit(data)
    assert [entry.state for entry in ledger.entries()] == ["reserved"]
    run = Trainer.resume(folder / "run", torch.nn.Linear(3, 1), each, data)
    assert run.epsilon <= 1.0
    assert [entry.state for entry in ledger.entries()] == ["committed"]


def test_a_password_is_neither_shown_nor_saved(server: Server) -> None:
    url = f"postgresql://owner:secret@/ledgers?host={server.folder}&password=secret&sslpassword=secret#{secrets.token_hex(4)}"
    ledger = Ledger.open(url, dataset="d", budget=HUGE)
    assert "secret" not in f"{ledger.path} {ledger!r} {ledger.path!r}"
    spend(ledger)
    from typer.testing import CliRunner

    from dpilot.cli.ledger import app

    for command in (["list", url.partition("#")[0]], ["show", url], ["verify", url]):
        assert "secret" not in CliRunner().invoke(app, command).output


def test_a_url_without_a_name_is_the_data_sets_or_the_only_one(server: Server) -> None:
    server.execute("CREATE DATABASE other", database="postgres")
    url = server.url(database="other")
    with pytest.raises(LedgerError, match="there are none"):
        Ledger.read(url)
    Ledger.open(url, dataset="adult", budget=HUGE)
    assert Ledger.read(url).dataset == "adult"
    Ledger.open(url, dataset="bank", budget=HUGE)
    with pytest.raises(LedgerError, match="there are adult, bank: expected"):
        Ledger.read(url)
    assert Ledger.open(url, dataset="bank").path.name == "bank"


def test_a_server_that_does_not_sync_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.execute("ALTER SYSTEM SET fsync = off")
    server.execute("SELECT pg_reload_conf()")
    try:
        time.sleep(0.3)
        with pytest.raises(LedgerError, match="fsync off"):
            Ledger.open(server.url("unsynced"), dataset="d", budget=HUGE)
    finally:
        server.execute("ALTER SYSTEM RESET fsync")
        server.execute("SELECT pg_reload_conf()")
        time.sleep(0.3)


def test_the_commands_name_a_database_as_they_name_a_file(server: Server, folder: Path) -> None:
    from typer.testing import CliRunner

    from dpilot.cli.ledger import app

    def run(*arguments: object) -> dict[str, Any]:
        answer = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        assert answer.exception is None, answer.exception
        found: dict[str, Any] = json.loads(answer.stdout)
        return found

    server.execute("CREATE DATABASE commands", database="postgres")
    url = os.fspath(server.url("adult", database="commands"))
    made = run("create", url, "--total", 3, "--delta", 1e-6)
    assert (made["created"], made["dataset"]) == (True, "adult")
    assert run("extend", url, "--total", 4, "--reason", "asked")["budget"]["epsilon"] == 4.0
    assert run("grant", url, "--to", "owner", "--role", "spend", "--cap", 1)["grants"][0]["cap"] == 1.0
    (listed,) = run("list", url.partition("#")[0])["ledgers"]
    assert listed["dataset"] == "adult"
    head = run("verify", url)["head"]
    assert run("migrate", url, folder / "adult.ledger")["file"] == str(folder / "adult.ledger")
    assert run("verify", folder / "adult.ledger", "--head", head)["verified"]
    assert run("show", folder / "adult.ledger")["budget"]["epsilon"] == 4.0
