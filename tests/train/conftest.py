"""Ledgers of single runs go to memory here: a disk that syncs is what the tests of the ledger are about."""

from __future__ import annotations

import os
import tempfile

import pytest


@pytest.fixture(autouse=True)
def quick_ledgers(monkeypatch):
    if os.access("/dev/shm", os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
