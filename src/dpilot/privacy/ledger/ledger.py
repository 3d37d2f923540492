"""The ledger that callers hold: open it, ask what is left, reserve before touching data.

>>> import tempfile; folder = tempfile.TemporaryDirectory()
>>> from dpilot.privacy.events import PureDP
>>> ledger = Ledger.open(f"{folder.name}/toy.ledger", dataset="toy", budget=Budget(1.0, 1e-5))
>>> with ledger.reserve(PureDP(0.25), purpose="a count") as receipt:
...     receipt.draw(PureDP(0.25))
>>> ledger.spent(), ledger.remaining()
(Cost(epsilon=0.25, delta=0.0), Cost(epsilon=0.75, delta=1e-05))
>>> folder.cleanup()
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from dpilot import _validate
from dpilot._html import html_table
from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy import _decimals, filters
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import Event
from dpilot.privacy.ledger import spending
from dpilot.privacy.ledger.book import Body, Book, extend_body, fold, move_body, open_body
from dpilot.privacy.ledger.history import Entry, Extension, Grant, History, Stage
from dpilot.privacy.ledger.postgres import PostgresStore
from dpilot.privacy.ledger.spending import Committed, find_price
from dpilot.privacy.ledger.store import Location, SqliteStore, Store, is_postgres, next_row, refuse_network
from dpilot.privacy.notices import warn_unledgered
from dpilot.privacy.receipt import Receipt, check_alone
from dpilot.privacy.unit import RECORD, PrivacyUnit


class Ledger:
    """One data set's spending, on disk at ``path``: a file, or a ledger ``postgresql://host/database#name``.

    Guarantee:
        A body under ``reserve`` runs only after its full price was synced to disk, and the total on disk never
        exceeds the budget, also when other processes spend at the same time. A crash or an exception leaves the price
        spent.

    Edge cases:
        A clock that jumps does not matter: rows are ordered by number.
        Copies (copy, deepcopy) are the same ledger; a pickle reopens the path, and refuses another ledger there.
    """

    def __init__(self, book: Book) -> None:
        self._book = book

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        dataset: str,
        budget: Budget | None = None,
        mode: str | None = None,
        bound: str | None = None,
        unit: str | None = None,
    ) -> Ledger:
        """Create the ledger of ``dataset``, or reopen it; other terms than the file's are a LedgerError.

        mode "adaptive" (the default) admits commitments over time under ``bound`` "basic", "rdp" or "gdp"; mode
        "precommitted" admits one, with everything fixed before data is read. ``unit`` names whom the total protects,
        "record" (the default) or such as "patient_id": what is committed for another unit is refused.
        """
        _validate.line(dataset=dataset)
        store = open_store(path, dataset=dataset)
        if not store.exists():
            cls.create(store.path, dataset=dataset, budget=budget, mode=mode, bound=bound, unit=unit)
        history = fold(store.rows())
        _check_same(history, dataset, budget, mode, bound, unit)
        return cls(Book(store, history.identity))

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        dataset: str,
        budget: Budget | None,
        mode: str | None = None,
        bound: str | None = None,
        unit: str | None = None,
    ) -> bool:
        """Make a ledger where nothing is yet; False if something is there, which is left as it is.

        Guarantee:
            of processes that create at once one gets True, and its terms stand; the others find its ledger.
        """
        store = open_store(path, dataset=dataset)
        check_alone()
        first = _first_row(dataset, budget, mode, bound, unit)
        return not store.exists() and store.create((next_row((), "open", first),))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """The ledger at ``path``, to look at only."""
        store = open_store(path, read_only=True)
        if not store.exists():
            raise LedgerError(f"{store.path} does not exist: expected a ledger. Check the path.")
        return cls(Book.of(store))

    @property
    def path(self) -> Location:
        """Where it is; as text without a password."""
        return self._book.path

    @property
    def dataset(self) -> str:
        return self._book.history().dataset

    @property
    def budget(self) -> Budget:
        """The total, extensions included."""
        return self._book.history().budget

    @property
    def mode(self) -> str:
        return self._book.history().mode

    @property
    def bound(self) -> str:
        return self._book.history().bound_name

    @property
    def unit(self) -> str:
        """Whom the total protects: "record", or the name of what has many rows."""
        return self._book.history().unit

    def check_unit(self, unit: PrivacyUnit) -> None:
        """Refuse another unit than the ledger's, before anything is done for it."""
        self._book.history().check_unit(unit)

    def spent(self) -> Cost:
        """The total so far, rounded up. Under "rdp" and "gdp" delta is used once, for the whole."""
        return self._book.history().total_cost()

    def remaining(self) -> Cost:
        """What is left, rounded down: of epsilon, and under "basic" also of delta. A precommitment leaves nothing."""
        return self._book.history().rest()

    def fits(
        self,
        event: Event,
        *,
        part: str | None = None,
        split: str | None = None,
        delta: float | None = None,
        unit: PrivacyUnit = RECORD,
    ) -> bool:
        """Whether ``reserve`` would admit this now. Writes nothing."""
        stage = Stage("asking", event, part, split)
        return find_price(self._book.history(), (stage,), _share(delta), unit, self._book.user())[1]

    def entries(self) -> tuple[Entry, ...]:
        """Every stage of every commitment, in order."""
        return self._book.history().entries()

    def extensions(self) -> tuple[Extension, ...]:
        """Every time the total was raised, with the reason, in order."""
        return self._book.history().extensions

    def grants(self) -> tuple[Grant, ...]:
        """Who may read or spend by a grant, and up to which cap."""
        return tuple(self._book.history().grants.values())

    def grant(self, to: str, *, role: str, cap: float | None = None) -> None:
        """Let the user ``to`` of the server "read" this ledger, or "spend" of it, up to the epsilon ``cap`` in all.

        Guarantee:
            a user spends under their own name; all spends of that name, composed as the total is, stay within the cap.
            The server gives no right to alter, remove, extend or grant.
        """
        with self._book.page() as page:
            page.grant(Grant(to, role, cap))

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Write all rows to a file, to be read there, in place of an older copy; nothing where that is the ledger."""
        target = _local(path)
        if target == self.path:
            return
        draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.copy")
        SqliteStore(draft).create(self._book.rows())
        os.replace(draft, target)

    def head(self) -> str:
        """``count:hash`` of the last row: kept elsewhere, it lets ``verify`` see a file that was rewritten whole."""
        return self._book.head()

    def verify(self, expected_head: str | None = None) -> str:
        """Raise LedgerError if a row was altered, removed, reordered or cut off; else return ``head()``.

        ``expected_head``: a head noted earlier. The ledger must have grown from it.

        Guarantee:
            finds every change to a row, unless the chain and the head were recomputed too. A file that was rewritten
            whole and consistently is detected only by a head that was kept elsewhere.
        """
        rows = self._book.rows(thorough=True)
        if expected_head is not None:
            count, _, digest = expected_head.partition(":")
            place = int(count) - 1 if count.isdecimal() else -1
            if not 0 <= place < len(rows) or rows[place].hash != digest:
                raise LedgerError(
                    f"{self.path} does not continue from {expected_head!r}: rows up to there were removed or "
                    "rewritten, or the head is another ledger's. Restore the file from a copy."
                )
        return f"{len(rows)}:{rows[-1].hash}"

    def extend(self, budget: Budget, *, reason: str) -> None:
        """Raise the total to ``budget``, for good and on record: every earlier promise weakens to the new total."""
        _validate.line(reason=reason)
        if not isinstance(budget, Budget):
            raise InvalidInput(f"budget is {budget!r}: expected a Budget, the new total.")
        with self._book.page() as page:
            old = page.history.budget
            if budget == old or budget.epsilon < old.epsilon or budget.delta < old.delta:
                raise InvalidInput(f"budget is {budget}: expected more than {old}. extend names the new total.")
            if page.history.is_closed:
                raise InvalidInput("a precommitted ledger admits nothing after its commitment: open another ledger.")
            page.append("extend", extend_body(budget, reason))

    @contextmanager
    def reserve(
        self,
        event: Event,
        *,
        purpose: str = "release",
        part: str | None = None,
        split: str | None = None,
        delta: float | None = None,
        unit: PrivacyUnit = RECORD,
    ) -> Iterator[Receipt]:
        """Spend ``event``, then run the body with the receipt that its releases are drawn from.

        In a precommitted ledger whose stages are committed, this begins the planned stage that is named here.

        Args:
            event: what will be released.
            purpose: a short label, which the ledger shows.
            part: the part of the data set whose records alone are touched; None for all records.
            split: the split it is a part of; may be left out everywhere if the data set is only ever split once.
            delta: the share at which bound "basic" prices it; by default left / (k + 2) after k commitments, or all
                that is left if only that fits.
            unit: whom the release protects; the ledger was made for the unit of that name.

        Raises:
            BudgetExceeded: if it does not fit what is left; nothing is written then.
            InvalidInput: if the ledger is for another unit; nothing is written then.

        Guarantee:
            on disk before the body runs. Leaving commits; an exception or a crash leaves it spent in full.
        """
        stage = Stage(purpose, event, part, split)
        history = self._book.history()
        history.check_unit(unit)
        if history.is_closed:
            lock = spending.begin(self._book, stage)
        else:
            lock = spending.spend(self._book, stage, _share(delta), unit)
        with spending.run_stage(self._book, lock, event) as receipt:
            yield receipt

    def commit(
        self, stages: Iterable[Stage | tuple[Any, ...]], *, delta: float | None = None, unit: PrivacyUnit = RECORD
    ) -> Committed:
        """Spend all ``stages`` as one commitment, composed by one PLD where the bound allows; each then runs once.

        A stage is a Stage or a tuple (purpose, event, part, split), the last two optional. Another ``unit`` than the
        ledger's is refused, and nothing is written.
        """
        planned = tuple(stage if isinstance(stage, Stage) else Stage(*stage) for stage in stages)
        if not planned:
            raise InvalidInput("stages is empty: expected at least one (purpose, event).")
        return Committed(self._book, spending.admit(self._book, planned, _share(delta), unit))

    def check_room(self, *commitments: tuple[Sequence[Stage], float | None], unit: PrivacyUnit = RECORD) -> None:
        """Raise BudgetExceeded unless ``commit`` would admit each (stages, delta), one after the other.

        Nothing is written: for who pays in turns and would not begin what cannot be ended.
        """
        spending.check_room(self._book, [(stages, _share(delta)) for stages, delta in commitments], unit)

    def committed(
        self, seq: int | None = None, *, repeat: Callable[[], AbstractContextManager[None]] | None = None
    ) -> Committed:
        """The commitment in row ``seq`` again, or the only one: for a process that did not make it.

        ``repeat`` is for one that replays an interrupted run exactly (``Committed``).
        """
        found = [each.seq for each in self._book.history().commitments if seq in (None, each.seq)]
        if len(found) != 1:
            raise InvalidInput(f"seq is {seq!r}: expected the row of a commitment, one of those in entries().")
        return Committed(self._book, found[0], repeat)

    @contextmanager
    def resume(self, seq: int, stage: int = 0, *, drawn: Event | None = None) -> Iterator[Receipt]:
        """Go on with an interrupted stage, without paying again. Only for an EXACT replay: same noise, same batches.

        ``drawn``: what was released before the point from which the replay starts. A resumed stage never settles.

        Guarantee:
            one holder at a time: a stage that another process or thread is running is a LedgerError.
        """
        lock, event = spending.resume(self._book, seq, stage, drawn)
        with spending.run_stage(self._book, lock, event, resumed=True, drawn=drawn) as receipt:
            yield receipt

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (os.fspath(self.path), self._book.store.read_only, self._book.identity)

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """The ledger as a small table for notebooks; all text is escaped."""
        history = self._book.history()
        spent, budget = history.cost(history.total()), history.budget
        total = f"epsilon {spent.epsilon:.4g} of {budget.epsilon:g} at delta {budget.delta:g}"
        caption = f"{self.path.name}: data set {history.dataset}, unit {history.unit}, {total}"
        return html_table(caption, Entry.COLUMNS, (entry.cells() for entry in history.entries()))


def as_ledger(
    ledger: Ledger | str | os.PathLike[str], budget: Budget, dataset: str | None = None, unit: PrivacyUnit = RECORD
) -> Ledger:
    """The ledger, or the one at the path: reopened as it is, or made for ``budget`` and ``unit``, named by ``dataset``.

    Edge cases:
        no name         a new ledger is named by its file
        another unit    refused
    """
    if not isinstance(ledger, Ledger):
        store = open_store(ledger, dataset=dataset)
        if not store.exists():  # or another process makes it, meanwhile
            Ledger.create(store.path, dataset=dataset or store.path.stem, budget=budget, unit=unit.name)
        ledger = reopen(store.path)
    ledger.check_unit(unit)
    return ledger


def migrate(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Ledger:
    """Move a ledger to a file or a database where there is none; what began there goes on, what is here is closed.

    Guarantee:
        at no moment do two ledgers admit spending, and none moves while a stage of it runs. The source is closed first,
        by a row that names the target; if the process ends before the target is made, the same call makes it, once:
        a last row says that it is there. The chain is one: every row keeps its hash.
    """
    book = Book.of(open_store(source))
    store = open_store(target, dataset=book.history().dataset)
    if book.history().moved_to is None:
        if store.exists():
            raise LedgerError(f"{store.path} is there already: expected a place without a ledger. Name another.")
        with book.page() as page:
            for entry in page.history.entries():
                if entry.state == "reserved":  # whoever runs it holds its lock here, and would not be seen there
                    book.store.lock_stage(entry.seq, entry.stage).release()
            page.append("move", move_body(store.path))
    elif book.history().moved_to != str(store.path):
        book.history().check_here()
    with book.store.transaction() as appender:  # two that move take turns
        history = fold(appender.rows)
        rows = appender.rows[:-1] if history.departed else appender.rows
        if history.departed and not store.exists():  # removed, or on another machine: this state may be older than it
            history.check_here()
        if not store.create((*rows, next_row(rows, "arrive", move_body(book.path)))):
            found = store.rows()
            if found[: len(rows)] != rows:
                raise LedgerError(f"{store.path} is another ledger: expected what {book.path} was moved to. Name it.")
        if not history.departed:
            appender.append("depart", move_body(store.path))
    return reopen(store.path)


def reopen(path: str | os.PathLike[str]) -> Ledger:
    """The ledger at ``path``, whatever data set it is of."""
    return Ledger.open(path, dataset=Ledger.read(path).dataset)


def describe_ledger(ledger: Ledger | Committed, *, own: bool) -> dict[str, Any]:
    """What a record says of the ledger that paid for it, at that moment, as plain data.

    ``own``: made for one run alone. Such a ledger counts nothing else, and lies in the run's folder where there is one.
    """
    book = ledger._book
    history = book.history()
    total = Cost(history.budget.epsilon, history.budget.delta)
    parts = {"total": total, "spent": history.total_cost(), "left": history.rest()}
    amounts = {name: {"epsilon": part.epsilon, "delta": part.delta} for name, part in parts.items()}
    where = "" if own else str(book.path)
    return {"own": own, "where": where, "dataset": history.dataset, "bound": history.bound_name, **amounts}


@contextmanager
def commitment(
    stages: Sequence[Stage],
    budget: Budget,
    ledger: Ledger | str | os.PathLike[str] | None,
    dataset: str,
    *,
    size: float | None,
    unit: PrivacyUnit = RECORD,
) -> Iterator[tuple[Committed, Cost]]:
    """Commit ``stages`` at once, within ``budget``, in ``ledger`` or in one made for them, then run the body.

    Guarantee:
        The whole price is on disk before the body runs; what does not fit raises BudgetExceeded and writes nothing.
        A crash, a kill or an exception leaves all of it spent, stages that never began included.

    Edge cases:
        size         the declared number of units, for which delta must be small; None where it is to be bought
        unit         whom all of it protects: a ledger for another unit is refused
        no ledger    a precommitted one of ``budget``, named ``dataset``, is made, and dropped after the body; a
                     PrivacyWarning says that nothing else is counted
        a ledger     is charged what it makes of the stages; the cost that comes out is the whole ``budget``
    """
    budget.check_size(size)
    with tempfile.TemporaryDirectory(prefix="dpilot-") as folder:
        if ledger is None:
            warn_unledgered(budget)
            path = Path(folder) / "own.ledger"
            book = Ledger.open(path, dataset=dataset, budget=budget, mode="precommitted", unit=unit.name)
        else:
            book = as_ledger(ledger, budget, unit=unit)
        made = book.commit(stages, delta=budget.delta if book.bound == "basic" else None, unit=unit)
        yield made, book.spent() if ledger is None else Cost(budget.epsilon, budget.delta)


def _share(delta: float | None) -> Decimal | None:
    return None if delta is None else _decimals.to_decimal(_validate.open_unit(delta=delta))


def open_store(path: str | os.PathLike[str], *, dataset: str | None = None, read_only: bool = False) -> Store:
    """The ledger's store: a local file, or a database, in which ``dataset`` names it where the URL does not."""
    if is_postgres(path):
        return PostgresStore.find(path, dataset, read_only=read_only)
    return SqliteStore(_local(path), read_only)


def ledger_exists(path: str | os.PathLike[str], dataset: str | None = None) -> bool:
    """Whether there is a ledger, or a file in its place, at ``path``."""
    return open_store(path, dataset=dataset).exists() if is_postgres(path) else Path(path).exists()


def _local(path: str | os.PathLike[str]) -> Path:
    where = Path(os.path.realpath(path))
    if not where.parent.is_dir():
        raise LedgerError(f"{where.parent} is not a folder: expected an existing one for the ledger. Make it first.")
    if where.is_dir():
        raise LedgerError(f"{where} is a folder: expected the path of a file.")
    refuse_network(where.parent)
    return where


def _unpickle(path: str, read_only: bool, identity: str) -> Ledger:
    book = Book(open_store(path, read_only=read_only), identity)
    book.history()  # raises if another ledger is there
    return Ledger(book)


def _first_row(dataset: str, budget: Budget | None, mode: str | None, bound: str | None, unit: str | None) -> Body:
    """Row 0 of a new ledger; by default "adaptive" and "basic", for records."""
    if not isinstance(budget, Budget):
        raise InvalidInput(f"budget is {budget!r}: expected a Budget for a new ledger, such as Budget(1.0, 1e-5).")
    mode = _validate.one_of(("adaptive", "precommitted"), mode=mode or "adaptive")
    allowed = ("basic", "rdp", "gdp") if mode == "adaptive" else ("pld",)
    bound = _validate.one_of(allowed, f'Mode "{mode}" admits no other.', bound=bound or allowed[0])
    order = filters.choose_order(budget) if bound == "rdp" else None
    identity = secrets.token_hex(16)
    return open_body(identity, _validate.line(dataset=dataset), budget, mode, bound, order, PrivacyUnit.of(unit).name)


def _check_same(
    history: History, dataset: str, budget: Budget | None, mode: str | None, bound: str | None, unit: str | None
) -> None:
    """Raise LedgerError where the caller expects another ledger than the one in the file."""
    terms = {
        "dataset": (dataset, history.dataset),
        "budget": (budget, history.budget),
        "mode": (mode, history.mode),
        "bound": (bound, history.bound_name),
        "unit": (unit, history.unit),
    }
    for name, (value, fixed) in terms.items():
        if value is not None and value != fixed:
            raise LedgerError(
                f"{name} is {value!r}, but the ledger was opened for {fixed!r}: one data set has one ledger, on "
                f"fixed terms. Use the ledger's own {name}, or another path; ledger.extend raises a budget."
            )
