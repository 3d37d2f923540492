"""The data that defaults are chosen on: none of it is in the tables of goals."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks import datasets
from benchmarks.datasets.part import Part, file, split
from dpilot.data.sentences import load_encoder
from dpilot.transfer.features import Features

HASHED = 1000
"""Columns that pairs and triples of letters are hashed to."""


def load(name: str, device: str) -> tuple[Features, Features]:
    """Unit rows of the training and the test records of one of ``TASKS``."""
    train, test = TASKS[name](device)
    return train.unit().to(device), test.unit().to(device)


def _sentences(name: str) -> Callable[[str], tuple[Features, Features]]:
    def read(device: str) -> tuple[Features, Features]:
        parts = [_sms(part) if name == "sms" else datasets.load(name, part) for part in ("train", "test")]
        folder = os.environ.get("DPILOT_MINILM")
        backbone = load_encoder(folder or "minilm", 128)
        backbone.model.to(device)
        return _both(parts, lambda texts: backbone.features(texts, chunk=1024))

    return read


def _names(device: str) -> tuple[Features, Features]:
    del device
    return _both([datasets.load("names", part) for part in ("train", "test")], hashed)


def _dutch(device: str) -> tuple[Features, Features]:
    del device
    parts = [datasets.load("dutch", part) for part in ("train", "test")]
    columns = pd.get_dummies(pd.concat([part.inputs for part in parts]).astype(str)).columns
    return _both(parts, lambda frame: _one_hot(frame, columns))


def _mixture(device: str) -> tuple[Features, Features]:
    """20,000 records of 10 classes in 256 dimensions, centres a third as long as the noise around them."""
    del device
    generator = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(10, 256, generator=generator)) * 16 / 3

    def drawn(count: int) -> Features:
        labels = torch.randint(10, (count,), generator=generator)
        return Features.of(centres[labels] + torch.randn(count, 256, generator=generator), labels, 10)

    return drawn(20_000), drawn(10_000)


TASKS: dict[str, Callable[[str], tuple[Features, Features]]] = {
    "20-newsgroups, MiniLM": _sentences("20-newsgroups"),
    "SST-2, MiniLM": _sentences("sst-2"),
    "SMS spam, MiniLM": _sentences("sms"),
    "names, hashed letters": _names,
    "Dutch census, one-hot": _dutch,
    "mixture of 10": _mixture,
}


def hashed(words: Sequence[str]) -> Tensor:
    """Counts of the pairs and triples of letters of each word, hashed: (n, HASHED)."""
    rows = torch.zeros(len(words), HASHED)
    for row, word in enumerate(words):
        marked = f"^{word.lower()}$"
        for size in (1, 2, 3):
            for start in range(len(marked) - size + 1):
                rows[row, _bucket(marked[start : start + size])] += 1
    return rows


def _bucket(text: str) -> int:
    total = 0
    for letter in text:
        total = (total * 1_000_003 + ord(letter)) % 2_147_483_647
    return total % HASHED


def _one_hot(frame: pd.DataFrame, columns: pd.Index) -> Tensor:
    found = pd.get_dummies(frame.astype(str)).reindex(columns=columns, fill_value=False)
    rows = np.column_stack([found.to_numpy(np.float32), np.ones(len(found), np.float32)])
    return torch.from_numpy(rows)


def _sms(part: str) -> Part:
    """Text messages, wanted or not: 5,574; no split is published."""
    frame = pd.read_parquet(file("sms_spam", "sms_spam.parquet"))
    rows = frame.iloc[split(len(frame), 4_500, part)]
    return Part(rows["text"].tolist(), torch.tensor((rows["label"] == "spam").to_numpy(np.int64)), ("ham", "spam"))


def _both(parts: Sequence[Part], read: Callable[..., Tensor]) -> tuple[Features, Features]:
    train, test = (Features.of(read(part.inputs), part.labels, len(part.classes)) for part in parts)
    return train, test
