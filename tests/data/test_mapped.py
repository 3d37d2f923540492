"""Data sets on disk: records by their places, and training on them as on the same tensors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, Subset, TensorDataset

from dpilot import Budget, Plan, PrivateStep, Trainer, poisson_loader
from dpilot.data import MappedDataset, ParquetDataset
from dpilot.data.disk import DiskArray
from dpilot.errors import InvalidInput

PLACES = [np.array([5, 6, 7, 3, 3, 0, 299]), np.arange(40, 90), np.zeros(0, dtype=np.int64)]


@pytest.fixture
def arrays(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)).astype(np.float32), rng.integers(0, 2, 300)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    return tmp_path, x, y


@pytest.fixture
def parquet(arrays):
    folder, x, y = arrays
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=y)
    (folder / "visits").mkdir()
    frame[:110].to_parquet(folder / "visits" / "part1.parquet", row_group_size=40)
    frame[110:].to_parquet(folder / "visits" / "part2.parquet", row_group_size=64)
    return folder


def opened(kind, folder, x, y):
    if kind == "paths":
        return MappedDataset(folder / "x.npy", str(folder / "y.npy"))
    if kind == "memmap":
        return MappedDataset(np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r"))
    if kind == "slice":
        raw = np.memmap(folder / "raw", dtype=np.float32, mode="w+", shape=(310, 3))
        raw[10:] = x
        raw.flush()
        return MappedDataset(np.memmap(folder / "raw", dtype=np.float32, mode="r", shape=(310, 3))[10:], y)
    if kind == "groups":
        return ParquetDataset(folder / "visits", target="y")
    return ParquetDataset(str(folder / "visits/*.parquet"), target="y", features=["a", "b", "c"]).save(folder / "saved")


KINDS = ["paths", "memmap", "slice", "groups", "saved"]


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_those_of_the_arrays(kind, arrays, parquet):
    _, x, y = arrays
    data = opened(kind, *arrays)
    assert len(data) == 300
    for places in PLACES:
        rows, target = data.read(places)
        assert np.array_equal(rows, x[places])
        assert np.array_equal(target, y[places])
    one, label = data[7]
    assert np.array_equal(one, x[7])
    assert label == y[7]
    with pytest.raises(IndexError):
        data.read(np.array([300]))


def model():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


LOSS = nn.CrossEntropyLoss(reduction="none")


def trained(data, **options):
    plan = Plan.calibrate(Budget(8.0, 1e-4), size=300, batch_size=8, steps=6, clipping="constant")
    run = Trainer(model(), LOSS, plan, optimizer="sgd", lr=0.5, test_seed=1, **options).fit(data)
    return run.model.weight.detach()


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_on_tensors(kind, arrays, parquet):
    _, x, y = arrays
    expected = trained(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)))
    assert torch.equal(trained(opened(kind, *arrays)), expected)


def test_units_subsets_and_loops_are_those_of_tensors(arrays, parquet):
    _, x, y = arrays
    stored, tensors = opened("paths", *arrays), TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    ids = np.arange(300) // 3
    plan = Plan.calibrate(Budget(8.0, 1e-4), size=100, batch_size=8, steps=2, unit="person", clipping="constant")
    with pytest.raises(InvalidInput, match="units are missing"):
        Trainer(model(), LOSS, plan).fit(stored)
    assert torch.equal(trained(stored, units=ids), trained(tensors, units=ids))
    assert torch.equal(trained(Subset(stored, range(200))), trained(Subset(tensors, range(200))))
    weights = []
    for data in (stored, tensors):
        plan = Plan.calibrate(Budget(8.0, 1e-4), size=300, batch_size=8, steps=3, clipping="constant")
        own, loader = model(), poisson_loader(data, plan)
        step = PrivateStep(own, LOSS, torch.optim.SGD(own.parameters(), lr=0.5), plan, test_seed=2)
        for batch in loader:
            step(batch)
        weights.append(own.weight.detach())
    assert torch.equal(*weights)


def test_records_without_numbers_are_null(arrays):
    folder, x, y = arrays
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=pd.array(y, dtype="Int64"))
    frame.loc[3, "y"], frame.loc[4, "a"] = pd.NA, np.nan
    frame.to_parquet(folder / "null.parquet")
    rows, target = ParquetDataset(folder / "null.parquet", target="y").read(np.arange(6))
    assert np.isnan([*rows[3], rows[4, 0]]).all()
    assert target.dtype == np.int64
    assert np.isfinite(rows[[0, 1, 2, 5]]).all()


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize("data", [Stream(), torch.utils.data.DataLoader([1, 2], shuffle=True), iter([1])])
def test_streams_are_refused_with_the_reason(data):
    with pytest.raises(InvalidInput, match=r"coin|Poisson"):
        trained(data)


def test_what_is_no_array_or_no_table_is_refused(arrays, parquet):
    folder, _, y = arrays
    with pytest.raises(InvalidInput, match="one length"):
        MappedDataset(folder / "x.npy", y[:7])
    with pytest.raises(InvalidInput, match="readable"):
        MappedDataset(folder / "none.npy")
    with pytest.raises(InvalidInput, match="numbers"):
        MappedDataset([1, 2])
    with pytest.raises(InvalidInput, match="target"):
        ParquetDataset(folder / "visits", target="z")
    pd.DataFrame({"a": ["x"], "y": [0]}).to_parquet(folder / "words.parquet")
    with pytest.raises(InvalidInput, match="not numeric"):
        ParquetDataset(folder / "words.parquet", target="y")


def test_what_is_read_does_not_stay(arrays):
    """A mapped array keeps what was touched resident; rows are read into memory of their own."""
    data = opened("memmap", *arrays)
    assert all(isinstance(array, DiskArray) for array in data._arrays)
