"""Trials on Ray: the same trials, on a number of tasks that tells of none of them."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from dpilot import Budget, Ledger
from dpilot.errors import InvalidInput
from dpilot.tune import RayExecutor, private_selection
from dpilot.tune.pool import TrialLost
from dpilot.tune.space import Always, LogUniform, Space
from dpilot.tune.task import fixed_noise
from tests.tune import pool_cases
from tests.tune.helpers import dataset
from tests.tune.test_pool import foretell, marked, same, sequences, task_of, trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own: of files it leaves open, and of what it will change
]
ray = pytest.importorskip("ray", reason="the extra ray is not installed")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def test_workers_on_ray_give_what_trials_one_after_the_other_give_bit_for_bit(monkeypatch):
    made = []
    for executor in ("processes", RayExecutor(2)):
        foretell(monkeypatch)
        how = {"options": {"chunk_size": 16, "average": "ema"}, "clipping": "bounded-slack", "noise": fixed_noise(2)}
        task = task_of(pool_cases.Sequences, sequences(), workers=1, executor=executor, **how)
        made.append([*task.train([trial(4), trial(2, 0.1, 3.0), trial(3)]), *task.train([trial(2)])])
    assert all(same(one, other) for one, other in zip(*made, strict=True))


def test_a_worker_that_dies_is_not_started_again_and_all_stays_paid(tmp_path):
    """The module ends the process that trains it, and notes each time: by default Ray would start it four times."""
    notes = tmp_path / "notes"
    executor = RayExecutor(1)
    task = task_of(partial(pool_cases.Deadly, str(notes)), marked(pool_cases.DEADLY), executor=executor)
    book = Ledger.open(tmp_path / "book", dataset="people", budget=Budget(5.0, 1e-5))
    with pytest.raises(TrialLost):
        private_selection(task, Space(LogUniform(0.1, 1.0), Always(2)), Budget(3.0, 1e-5), mean_trials=30, ledger=book)
    assert book.spent().epsilon > 2.5
    with pytest.raises(TrialLost, match="a worker of this executor was lost"):
        task.train([trial()])
    time.sleep(5)  # for a cluster that tries again
    assert notes.read_text() == "died\n"


@pytest.mark.parametrize("mean", [1.5, 40.0])
def test_the_number_of_trials_shows_in_no_task_log_or_file(mean, monkeypatch):
    """Everything that is submitted to Ray is submitted before the number is drawn, and the logs get no new file."""
    submitted = []
    remote = ray.remote_function.RemoteFunction._remote
    monkeypatch.setattr(
        ray.remote_function.RemoteFunction,
        "_remote",
        lambda self, *args, **more: submitted.append(self._function_name) or remote(self, *args, **more),
    )
    executor = RayExecutor(2)
    task = task_of(pool_cases.linear, dataset(), executor=executor)
    assert len(submitted) == 2
    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    task.train([trial(1)])
    before = sizes(logs)
    private_selection(task, Space(LogUniform(0.1, 1.0), Always(1)), Budget(3.0, 1e-5), mean_trials=mean, law="poisson")
    assert len(submitted) == 2
    assert sizes(logs) == before


def sizes(folder):
    """What workers wrote, by file."""
    return {path.name: path.stat().st_size for path in folder.glob("worker-*")}


def test_what_the_cluster_has_not_is_refused_unpaid(monkeypatch):
    monkeypatch.setattr("dpilot.tune.ray_crew._PATIENCE", 3.0)
    with pytest.raises(InvalidInput, match="Ray started 0 of 1 workers of 1 CPUs and 4 GPUs"):
        RayExecutor(1, gpus=4)
    with pytest.raises(InvalidInput, match="executor is 'dask': expected"):
        task_of(pool_cases.linear, dataset(), executor="dask")
