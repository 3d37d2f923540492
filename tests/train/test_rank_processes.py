"""Ranks as processes: killed, stopped, resumed; and what threads cannot show, as they share generators."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
import torch

from dpilot import Ledger, Trainer
from tests.train.helpers import LOSS, data, model

pytestmark = pytest.mark.slow


class Crew:
    """Processes that are ranks of one run."""

    def __init__(self, folder, count, *more):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        path = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-m", "tests.train.rank_victim", str(folder), *more]
        common = {**os.environ, "PYTHONPATH": path, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        common["WORLD_SIZE"] = str(count)
        self.processes = [
            subprocess.Popen(
                command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for rank in range(count)
        ]

    def read_until(self, line):
        for said in self.processes[0].stdout:
            if said.strip() == line:
                return

    def wait(self):
        """Exit codes and errors of all."""
        ended = [process.communicate(timeout=300) for process in self.processes]
        return [(process.returncode, errors) for process, (_, errors) in zip(self.processes, ended, strict=True)]


def finish(folder, count, *more):
    for code, errors in Crew(folder, count, *more).wait():
        assert code == 0, errors
    made = [torch.load(f"{folder}.{rank}") for rank in range(count)]
    assert all(equal(made[0], other) for other in made)
    return made[0]


def equal(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two ranks that nothing happened to, with dropout."""
    return finish(tmp_path_factory.mktemp("whole") / "run", 2)


def test_dropout_is_that_of_a_chunk_on_whichever_rank(whole, tmp_path):
    assert equal(finish(tmp_path / "run", 3), whole)


@pytest.mark.parametrize(("victim", "at", "again"), [(0, "2", 2), (1, "4", 2), (0, "6", 1), (1, "8", 3)])
def test_a_rank_that_is_killed_ends_all_and_the_run_goes_on_unpaid(victim, at, again, whole, tmp_path):
    folder = tmp_path / "run"
    crew = Crew(folder, 2)
    crew.read_until(at)
    crew.processes[victim].send_signal(signal.SIGKILL)
    ended = crew.wait()
    code, errors = ended[1 - victim]
    assert ended[victim][0] == -signal.SIGKILL
    assert code == 1
    assert "RankLost: a rank ended, or did not answer in time" in errors
    assert equal(finish(folder, again, "resume"), whole)
    (entry,) = Ledger.read(folder / "ledger").entries()
    assert entry.state == "committed"


def test_a_rank_that_hangs_ends_the_others_in_time(tmp_path):
    crew = Crew(tmp_path / "run", 2)
    crew.read_until("3")
    crew.processes[1].send_signal(signal.SIGSTOP)
    try:
        _, errors = crew.processes[0].communicate(timeout=100)
    finally:
        crew.processes[1].kill()
        crew.processes[1].communicate()
    assert "RankLost: a rank ended, or did not answer in time" in errors
    assert [entry.state for entry in Ledger.read(tmp_path / "run" / "ledger").entries()] == ["reserved"]


def test_one_process_goes_on_with_what_two_began(whole, tmp_path):
    """And its keys are gone afterwards."""
    folder = tmp_path / "run"
    crew = Crew(folder, 2)
    crew.read_until("7")
    for process in crew.processes:
        process.kill()
    crew.wait()
    run = Trainer.resume(folder, model(dropout=0.3), LOSS, data())
    assert equal(run.model.state_dict(), whole)
    assert not (tmp_path / ".run.secret").exists()
