"""What cells learn from: tensors by name, of a data set's training or test part.

| name | inputs |
|---|---|
| mnist, fashion-mnist, skewed-mnist, cifar-10 | pixels in [0, 1] |
| the same with ", standardised" | by the mean and deviation of all pixels, as Zou et al. do (not paid) |
| names | letters by number, padded in front, so that the last step of a recurrent layer is the name's last letter |
| imdb | word pieces by number, padded at the end |
| adult, dutch | numbers scaled by declared bounds, the rest one-hot; ``groups`` is the sex (1: female) |
| adult, standardised | numbers by their mean and deviation, as Zhao et al. do (not paid) |
| NAME/FEATURES | unit rows of a public backbone's features, or of scattering |

What takes long to read is kept in the folder that DPILOT_CACHE names, as an npz file a name, if there is such a folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks import datasets

PIXELS = {
    "mnist": (0.1307, 0.3081), "skewed-mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530),
    "cifar-10": (0.4734, 0.2516),
}  # fmt: skip
"""Mean and deviation of all pixels, to the digits that everybody copies."""
LONGEST = {"names": 20, "imdb": 256}
CLASSES = {"adult": 2, "dutch": 2, "names": 18, "imdb": 2, "sst-2": 2, "20-newsgroups": 20}


@dataclass(frozen=True, slots=True)
class Data:
    """Inputs, classes, and groups (zeros where there are none), on the CPU."""

    inputs: Tensor
    labels: Tensor
    classes: int
    groups: Tensor

    def first(self, size: int) -> Data:
        return Data(self.inputs[:size], self.labels[:size], self.classes, self.groups[:size])

    def __len__(self) -> int:
        return len(self.labels)


@lru_cache(maxsize=6)
def load(name: str, part: str) -> Data:
    """The training or test part of a data set, by the names above."""
    plain, _, how = name.partition(", ")
    arrays = _kept(name if plain in _READERS else plain, part)
    classes = CLASSES.get(plain.partition("/")[0], 10)
    inputs, labels = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]).long()
    groups = torch.from_numpy(arrays[2]).long() if len(arrays) > 2 else torch.zeros_like(labels)
    if plain in PIXELS:
        inputs = inputs.float().div_(255)
        mean, deviation = PIXELS[plain] if how == "standardised" else (0.0, 1.0)
        inputs = inputs.sub_(mean).div_(deviation)
    return Data(inputs if inputs.dtype == torch.float32 else _numbers(inputs), labels, classes, groups)


def keep(name: str, folder: Path) -> None:
    """Write both parts of a data set into ``folder``, where ``load`` finds them if DPILOT_CACHE names it."""
    train, test = (_read(name, part) for part in ("train", "test"))
    stored = {
        f"{part}_{place}": array
        for part, arrays in (("train", train), ("test", test))
        for place, array in enumerate(arrays)
    }
    np.savez_compressed(folder / f"{_file(name)}.npz", **stored)


def _numbers(inputs: Tensor) -> Tensor:
    return inputs.float() if inputs.is_floating_point() else inputs.long()


def _file(name: str) -> str:
    return name.replace("/", "_").replace(", ", "_")


def _kept(name: str, part: str) -> list[np.ndarray]:
    path = Path(os.environ.get("DPILOT_CACHE", "")) / f"{_file(name)}.npz"
    if not os.environ.get("DPILOT_CACHE") or not path.is_file():
        return _read(name, part)
    with np.load(path) as stored:
        return [stored[key] for key in sorted(stored) if key.startswith(f"{part}_")]


def _read(name: str, part: str) -> list[np.ndarray]:
    if "/" in name:
        return _features(*name.split("/"), part)
    return _READERS[name](part) if name in _READERS else _images(name, part)


def _images(name: str, part: str) -> list[np.ndarray]:
    found = datasets.load(name, part)
    return [found.inputs.numpy(), found.labels.numpy()]


def _names(part: str) -> list[np.ndarray]:
    from benchmarks.datasets.texts import characters

    found = datasets.load("names", part)
    letters = characters(found.inputs, LONGEST["names"]).numpy().astype(np.uint8)
    for row in letters:
        row[:] = np.roll(row, -int(np.count_nonzero(row)))
    return [letters, found.labels.numpy().astype(np.uint8)]


def _imdb(part: str) -> list[np.ndarray]:
    from benchmarks.datasets.texts import words

    found = datasets.load("imdb", part)
    return [words(found.inputs, LONGEST["imdb"]).numpy().astype(np.uint16).astype(np.int32), found.labels.numpy()]


def _features(name: str, features: str, part: str) -> list[np.ndarray]:
    from benchmarks.transfer import tasks

    found = tasks.load(tasks.Task(name, features, ()), "cpu")[("train", "test").index(part)]
    return [found.values.numpy().astype(np.float16), found.labels.numpy()]


def _adult(part: str, *, standardised: bool) -> list[np.ndarray]:
    """As Zhao et al. prepare it: without the final weight, race as white or not."""
    import pandas as pd

    train, found = (datasets.load("adult", each).inputs for each in ("train", part))
    frames = [
        frame.drop(columns="fnlwgt").assign(race=(frame["race"].astype(str) == "White").astype(str))
        for frame in (train, found)
    ]
    bounds = {
        "age": (0, 100),
        "education-num": (1, 16),
        "capital-gain": (0, 20_000),
        "capital-loss": (0, 4_000),
        "hours-per-week": (0, 100),
    }
    columns = []
    for column in frames[1]:
        values = frames[1][column]
        if column in bounds and standardised:
            columns.append((values - frames[0][column].mean()) / frames[0][column].std())
        elif column in bounds:
            low, high = bounds[column]
            columns.append(np.clip(2 * (values.astype(float) - low) / (high - low) - 1, -1, 1))
        else:
            categories = sorted(frames[0][column].astype(str).unique())
            columns += [(values.astype(str) == each).astype(float) for each in categories]
    inputs = np.column_stack([pd.Series(column).to_numpy(dtype=np.float32) for column in columns])
    labels = datasets.load("adult", part).labels.numpy().astype(np.uint8)
    return [inputs, labels, (found["sex"].astype(str) == "Female").to_numpy().astype(np.uint8)]


def _dutch(part: str) -> list[np.ndarray]:
    """Every column is of codes: one-hot."""
    train, found = datasets.load("dutch", "train"), datasets.load("dutch", part)
    columns = [
        (found.inputs[column].astype(str) == each).to_numpy()
        for column in train.inputs
        for each in sorted(train.inputs[column].astype(str).unique())
    ]
    groups = (found.inputs["sex"].astype(str) == "female").to_numpy()
    return [np.column_stack(columns).astype(np.float32), found.labels.numpy().astype(np.uint8), groups.astype(np.uint8)]


_READERS: dict[str, Callable[[str], list[np.ndarray]]] = {
    "names": _names,
    "imdb": _imdb,
    "adult": partial(_adult, standardised=False),
    "adult, standardised": partial(_adult, standardised=True),
    "dutch": _dutch,
}
