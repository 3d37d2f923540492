"""Fixtures for the whole suite."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile

import pytest

from dpilot import audit

collect_ignore_glob = ["pages/*"]  # sessions, which tests/test_docs.py runs
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**30:
    # A ledger syncs at every commit, about 4 ms on a disk: folders of tests are in memory unless one is named.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def pytest_collection_finish() -> None:
    """What was collected and imported lives to the end: the garbage collector need not visit it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _ledgers_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers that nobody named go to a file system in memory: what a power cut leaves is tested with the ledger."""
    if os.access(MEMORY, os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", MEMORY)


@pytest.fixture
def replay():
    """Replay a run on every standard neighbour of its data (or on the given pairs) and fail on what moved."""

    from tests.attacks.judge import places_in_order

    def check(run, data=None, *, pairs=None, **options):
        results = []
        for pair in audit.neighbours(data) if pairs is None else pairs:
            with places_in_order():  # drawn places are equal in law only, and with them what a model draws by its row
                result = audit.replay(run, pair.data, pair.neighbour, **options)
            assert result.differences == (), f"{pair.name}: {result.differences}"
            results.append(result)
        assert any(result.releases for result in results), "nothing was released: the replay shows nothing"
        return results

    return check
