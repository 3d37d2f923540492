"""Fits of these tests write ledgers by the hundred: what a power cut leaves of them is tested with the ledger."""

from __future__ import annotations

import os
import tempfile

import pytest

MEMORY = "/dev/shm"


@pytest.fixture(autouse=True)
def ledgers_in_memory(monkeypatch):
    """Where there is a file system in memory, ledgers that nobody named go there: no test waits for a disk."""
    if os.access(MEMORY, os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", MEMORY)
