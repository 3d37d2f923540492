"""A real Dask cluster: partitions of its frames, tasks that fail and run again, a worker that dies."""

from __future__ import annotations

import os
import signal

import numpy as np
import pandas as pd
import pytest

from dpilot.linear import LinearRegression

distributed = pytest.importorskip("distributed")
dask_frames = pytest.importorskip("dask.dataframe")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:random_state"),
]

NAMES = ["a", "b"]


@pytest.fixture
def client():
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    made = pd.DataFrame(rng.normal(size=(500, 2)), columns=NAMES)
    return made.assign(y=made["a"] - 2 * made["b"] + rng.normal(0, 0.1, 500))


class DiesOnce:
    """A partition whose first reader dies, or raises: Dask runs its task again, on another worker."""

    def __init__(self, piece, mark, how):
        self.piece, self.mark, self.how = piece, mark, how

    def __call__(self):
        if os.getpid() != int(self.mark.with_name("main").read_text()) and not self.mark.exists():
            self.mark.touch()
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("lost")
        return self.piece


def model():
    return LinearRegression(epsilon=20.0, delta=1e-5, random_state=5, method="adassp")


@pytest.mark.parametrize("how", ["frames", "raises", "killed"])
def test_partitions_on_dask_give_the_model_of_the_table(how, client, frame, tmp_path):
    def run(task, numbers):
        return client.gather(client.map(task, numbers, retries=2, pure=False))

    whole = model().fit(frame[NAMES].to_numpy(), frame["y"].to_numpy())
    if how == "frames":
        lazy = dask_frames.from_pandas(frame, npartitions=5)
        parts = [lazy.partitions[number] for number in range(5)]
    else:
        (tmp_path / "main").write_text(str(os.getpid()))
        pieces = [frame[start : start + 120] for start in range(0, 500, 120)]
        parts = [DiesOnce(pieces[0], tmp_path / "died", how), *pieces[1:]]
    found = model().fit_partitions(parts, "y", features=NAMES, run=run)
    assert (tmp_path / "died").exists() == (how != "frames")
    assert found.coef_ == pytest.approx(whole.coef_, rel=1e-9)
    assert found.intercept_ == pytest.approx(whole.intercept_, rel=1e-9, abs=1e-12)
