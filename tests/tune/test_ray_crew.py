"""What Ray is asked for, by a stand-in whose tasks are threads: a fixed number of tasks, none of them again."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from dpilot.errors import InvalidInput
from dpilot.tune import RayExecutor
from dpilot.tune.pool import TrialLost
from tests.tune import pool_cases
from tests.tune.test_pool import task_of, trial


@pytest.fixture
def asked(monkeypatch):
    """Every task that was submitted, with its options."""
    submitted = []

    def remote(**options):
        def make(function):
            def submit(*arguments):
                submitted.append(options)
                threading.Thread(target=function, args=arguments, daemon=True).start()

            return SimpleNamespace(remote=submit)

        return make

    local = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    fake = SimpleNamespace(is_initialized=lambda: True, util=local, remote=remote, cancel=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr("dpilot.tune.ray_crew._silence", nullcontext)
    return submitted


def test_the_tasks_are_those_of_the_workers_whatever_the_number_of_trials(asked):
    executor = RayExecutor(2, gpus=0.25)
    assert asked == [{"max_retries": 0, "num_cpus": 1.0, "num_gpus": 0.25}] * 2
    task = task_of(pool_cases.linear, executor=executor, options={"chunk_size": 64, "engine": "loop"})
    for count in (1, 3, 2):
        assert len(task.train([trial(1) for _ in range(count)])) == count
    assert len(asked) == 2


def test_a_lost_worker_ends_the_others_and_is_not_replaced(asked):
    executor = RayExecutor(2)
    task = task_of(pool_cases.linear, executor=executor)
    executor._crew[0].connection.close()
    for why in ("a Ray worker ended before its trial did", "a worker of this executor was lost"):
        with pytest.raises(TrialLost, match=why):
            task.train([trial(), trial()])
    assert all(link.connection.closed for link in executor._crew)
    assert len(asked) == 2


def test_without_ray_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r'executor is "ray", which is not installed: pip install "dpilot\[ray\]"'):
        task_of(pool_cases.linear, executor="ray")
