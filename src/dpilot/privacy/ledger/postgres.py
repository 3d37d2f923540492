"""The store of an organisation: ledgers in a PostgreSQL database, each a schema of its own.

``postgresql://user@host/database#adult`` is the ledger called adult. A spend is one transaction that first takes the
ledger's advisory lock, and only then reads: at READ COMMITTED every statement sees what was committed before it, so
whoever has the lock sees every spend of those who had it before. (At a stricter level the snapshot would be as old as
the wait for the lock.) Sequence numbers are unique and the chain is that of a file, so a ledger can be moved.

A commit whose answer was lost is never repeated: the row is looked up by its key, after the connection that wrote it
has ended. While a stage runs its holder keeps a connection with an advisory lock of the session, which ends with it.

What users may do is what the server grants them (``Appender.grant``): a trigger refuses rows under another's name, rows
of whom no grant names (as members of a group, who would have no cap), and extensions, grants and moves by anybody but
the owner. A stage is run and settled by who paid for it, or by the owner. Prices are found by dpilot and not by the
server: a user with the right to spend who writes rows by hand can write a price of their own that is too low. The row
names its event, from which anybody can find the right price.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy.ledger.store import FORMAT, Appender, LedgerRow, check_rows

if TYPE_CHECKING:
    import psycopg

_MARK: Final = "dpilot ledger, format "
_PREFIX: Final = "dpilot:"
_LONGEST: Final = 63 - len(_PREFIX)  # bytes of a name; PostgreSQL cuts longer identifiers
_PATIENCE: Final = 60  # seconds to wait for another process
_RIGHTS: Final = {
    "read": ("SELECT ON {0}.rows, {0}.head",),
    "spend": ("SELECT ON {0}.rows, {0}.head", "INSERT ON {0}.rows", "UPDATE ON {0}.head"),
}
_GUARD: Final = """
BEGIN
  IF TG_TABLE_NAME = 'head' THEN
    IF TG_OP = 'UPDATE' AND NEW.count = OLD.count + 1 THEN RETURN NEW; END IF;
  ELSIF TG_OP = 'INSERT' AND NEW.seq = (SELECT count FROM {0}.head) THEN
    IF NEW.kind = 'reserve' AND (NEW.body::json ->> 'by') IS DISTINCT FROM session_user::text THEN
      RAISE EXCEPTION 'a spend is written under the name of who spends';
    ELSIF NOT pg_has_role(session_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER') THEN
      IF NEW.kind IN ('extend', 'grant', 'move', 'depart', 'arrive') THEN
        RAISE EXCEPTION 'only the owner of a ledger may extend, grant or move it';
      ELSIF NOT EXISTS (SELECT 1 FROM {0}.rows WHERE kind = 'grant' AND body::json ->> 'to' = session_user::text) THEN
        RAISE EXCEPTION 'a spend takes a grant to who spends: that of a group would have no cap';
      ELSIF NEW.kind <> 'reserve' AND session_user::text IS DISTINCT FROM
          (SELECT body::json ->> 'by' FROM {0}.rows WHERE seq = (NEW.body::json ->> 'of')::bigint) THEN
        RAISE EXCEPTION 'a stage is run and ended by who paid for it, or by the owner of the ledger';
      END IF;
    END IF;
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'a ledger is append-only';
END
"""
_TABLES: Final = """
CREATE SCHEMA {0};
CREATE TABLE {0}.rows (seq bigint PRIMARY KEY, kind text NOT NULL, key text NOT NULL UNIQUE, time text NOT NULL,
  body text NOT NULL, previous text NOT NULL, hash text NOT NULL);
CREATE TABLE {0}.head (id integer PRIMARY KEY CHECK (id = 0), count bigint NOT NULL, hash text NOT NULL);
INSERT INTO {0}.head VALUES (0, 0, '');
"""
_TRIGGERS: Final = """
CREATE FUNCTION {0}.guard() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $guard${1}$guard$;
CREATE TRIGGER rows_follow BEFORE INSERT OR UPDATE OR DELETE ON {0}.rows FOR EACH ROW EXECUTE FUNCTION {0}.guard();
CREATE TRIGGER rows_remain BEFORE TRUNCATE ON {0}.rows FOR EACH STATEMENT EXECUTE FUNCTION {0}.guard();
CREATE TRIGGER head_grows BEFORE UPDATE OR DELETE ON {0}.head FOR EACH ROW EXECUTE FUNCTION {0}.guard();
CREATE TRIGGER head_remains BEFORE TRUNCATE ON {0}.head FOR EACH STATEMENT EXECUTE FUNCTION {0}.guard();
"""
_SETTINGS: Final = f"""
SET search_path = pg_catalog; SET lock_timeout = '{_PATIENCE}s';
SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3;
SELECT set_config('synchronous_commit', 'on', false)
  WHERE current_setting('synchronous_commit') IN ('off', 'local');
"""
_SHAPE: Final = [  # relation, trigger, bits of tgtype (row 1, before 2, insert 4, delete 8, update 16, truncate 32)
    ("head", "head_grows", 1 + 2 + 8 + 16),
    ("head", "head_remains", 2 + 32),
    ("rows", "rows_follow", 1 + 2 + 4 + 8 + 16),
    ("rows", "rows_remain", 2 + 32),
]


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A ledger in a database; shown and saved without the password, which libpq also takes from its own files.

    >>> url = PostgresUrl.parse("postgresql://ann:secret@db.example/ledgers#adult")
    >>> str(url), url.name
    ('postgresql://ann@db.example/ledgers#adult', 'adult')
    """

    database: str = field(repr=False)
    ledger: str | None

    @classmethod
    def parse(cls, url: str | os.PathLike[str]) -> PostgresUrl:
        database, _, name = os.fspath(url).partition("#")
        return cls(database, None).named(unquote(name)) if name else cls(database, None)

    def named(self, ledger: str) -> PostgresUrl:
        """The ledger of that name in the same database."""
        if not ledger.isprintable() or set(ledger) & set('%"') or not 0 < len(ledger.encode()) <= _LONGEST:
            raise InvalidInput(
                f"the ledger's name is {ledger!r}: expected 1 to {_LONGEST} bytes of printable text without percent "
                "signs and double quotes. Name it by ...#NAME at the end of the URL."
            )
        return replace(self, ledger=ledger)

    @property
    def name(self) -> str:
        return self.ledger or urlsplit(self.database).path.lstrip("/")

    @property
    def stem(self) -> str:
        return self.name

    def __fspath__(self) -> str:
        return self.database + ("" if self.ledger is None else f"#{quote(self.ledger)}")

    def __str__(self) -> str:
        parts = urlsplit(self.__fspath__())
        user, at, host = parts.netloc.rpartition("@")
        query = urlencode([(key, value) for key, value in parse_qsl(parts.query) if "password" not in key])
        return parts._replace(netloc=user.partition(":")[0] + at + host, query=query).geturl()


def ledgers_in(url: PostgresUrl) -> tuple[PostgresUrl, ...]:
    """The ledgers of a database that this user may see, by name."""
    with _explain_errors(url), closing(_connect(url)) as connection:
        found = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'dpilot:%' "
            "AND obj_description(oid, 'pg_namespace') LIKE 'dpilot ledger%' "
            "AND has_schema_privilege(oid, 'USAGE') ORDER BY 1"
        ).fetchall()
    return tuple(url.named(str(name).removeprefix(_PREFIX)) for (name,) in found)


@dataclass(frozen=True, slots=True)
class PostgresStore:
    """The ledger at ``path``, whose name is known."""

    path: PostgresUrl
    read_only: bool = False

    @classmethod
    def find(cls, url: str | os.PathLike[str], dataset: str | None, *, read_only: bool) -> PostgresStore:
        """The ledger that the URL names; else the one called ``dataset``; else the only one that is there."""
        path = PostgresUrl.parse(url)
        if path.ledger is None:
            path = path.named(dataset) if dataset is not None else _only_one(path)
        return cls(path, read_only)

    def exists(self) -> bool:
        with _explain_errors(self.path), closing(_connect(self.path)) as connection:
            return _exists(connection, self._name)

    def user(self) -> str:
        with _explain_errors(self.path), closing(_connect(self.path)) as connection:
            (name,) = _one(connection, "SELECT session_user::text")
        return str(name)

    def create(self, rows: Sequence[LedgerRow]) -> bool:
        with _explain_errors(self.path), closing(_connect(self.path)) as connection:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            _lock(connection, self._name)
            if _exists(connection, self._name):
                return False
            connection.execute(_TABLES.format(self._schema))
            for row in rows:
                self._append(connection, row)
            connection.execute(_TRIGGERS.format(self._schema, _GUARD.format(self._schema)))
            connection.execute(f"COMMENT ON SCHEMA {self._schema} IS '{_MARK}{FORMAT}'")
            self._commit(connection, rows)
        return True

    def rows(self, *, thorough: bool = False) -> tuple[LedgerRow, ...]:
        del thorough  # the server checks its own pages (data checksums, pg_amcheck)
        with _explain_errors(self.path), closing(_connect(self.path)) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return self._read(connection)

    @contextmanager
    def transaction(self) -> Iterator[Appender]:
        if self.read_only:
            raise LedgerError(f"{self.path} was opened for reading only: expected Ledger.open to spend.")
        with _explain_errors(self.path), closing(_connect(self.path)) as connection:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            _lock(connection, self._name)
            before = self._read(connection)
            appender = Appender(before, lambda row: self._append(connection, row), self._grant(connection))
            try:
                yield appender
            except BaseException:
                with suppress(Exception):
                    connection.execute("ROLLBACK")
                raise
            self._commit(connection, appender.rows[len(before) :])

    def lock_stage(self, seq: int, place: int, *, again: bool = False) -> SessionLock:
        del again  # the server knows whether the session that held it is alive
        with _explain_errors(self.path):
            return SessionLock(self.path, seq, place)

    @property
    def _name(self) -> str:
        return _PREFIX + (self.path.ledger or "")

    @property
    def _schema(self) -> str:
        return _quote(self._name)

    def _read(self, connection: psycopg.Connection[Any]) -> tuple[LedgerRow, ...]:
        self._check_shape(connection)
        found = connection.execute(
            f"SELECT seq, kind, key, time, body, previous, hash FROM {self._schema}.rows ORDER BY seq"
        ).fetchall()
        head = connection.execute(f"SELECT id, count, hash FROM {self._schema}.head").fetchall()
        return check_rows(found, head)

    def _check_shape(self, connection: psycopg.Connection[Any]) -> None:
        """Refuse a ledger whose triggers were changed: rows may have been altered while they were away."""
        mark = connection.execute(
            "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", (self._name,)
        ).fetchone()
        if mark is None:
            raise LedgerError("the ledger does not exist: expected one made by Ledger.open or dpilot ledger create.")
        if mark[0] != f"{_MARK}{FORMAT}":
            raise LedgerError(f"its mark is {mark[0]!r}: expected format {FORMAT}. A newer dpilot may have made it.")
        triggers = connection.execute(
            "SELECT relname, tgname, tgtype::integer, tgenabled = 'O', prosrc FROM pg_trigger "
            "JOIN pg_class ON pg_class.oid = tgrelid JOIN pg_proc ON pg_proc.oid = tgfoid "
            "WHERE relnamespace = %s::regnamespace AND NOT tgisinternal ORDER BY 1, 2",
            (self._schema,),
        ).fetchall()
        if triggers != [(*each, True, _GUARD.format(self._schema)) for each in _SHAPE]:
            raise LedgerError("the triggers that keep it append-only are not as dpilot made them: it was altered.")

    def _append(self, connection: psycopg.Connection[Any], row: LedgerRow) -> None:
        values = (row.seq, row.kind, row.key, row.time, row.body, row.previous, row.hash)
        connection.execute(f"INSERT INTO {self._schema}.rows VALUES (%s, %s, %s, %s, %s, %s, %s)", values)
        changed = connection.execute(
            f"UPDATE {self._schema}.head SET count = %s, hash = %s WHERE count = %s", (row.seq + 1, row.hash, row.seq)
        )
        if changed.rowcount != 1:
            raise LedgerError(f"row {row.seq} does not follow the head: nothing was written. Try again.")

    def _grant(self, connection: psycopg.Connection[Any]) -> Callable[[str, str], None]:
        def grant(user: str, role: str) -> None:
            name = _quote(user)
            found = connection.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", (user,)).fetchone()
            if role == "spend" and found != (True,):
                raise LedgerError(f"{user!r} is no user who logs in: expected one, as a cap is of one name. Name each.")
            connection.execute(f"REVOKE ALL ON {self._schema}.rows, {self._schema}.head FROM {name}")
            connection.execute(f"GRANT USAGE ON SCHEMA {self._schema} TO {name}")
            for right in _RIGHTS[role]:
                connection.execute(f"GRANT {right.format(self._schema)} TO {name}")

        return grant

    def _commit(self, connection: psycopg.Connection[Any], rows: Sequence[LedgerRow]) -> None:
        """Commit; where the answer is lost, look for the last row rather than write it again."""
        import psycopg

        try:
            answer = connection.execute("COMMIT").statusmessage
        except psycopg.OperationalError as lost:
            if rows and not self._was_written(connection.info.backend_pid, rows[-1]):
                raise LedgerError(
                    "the connection was lost before the commit: nothing was written. Try again."
                ) from lost
        else:
            if answer != "COMMIT":
                raise LedgerError("the server undid the transaction: nothing was written. Try again.")

    def _was_written(self, writer: int, row: LedgerRow) -> bool:
        """Whether ``row`` is there, once the session that wrote it has ended and let go of the lock."""
        try:
            with closing(_connect(self.path)) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND usename = session_user",
                    (writer,),
                )
                connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                _lock(connection, self._name)
                if not _exists(connection, self._name):
                    return False
                found = connection.execute(
                    f"SELECT hash FROM {self._schema}.rows WHERE key = %s", (row.key,)
                ).fetchone()
                return bool(found == (row.hash,))
        except Exception as problem:
            raise LedgerError(
                f"the connection was lost during the commit, and the server cannot be asked ({problem}): row {row.seq} "
                f"may be written, and then it is spent. Look with dpilot ledger show before you try again."
            ) from problem


class SessionLock:
    """The lock of stage ``place`` of row ``seq``: an advisory lock of a connection kept while it runs."""

    def __init__(self, path: PostgresUrl, seq: int, place: int) -> None:
        self.seq, self.place = seq, place
        self._process = os.getpid()
        self._connection = _connect(path)
        key = _key(f"{_PREFIX}{path.ledger}", str(seq), str(place))
        try:
            (taken,) = _one(self._connection, "SELECT pg_try_advisory_lock(%s)", (key,))
            if not taken:
                raise LedgerError(
                    f"stage {place} of row {seq} is running: another session holds its lock. Expected a stage that was "
                    "interrupted; resume it when its process has ended."
                )
        except BaseException:
            self._connection.close()
            raise
        _open_here[id(self)] = self

    @property
    def own(self) -> bool:
        return self._process == os.getpid()

    def release(self) -> None:
        _open_here.pop(id(self), None)
        if self.own:
            self._connection.close()

    remove = release

    def let_go(self) -> None:
        """In a forked child: closing its copy would end the parent's session, so its socket is exchanged first."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, self._connection.fileno())
        os.close(nowhere)


_open_here: Final[dict[int, SessionLock]] = {}


def _let_go() -> None:
    for lock in tuple(_open_here.values()):
        with suppress(Exception):
            lock.let_go()
    _open_here.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _connect(path: PostgresUrl) -> psycopg.Connection[Any]:
    """A connection of its own for each call, so that forks, threads and pickles share none."""
    try:
        import psycopg
    except ImportError:
        raise LedgerError(
            "psycopg is not installed: expected it for a ledger in PostgreSQL. pip install dpilot[postgres]."
        ) from None
    keep_alive: dict[str, Any] = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    connection = psycopg.connect(path.database, autocommit=True, connect_timeout=_PATIENCE, **keep_alive)
    try:
        connection.execute(_SETTINGS)
        (synced,) = _one(connection, "SELECT current_setting('fsync')")
        if synced != "on":
            raise LedgerError("the server runs with fsync off: a crash would lose what was spent. Turn fsync on.")
    except BaseException:
        connection.close()
        raise
    return connection


def _one(connection: psycopg.Connection[Any], statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
    found = connection.execute(statement, values).fetchone()
    assert found is not None
    return tuple(found)


def _exists(connection: psycopg.Connection[Any], name: str) -> bool:
    return bool(_one(connection, "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = %s)", (name,))[0])


def _only_one(url: PostgresUrl) -> PostgresUrl:
    found = ledgers_in(url)
    if len(found) == 1:
        return found[0]
    there = ", ".join(each.name for each in found) or "none"
    raise LedgerError(f"{url} names no ledger, and there are {there}: expected ...#NAME at the end of the URL.")


def _lock(connection: psycopg.Connection[Any], name: str) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_key(name),))


def _key(*parts: str) -> int:
    """A lock's number, signed 64 bits: two that collide by chance wait for each other, and nothing worse."""
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8], "big", signed=True)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _explain_errors(path: PostgresUrl) -> Iterator[None]:
    """Turn what the server says into one LedgerError that names the ledger."""
    try:
        import psycopg
    except ImportError:
        yield
        return
    try:
        yield
    except psycopg.errors.LockNotAvailable as problem:
        raise LedgerError(f"{path} is held by another process for over {_PATIENCE} s: try again.") from problem
    except psycopg.errors.InsufficientPrivilege as problem:
        raise LedgerError(
            f"{path}: {_first_line(problem)}. Nothing was written; ask the owner for dpilot ledger grant."
        ) from problem
    except psycopg.Error as problem:
        raise LedgerError(f"{path} cannot be used ({_first_line(problem)}). Nothing was written.") from problem
    except LedgerError as problem:
        raise LedgerError(f"{path}: {problem}") from problem


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0]
