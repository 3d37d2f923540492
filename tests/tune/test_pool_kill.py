"""Killed in the middle of the third trial, with trials in processes of their own: everything planned stays spent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpilot import Ledger
from dpilot.privacy.events import Gaussian

STEPS = 20  # of a trial: the middle of the box
ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds child processes under /proc")


def children(pid):
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for path in found for each in path.read_text().split()]


def alive(pid):
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_for(what, seconds=120):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the tuner", "a worker"])
def test_a_kill_in_the_third_trial_leaves_all_of_it_spent_and_no_process_behind(whom, tmp_path):
    path, notes = tmp_path / "ledger", tmp_path / "notes"
    command = [sys.executable, "-m", "tests.tune.pool_victim", str(path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DPILOT_TEST_NOTES": str(notes)}
    notes.touch()
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as victim:
        wait_for(lambda: notes.stat().st_size >= 2 * STEPS + 5)  # two trials, and into the third
        workers = children(victim.pid)
        assert len(workers) == 2
        target = victim.pid if whom == "the tuner" else next(each for each in workers if alive(each))
        os.kill(target, signal.SIGKILL)
        said, _ = victim.communicate(timeout=120)
    wait_for(lambda: not any(alive(each) for each in workers), 20)
    size = notes.stat().st_size
    assert size < 3 * STEPS
    if whom == "the tuner":
        assert (victim.returncode, said) == (-signal.SIGKILL, b"")
    else:
        assert victim.returncode == 1
        assert b"TrialLost" in said.splitlines()[-1]
    book = Ledger.open(path, dataset="d")
    book.verify()
    assert [entry.state for entry in book.entries()] == ["reserved"] * 3 + ["planned"] * 10
    assert 0.999 < book.spent().epsilon <= 1.0
    assert not book.fits(Gaussian(1000.0))
    time.sleep(0.2)
    assert notes.stat().st_size == size  # nobody goes on
