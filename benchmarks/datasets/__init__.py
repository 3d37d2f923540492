"""Data sets by name, read from the folder that DPILOT_DATA names; nothing is downloaded, nothing is copied.

    from benchmarks import datasets
    train = datasets.load("fashion-mnist", "train")
    train.inputs, train.labels, train.classes

| kind | inputs | labels |
|---|---|---|
| images | bytes (n, channels, height, width) | class codes |
| texts | a list of strings | class codes |
| tables | a pandas frame of the columns as they are, without the target | class codes, or numbers |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.datasets import images, tables, texts
from benchmarks.datasets.part import Missing, Part, folder

__all__ = ["Missing", "Part", "folder", "load", "names"]

_READERS: dict[str, Callable[..., Part]] = {
    "mnist": partial(images.grey, "mnist"),
    "fashion-mnist": partial(images.grey, "fashion_mnist"),
    "skewed-mnist": images.skewed_mnist,
    "cifar-10": images.cifar_10,
    "long-tailed-cifar-10": images.long_tailed_cifar_10,
    "imdb": texts.imdb,
    "names": texts.surnames,
    "sst-2": texts.sst_2,
    "20-newsgroups": texts.newsgroups,
    "adult": tables.adult,
    "dutch": tables.dutch,
}


def names() -> list[str]:
    """Every data set; a table of numbers to predict is "regression/" and the name of its file."""
    return [*_READERS, *(f"regression/{name}" for name in tables.REGRESSION)]


def load(name: str, part: str = "train", **options: Any) -> Part:
    """The "train" or "test" part of a data set; ``options`` are its own (``kept`` and ``ratio`` of the uneven ones).

    Raises ``Missing``, which says what to set, where the data is not there.
    """
    if name not in names():
        raise ValueError(f"data set {name!r} is not known: expected one of {', '.join(names())}.")
    if part not in ("train", "test"):
        raise ValueError(f"part is {part!r}: expected 'train' or 'test'.")
    if name.startswith("regression/"):
        return tables.regression(name.removeprefix("regression/"), part, **options)
    return _READERS[name](part, **options)
