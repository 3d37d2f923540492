"""The data sets of the benchmarks: their shapes and counts, and what is said where they are not there."""

from __future__ import annotations

import os

import pandas as pd
import pytest
import torch

from benchmarks import datasets
from benchmarks.datasets import images, tables, texts

there = pytest.mark.skipif("DPILOT_DATA" not in os.environ, reason="DPILOT_DATA does not name the data sets")


@there
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "skewed-mnist"])
def test_grey_images_to_test(name: str) -> None:
    part = datasets.load(name, "test")
    assert part.inputs.shape == (10_000, 1, 28, 28)
    assert part.inputs.dtype == torch.uint8
    counts = torch.bincount(part.labels, minlength=10)
    assert len(part.classes) == len(counts) == 10
    assert counts.tolist() == [1000] * 10 if name == "fashion-mnist" else int(counts[8]) == 974


@there
def test_skewed_mnist_has_few_eights_to_train() -> None:
    cut = datasets.load("skewed-mnist")
    assert len(cut) == len(cut.inputs) == 60_000 - 5851 + 600
    assert torch.bincount(cut.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 600, 5949]


@there
def test_cifar_10_is_whole_and_upright() -> None:
    part = datasets.load("cifar-10", "test")
    assert part.inputs.shape == (10_000, 3, 32, 32)
    assert torch.bincount(part.labels).tolist() == [1000] * 10
    assert part.classes[:3] == ("airplane", "automobile", "bird")
    means = part.inputs[:2000].float().div(255).mean((0, 2, 3))
    torch.testing.assert_close(means, torch.tensor([0.494, 0.485, 0.450]), atol=0.01, rtol=0)
    ships = part.inputs[part.labels == 8, 2].float()  # bright sky above, water below; left is as right
    assert ships[:, :4].mean() - ships[:, -4:].mean() > 20
    assert abs(ships[:, :, :4].mean() - ships[:, :, -4:].mean()) < 5


def test_a_long_tail_falls_exponentially() -> None:
    labels = torch.arange(10).repeat(5000)
    counts = torch.bincount(labels[images.long_tail(labels, 100.0)])
    assert counts.tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert torch.equal(images.long_tail(labels, 1.0), torch.arange(50_000))
    assert images.skewed(torch.tensor([8, 1, 8, 8, 2]), 8, 2).tolist() == [0, 1, 2, 4]


TEXTS = {
    "imdb": (25_000, 25_000, 2),
    "names": (12_500, 7_574, 18),
    "sst-2": (67_349, 872, 2),
    "20-newsgroups": (11_314, 7_532, 20),
}


@there
@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_as_many_as_published(name: str) -> None:
    train, test, classes = TEXTS[name]
    parts = {train: "train", test: "test"} if name != "imdb" else {test: "test"}
    for count, which in parts.items():
        part = datasets.load(name, which)
        assert len(part) == len(part.inputs) == count
        assert len(part.classes) == classes
        assert set(part.labels.tolist()) == set(range(classes))
        assert all(isinstance(text, str) for text in part.inputs[:20])


@there
def test_names_are_split_without_overlap_and_read_as_letters() -> None:
    train, test = (datasets.load("names", part) for part in ("train", "test"))
    assert int((torch.cat([train.labels, test.labels]) == train.classes.index("Russian")).sum()) == 9408
    ids = texts.characters(train.inputs)
    assert ids.shape == (12_500, 20)
    assert int(ids.max()) < 59
    assert float((ids == 1).float().mean()) < 0.01  # hardly a character that is not in the alphabet


@there
def test_tables_are_as_large_as_published() -> None:
    adult = {part: datasets.load("adult", part) for part in ("train", "test")}
    assert [len(part) for part in adult.values()] == [32_561, 16_281]
    assert adult["train"].inputs.shape == (32_561, 14)
    assert sum(int(part.labels.sum()) for part in adult.values()) == 11_687
    dutch = {part: datasets.load("dutch", part) for part in ("train", "test")}
    assert [len(part) for part in dutch.values()] == [48_336, 12_084]
    assert dutch["test"].inputs.shape[1] == 11
    assert sum(int(part.labels.sum()) for part in dutch.values()) in (28_763, 31_657)


@there
def test_every_regression_table_of_the_list_is_there_with_its_published_rows() -> None:
    index = pd.read_csv(datasets.folder() / "regression" / "INDEX.csv").set_index("name")
    assert sorted(index.index) == sorted(tables.REGRESSION)
    for name in ("abalone", "wind", "uci_concrete"):
        train, test = (datasets.load(f"regression/{name}", part) for part in ("train", "test"))
        assert len(train) + len(test) == index.loc[name, "rows"]
        assert train.inputs.shape[1] == index.loc[name, "features"]
        assert train.labels.dtype == torch.float64
        assert abs(float(torch.cat([train.labels, test.labels]).mean()) - index.loc[name, "target_mean"]) < 1e-3


def test_what_is_not_there_is_said_with_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.delenv("DPILOT_DATA", raising=False)
    for name in datasets.names():
        with pytest.raises(datasets.Missing, match="DPILOT_DATA is not set"):
            datasets.load(name)
    monkeypatch.setenv("DPILOT_DATA", str(tmp_path))
    with pytest.raises(datasets.Missing, match=r"no file 'adult/adult\.parquet'"):
        datasets.load("adult")
    with pytest.raises(ValueError, match="'imagenet' is not known: expected one of mnist"):
        datasets.load("imagenet")
    with pytest.raises(ValueError, match="part is 'all'"):
        datasets.load("adult", "all")
