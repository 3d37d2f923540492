"""Fixtures for the whole suite."""

from __future__ import annotations

import os
import tempfile

import pytest

from dpilot import audit

MEMORY = "/dev/shm"


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
