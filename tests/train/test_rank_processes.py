"""Ranks as processes: killed, stopped, resumed; and what threads cannot show, as they share generators."""

from __future__ import annotations

import signal

import pytest
import torch

from dpilot import Ledger, Trainer
from tests.train import crew as crews
from tests.train.helpers import LOSS, data, model

pytestmark = pytest.mark.slow


VICTIM = "tests.train.rank_victim"
LIES = [pytest.param((), id="whole"), pytest.param(("sharded",), id="in pieces")]


def crew_of(folder, count, *more):
    return crews.Crew(VICTIM, folder, count, *more)


def finish(folder, count, *more):
    made = crews.finish(VICTIM, folder, count, *more)
    assert all(equal(made[0], other) for other in made)
    return made[0]


def equal(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two ranks that nothing happened to, with dropout."""
    return finish(tmp_path_factory.mktemp("whole") / "run", 2)


@pytest.mark.parametrize("lies", LIES)
def test_dropout_is_that_of_a_chunk_on_whichever_rank(lies, whole, tmp_path):
    """And what a rank has of the model decides nothing."""
    assert equal(finish(tmp_path / "run", 3, *lies), whole)


@pytest.mark.parametrize("lies", LIES)
@pytest.mark.parametrize(("victim", "at", "again"), [(0, "2", 2), (1, "4", 2), (0, "6", 1), (1, "8", 3)])
def test_a_rank_that_is_killed_ends_all_and_the_run_goes_on_unpaid(victim, at, again, lies, whole, tmp_path):
    folder = tmp_path / "run"
    crew = crew_of(folder, 2, *lies)
    crew.read_until(at)
    crew.processes[victim].send_signal(signal.SIGKILL)
    ended = crew.wait()
    code, errors = ended[1 - victim]
    assert ended[victim][0] == -signal.SIGKILL
    assert code != 0
    assert "RankLost: a rank ended, or did not answer in time" in errors
    assert equal(finish(folder, again, "resume", *lies), whole)
    (entry,) = Ledger.read(folder / "ledger").entries()
    assert entry.state == "committed"


@pytest.mark.parametrize("lies", LIES)
def test_a_rank_that_hangs_ends_the_others_in_time(lies, tmp_path):
    crew = crew_of(tmp_path / "run", 2, *lies)
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
    crew = crew_of(folder, 2)
    crew.read_until("7")
    for process in crew.processes:
        process.kill()
    crew.wait()
    run = Trainer.resume(folder, model(dropout=0.3), LOSS, data())
    assert equal(run.model.state_dict(), whole)
    assert not (tmp_path / ".run.secret").exists()
