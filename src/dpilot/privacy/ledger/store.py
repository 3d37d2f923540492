"""Where rows are kept: what any store promises, and the file, one SQLite database.

Rows are only ever added, and each transaction is on disk before it is believed. ``postgres.py`` is the store of an
organisation's server.

Every call opens its own connection, so forked workers, threads and pickles cannot share one by accident. The file is
never opened by anything but SQLite: closing any other handle would drop SQLite's locks. It lives on a local disk:
network file systems do not lock and sync as SQLite needs (``refuse_network``).

What ``head`` is for: a chain alone does not notice that its last rows are gone, so count and hash of the end are kept
beside it, in the same transaction. Who can rewrite the whole file can still rewrite both; a head noted elsewhere
(``Ledger.head``) catches that too. Each row is tied to all before it:

    hash = SHA-256 of canonical JSON [seq, kind, key, time, body, previous hash]
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, Final, Protocol

from dpilot.errors import LedgerError
from dpilot.privacy.ledger.stage_lock import FileLock, StageLock

FORMAT: Final = 1
NOTHING_BEFORE: Final = "0" * 64
_APPLICATION: Final = 0x64704C67  # "dpLg", in the header of every ledger
_SCHEMES: Final = ("postgresql://", "postgres://")
_PATIENCE: Final = 60.0  # seconds to wait for another process

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = re.compile(
    "nfs4?|cifs|smb3|smbfs|ncpfs|afs|9p|drvfs|ceph|lustre|glusterfs|beegfs|gpfs|orangefs|pvfs2|ocfs2|gfs2|coda|davfs|"
    "virtiofs|vboxsf|prl_fs|wekafs|panfs|"
    r"fuse|fuse\.(?!encfs$|gocryptfs$|cryfs$|mergerfs$|fuse-overlayfs$|bindfs$|ntfs-3g$).*"
)

_SCHEMA: Final = (
    "CREATE TABLE rows (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL UNIQUE, time TEXT NOT NULL, "
    "body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 0), count INTEGER NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER rows_follow BEFORE INSERT ON rows WHEN NEW.seq <> (SELECT count FROM head) "
    "OR EXISTS (SELECT 1 FROM rows WHERE key = NEW.key) BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END",
    "CREATE TRIGGER rows_stay BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END",
    "CREATE TRIGGER rows_remain BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END",
    "CREATE TRIGGER head_grows BEFORE UPDATE ON head WHEN NEW.count <> OLD.count + 1 "
    "BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END",
    "CREATE TRIGGER head_remains BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END",
)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One line of the ledger. ``seq`` alone orders rows; ``time`` is only shown, so a clock may be wrong."""

    seq: int
    kind: str
    key: str
    time: str
    body: str
    previous: str
    hash: str

    def content(self) -> dict[str, Any]:
        """The body as data."""
        return read_body(self.body)


def read_body(text: str) -> dict[str, Any]:
    """A row's body as data."""
    data = json.loads(text)
    if not isinstance(data, dict):
        raise LedgerError(f"a row holds {type(data).__name__}: expected an object. The file was altered.")
    return data


_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def canonical(data: Any) -> str:
    """One spelling for one value: sorted keys, no spaces, ASCII only."""
    return _ENCODER.encode(data)


def next_row(before: Sequence[LedgerRow], kind: str, body: Mapping[str, Any]) -> LedgerRow:
    """The row that follows ``before``, with a key of its own: a second attempt is a second spend."""
    previous = before[-1].hash if before else NOTHING_BEFORE
    fields = (len(before), kind, secrets.token_hex(16), datetime.now(UTC).isoformat(timespec="seconds"))
    text = canonical(body)
    return LedgerRow(*fields, text, previous, _digest(*fields, text, previous))


def check_chain(rows: Sequence[LedgerRow]) -> None:
    """Raise LedgerError at the first row that was altered, removed, added or moved."""
    previous = NOTHING_BEFORE
    for place, row in enumerate(rows):
        right = _digest(row.seq, row.kind, row.key, row.time, row.body, row.previous)
        if row.seq != place or row.previous != previous or row.hash != right:
            raise LedgerError(
                f"row {place} of the ledger was altered, removed or moved: its hash does not follow from the rows "
                "before it. Restore the file from a copy; what it says now cannot be relied on."
            )
        previous = row.hash


def check_rows(found: Sequence[Sequence[Any]], head: Sequence[Any]) -> tuple[LedgerRow, ...]:
    """The rows that a store holds, or LedgerError where they were altered or end elsewhere than ``head``."""
    if any(not isinstance(value, str) for values in found for value in values[1:]):
        raise LedgerError("a row of the ledger does not hold text where it should: it was altered.")
    rows = tuple(LedgerRow(*values) for values in found)
    check_chain(rows)
    if not rows or [tuple(each) for each in head] != [(0, len(rows), rows[-1].hash)]:
        raise LedgerError(
            f"the ledger ends after {len(rows)} rows, but its head says otherwise: rows were removed or added at the "
            "end. Restore it from a copy."
        )
    return rows


def _digest(seq: int, *texts: str) -> str:
    # canonical([seq, *texts]), spelled out: an encoder is made anew at every call, and long ledgers have many rows
    text = ",".join((str(seq), *map(encode_basestring_ascii, texts)))
    return hashlib.sha256(f"[{text}]".encode("ascii")).hexdigest()


class Location(Protocol):
    """Where a ledger is: a ``Path``, or a database's ``PostgresUrl``. As text it shows no password."""

    @property
    def name(self) -> str: ...

    @property
    def stem(self) -> str:
        """What a ledger there is called by default."""
        ...

    def __fspath__(self) -> str: ...


def is_postgres(path: str | os.PathLike[str]) -> bool:
    """Whether this names a database, not a file.

    >>> is_postgres("postgresql://db.example/ledgers#adult"), is_postgres("adult.ledger")
    (True, False)
    """
    return os.fspath(path).startswith(_SCHEMES)


class Store(Protocol):
    """One ledger's rows. Whoever has the transaction is alone; what it appended is on disk, all of it or nothing."""

    @property
    def path(self) -> Location: ...

    @property
    def read_only(self) -> bool: ...

    def exists(self) -> bool: ...

    def user(self) -> str | None:
        """Under which name this process writes, where a server knows names."""
        ...

    def create(self, rows: Sequence[LedgerRow]) -> bool:
        """Make the ledger with its first rows, whole or not at all; False if another process made it meanwhile."""
        ...

    def rows(self, *, thorough: bool = False) -> tuple[LedgerRow, ...]:
        """All rows, their chain and head checked; ``thorough`` has the medium checked too, where that can be."""
        ...

    def transaction(self) -> AbstractContextManager[Appender]:
        """The right to append, alone. On leaving, what was appended is on disk; on an exception nothing is."""
        ...

    def lock_stage(self, seq: int, place: int, *, again: bool = False) -> StageLock:
        """Hold stage ``place`` of row ``seq``, or raise LedgerError; ``again`` for a stage that began before."""
        ...


@dataclass(frozen=True, slots=True)
class SqliteStore:
    """A ledger file at ``path``, an absolute path with links resolved."""

    path: Path
    read_only: bool = False

    def exists(self) -> bool:
        return self.path.exists()

    def user(self) -> None:
        """A file knows no names."""

    def create(self, rows: Sequence[LedgerRow]) -> bool:
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.new")
        try:
            with _explain_errors(self.path):
                _fill(draft, rows)
                os.link(draft, self.path)  # fails if the name is taken: nothing is ever replaced
        except FileExistsError:
            return False
        finally:
            for name in (draft, draft.with_name(draft.name + "-journal")):
                with suppress(OSError):
                    name.unlink(missing_ok=True)
        sync_folder(self.path.parent)
        return True

    def rows(self, *, thorough: bool = False) -> tuple[LedgerRow, ...]:
        with _explain_errors(self.path):
            try:
                return _read(self.path, "ro" if self.read_only else "rw", thorough)
            except sqlite3.OperationalError as problem:
                if not self.read_only or _name(problem) != "SQLITE_READONLY_ROLLBACK":
                    raise
            return _read(self.path, "rw", thorough)  # a writer was killed: SQLite must first undo its half transaction

    @contextmanager
    def transaction(self) -> Iterator[Appender]:
        if self.read_only:
            raise LedgerError(f"{self.path} was opened for reading only: expected Ledger.open to spend.")
        with _explain_errors(self.path), closing(_connect(self.path, "rw")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield Appender(_read_rows(connection), lambda row: _append(connection, row))
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def lock_stage(self, seq: int, place: int, *, again: bool = False) -> FileLock:
        return FileLock(self.path, seq, place, again=again)


class Appender:
    """The rows so far, and the one way to add to them.

    ``grant(user, role)``, where the store knows users, gives one the right to "read" or to "spend", in the same
    transaction.
    """

    def __init__(
        self,
        rows: tuple[LedgerRow, ...],
        write: Callable[[LedgerRow], None],
        grant: Callable[[str, str], None] | None = None,
    ) -> None:
        self.rows = rows
        self.grant = grant
        self._write = write

    def append(self, kind: str, body: Mapping[str, Any]) -> LedgerRow:
        """Add a row to the transaction."""
        row = next_row(self.rows, kind, body)
        self._write(row)
        self.rows = (*self.rows, row)
        return row


def is_ledger(path: Path) -> bool:
    """Whether the file is marked as a ledger, sound or not; False where there is none."""
    try:
        with closing(_connect(Path(os.path.realpath(path)), "ro")) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
    except (sqlite3.Error, OSError):
        return False
    return bool(application == _APPLICATION)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=_PATIENCE, isolation_level=None)
    try:
        for setting in ("synchronous = EXTRA", "fullfsync = ON", "trusted_schema = OFF", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()  # a file that is no database
        raise
    return connection


def _read(path: Path, mode: str, thorough: bool) -> tuple[LedgerRow, ...]:
    with closing(_connect(path, mode)) as connection:
        connection.execute("BEGIN")
        rows = _read_rows(connection)
        if thorough:
            _check_pages(connection)
        return rows


def _fill(path: Path, rows: Sequence[LedgerRow]) -> None:
    with closing(_connect(path, "rwc")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("INSERT INTO head VALUES (0, 0, '')")
        for row in rows:
            _append(connection, row)
        connection.execute("COMMIT")


def _append(connection: sqlite3.Connection, row: LedgerRow) -> None:
    _insert(connection, row)
    connection.execute("UPDATE head SET count = ?, hash = ?", (row.seq + 1, row.hash))


def _insert(connection: sqlite3.Connection, row: LedgerRow) -> None:
    values = (row.seq, row.kind, row.key, row.time, row.body, row.previous, row.hash)
    connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def _read_rows(connection: sqlite3.Connection) -> tuple[LedgerRow, ...]:
    _check_kind(connection)
    found = connection.execute("SELECT seq, kind, key, time, body, previous, hash FROM rows ORDER BY seq").fetchall()
    return check_rows(found, connection.execute("SELECT id, count, hash FROM head").fetchall())


def _check_kind(connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    if application != _APPLICATION:
        raise LedgerError("the file is not a dpilot ledger: expected one made by Ledger.open. Name another path.")
    if version > FORMAT:
        raise LedgerError(
            f"the ledger has format {version}: expected at most {FORMAT}. A newer dpilot wrote it; update dpilot."
        )
    schema = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
    if version != FORMAT or journal != "delete" or schema != [(statement,) for statement in _SCHEMA]:
        raise LedgerError("the ledger's tables are not as dpilot made them: the file was altered. Restore a copy.")


def _check_pages(connection: sqlite3.Connection) -> None:
    problems = connection.execute("PRAGMA integrity_check").fetchall()
    if problems != [("ok",)]:
        raise LedgerError(f"the ledger file is damaged ({problems[0][0]}): restore it from a copy.")


_REASONS: Final = {
    "SQLITE_NOTADB": "is not a dpilot ledger: expected one made by Ledger.open, or a path where nothing is yet",
    "SQLITE_CORRUPT": "is damaged or cut short: restore it from a copy",
    "SQLITE_BUSY": f"is held by another process for over {_PATIENCE:.0f} s: try again when it is done",
    "SQLITE_FULL": "cannot grow: the disk is full. Nothing was written; make room",
    "SQLITE_IOERR": "cannot be read or written: the disk is full or failing. Nothing was spent; make room",
    "SQLITE_READONLY": "cannot be written: the file or its folder is read-only. Nothing was spent",
    "SQLITE_CANTOPEN": "cannot be opened: expected a file in a folder that may be read and written",
    "SQLITE_PERM": "cannot be opened: the permission is missing",
}


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say into one LedgerError that names the file."""
    try:
        yield
    except sqlite3.Error as problem:
        name = _name(problem)
        family = "_".join(name.split("_")[:2])
        reason = _REASONS.get(family, "was altered or cannot be read: restore it from a copy")
        raise LedgerError(f"{path} {reason} ({name}: {problem}).") from problem
    except (UnicodeError, OverflowError) as problem:  # sqlite3 raises them on garbled text and numbers
        raise LedgerError(f"{path} is damaged: restore it from a copy ({type(problem).__name__}).") from problem
    except FileExistsError:
        raise
    except OSError as problem:
        raise LedgerError(
            f"{path} cannot be used ({problem.strerror}): expected a writable local folder. Name one by --ledger (in "
            "Python ledger=) or DPILOT_LEDGERS."
        ) from problem
    except LedgerError as problem:
        raise LedgerError(f"{path}: {problem}") from problem


def _name(problem: sqlite3.Error) -> str:
    return getattr(problem, "sqlite_errorname", "SQLite")  # some errors come from the Python side and have none


def sync_folder(folder: Path) -> None:
    """Make a new name in ``folder`` survive a power cut."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_network(folder: Path) -> None:
    """Raise LedgerError when ``folder`` is on a network file system. Only Linux tells; elsewhere it is your care."""
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return
    kind = file_system(str(folder), mounts)
    if _NETWORK.fullmatch(kind):
        raise LedgerError(
            f"{folder} is on a network file system ({kind}): expected a local disk, where locks and fsync hold. "
            "Keep the ledger on a local path of the one machine that spends: name it by --ledger (in Python ledger=), "
            "or a folder for all by DPILOT_LEDGERS."
        )


def file_system(folder: str, mounts: str) -> str:
    """The type of the file system that holds ``folder``, from the text of mountinfo; later mounts cover earlier ones.

    >>> root, data = "1 0 8:1 / / rw - ext4 a rw", "2 1 0:9 / /data rw - nfs4 b rw"
    >>> file_system("/data/x", f"{root}\\n{data}"), file_system("/data/x", f"{data}\\n{root}")
    ('nfs4', 'nfs4')
    >>> file_system("/database", f"{root}\\n{data}")
    'ext4'
    """
    best, found = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if _holds(point, folder) and len(point) >= len(best):
            best, found = point, right.split(" ")[0]
    return found


def _holds(point: str, folder: str) -> bool:
    return point == "/" or folder == point or folder.startswith(point + "/")
