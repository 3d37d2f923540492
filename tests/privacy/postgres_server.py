"""A PostgreSQL server of the tests' own: started in a temporary folder, stopped, killed and started again."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psycopg

from dpilot.privacy.ledger.postgres import PostgresUrl


def programs() -> Path | None:
    """The folder of initdb and postgres, of the newest version that is installed."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    folders = glob.glob("/usr/lib/postgresql/*/bin")
    return Path(max(folders, key=lambda folder: float(folder.split(os.sep)[-2]))) if folders else None


class Server:
    """A cluster under the user postgres (the server refuses root), reached by a socket in its folder.

    With ``listen``, an address, also by the port that the variable PGPORT names.
    """

    def __init__(self, bin: Path, *, listen: str = "") -> None:
        self._bin, self._listen = bin, listen
        self._as = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        self.folder = Path(tempfile.mkdtemp(prefix="dpilot-postgres-"))
        if self._as:
            shutil.chown(self.folder, "postgres")
        self._run("initdb", "-D", self.folder / "data", "-U", "owner", "-A", "trust", "--no-sync")
        self.start()
        self.execute("CREATE DATABASE ledgers", database="postgres")

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self._as, str(self._bin / program), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='{self._listen}' -c max_connections=60"
        self._run("pg_ctl", "-D", self.folder / "data", "-o", options, "-l", self.folder / "log", "-w", "start")

    def kill(self) -> None:
        """End the server and its children as a power cut would, and start it again."""
        leader = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(leader, signal.SIGKILL)
        for _ in range(100):  # its children hold the shared memory until they see that their leader is gone
            with suppress(subprocess.CalledProcessError):
                self.start()
                return
            time.sleep(0.1)
        raise TimeoutError("the server did not start again")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, name: str | None = None, *, user: str = "owner", database: str = "ledgers") -> PostgresUrl:
        url = PostgresUrl(f"postgresql://{user}@/{database}?host={self.folder}", None)
        return url if name is None else url.named(name)

    def execute(self, statement: str, *, user: str = "owner", database: str = "ledgers") -> None:
        """Run a statement as an administrator would, past dpilot."""
        with psycopg.connect(self.url(user=user, database=database).database, autocommit=True) as connection:
            connection.execute(statement)


class ServerFolder:
    """Stands in for a temporary folder: ``folder / name`` is a ledger in the database."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.server, self._prefix = server, prefix

    def __truediv__(self, name: str) -> PostgresUrl:
        return self.server.url(f"{self._prefix}{name}")
