"""A part of a data set, where the files are, and how rows are split that came without one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

VARIABLE = "DPILOT_DATA"


class Missing(Exception):
    """The data is not there; the message says what to set."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Inputs and labels of as many records, and the names of the classes (none for numbers)."""

    inputs: Any
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


def folder() -> Path:
    """The folder that DPILOT_DATA names."""
    if not os.environ.get(VARIABLE):
        raise Missing(f"{VARIABLE} is not set: expected the folder of data sets.")
    return Path(os.environ[VARIABLE])


def file(*parts: str) -> Path:
    """A file of that folder."""
    path = folder().joinpath(*parts)
    if not path.is_file():
        raise Missing(f"no file {'/'.join(parts)!r} in the folder that {VARIABLE} names: expected it there.")
    return path


def frame_of(path: Path) -> pd.DataFrame:
    """The table in a parquet file; pandas is loaded here, as arrays need none."""
    import pandas as pd

    return pd.read_parquet(path)


def split(count: int, train: int, part: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which rows belong to a part, where no split is published: a permutation with seed 0, ``train`` of them first."""
    order = np.random.default_rng(0).permutation(count)
    return np.sort(order[:train] if part == "train" else order[train:])
