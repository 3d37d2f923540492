from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

_numbers = itertools.count()
_QUICK = ("test_the_reservation_is_on_disk", "test_a_running_stage", "test_a_killed_holder", "test_a_child_that_leaves")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a server all but a few tests of the files' suites are slow; here, as a mark would be on both."""
    for item in items:
        borrowed = not str(getattr(getattr(item, "function", None), "__module__", "")).endswith(item.path.stem)
        if item.path.stem == "test_ledger_postgres" and borrowed and not item.name.startswith(_QUICK):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def server() -> Iterator[object]:
    """A PostgreSQL server for all tests of a process; skipped where none is installed."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'dpilot[postgres]'")
    from tests.privacy.postgres_server import Server, programs

    folder = programs()
    if folder is None:
        pytest.skip("needs a PostgreSQL server: apt-get install postgresql")
    running = Server(folder)
    yield running
    running.stop()


@pytest.fixture
def on_server(server: object) -> object:
    """A place for ledgers in the database, empty for each test."""
    from tests.privacy.postgres_server import Server, ServerFolder

    assert isinstance(server, Server)
    return ServerFolder(server, f"{next(_numbers)}-")
