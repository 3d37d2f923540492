"""Killed in the middle of the third trial, everything that was planned stays spent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dpilot import Budget, Ledger
from dpilot.errors import BudgetExceeded
from dpilot.privacy.events import Gaussian

STEPS = 20  # of a trial: the middle of the box
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_kill_in_the_third_trial_leaves_all_of_it_spent(tmp_path):
    path = tmp_path / "ledger"
    command = [sys.executable, "-m", "tests.tune.victim", str(path)]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert victim.stdout is not None
    with victim.stdout as lines:
        for _ in range(2 * STEPS + 5):  # two trials, and into the third
            assert lines.readline() == b"step\n"
        victim.send_signal(signal.SIGKILL)
        assert victim.wait(60) == -signal.SIGKILL
        assert len(lines.read().split()) < STEPS - 5  # it was in the third trial still
    book = Ledger.open(path, dataset="d")
    book.verify()
    assert [entry.state for entry in book.entries()] == ["reserved"] * 3 + ["planned"] * 10
    assert 0.999 < book.spent().epsilon <= 1.0
    assert not book.fits(Gaussian(1000.0))
    with pytest.raises(BudgetExceeded):
        book.commit([("again", Gaussian(1000.0))])
    assert book.budget == Budget(1.0, 1e-5)
