"""IMDB, Names, SST-2, SMS spam and 20 Newsgroups, and the numbers that small networks read them as."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.datasets.part import Part, file, frame_of, split

if TYPE_CHECKING:
    import pandas as pd

LETTERS = string.ascii_letters + " .,;'"
"""The alphabet of names, declared beforehand; 0 is padding, 1 any other character."""


def imdb(part: str) -> Part:
    """Film reviews, bad or good: 25,000 to train and 25,000 to test."""
    return _published(file("imdb", "imdb.parquet"), part, "text", ("bad", "good"))


def sst_2(part: str) -> Part:
    """Sentences of film reviews, bad or good: 67,349 to train; the 872 of GLUE's validation set are the test part."""
    chosen = "train" if part == "train" else "validation"
    return _published(file("sst2", "sst2.parquet"), chosen, "sentence", ("bad", "good"))


def sms_spam(part: str, train: int = 4_459) -> Part:
    """Text messages, ham or spam (13 %), 5,574 in all; no split is published."""
    frame = frame_of(file("sms_spam", "sms_spam.parquet"))
    rows = frame.iloc[split(len(frame), train, part)]
    return _part(rows["text"], (rows["label"] == "spam").astype(int), ("ham", "spam"))


def newsgroups(part: str) -> Part:
    """Posts of 20 news groups, split by date, headers kept: 11,314 to train and 7,532 to test."""
    frame = frame_of(file("20newsgroups", "20news_bydate.parquet"))
    classes = tuple(sorted(frame["label"].unique()))
    rows = frame[frame["split"] == part]
    return _part(rows["text"], rows["label"].map({name: code for code, name in enumerate(classes)}), classes)


def surnames(part: str, train: int = 12_500) -> Part:
    """Surnames of 18 languages, 20,074 in all; no split is published.

    12,500 to train is what the noise multipliers of Zou et al. 2026 (Table 2, delta 8e-5 = 1 / 12,500) are made for.
    """
    frame = frame_of(file("names", "names.parquet"))
    classes = tuple(sorted(frame["language"].unique()))
    rows = frame.iloc[split(len(frame), train, part)]
    return _part(rows["name"], rows["language"].map({name: code for code, name in enumerate(classes)}), classes)


def characters(names: Sequence[str], length: int = 20) -> Tensor:
    """Names as numbers of letters, (n, length), accents taken off, what is longer cut.

    >>> characters(["Ab", "é"], length=3).tolist()
    [[28, 3, 0], [6, 0, 0]]
    """
    ids = torch.zeros(len(names), length, dtype=torch.long)
    codes = {letter: code + 2 for code, letter in enumerate(LETTERS)}
    for row, name in enumerate(names):
        plain = [c for c in unicodedata.normalize("NFD", name) if unicodedata.category(c) != "Mn"][:length]
        ids[row, : len(plain)] = torch.tensor([codes.get(c, 1) for c in plain], dtype=torch.long)
    return ids


def words(texts: Sequence[str], length: int = 256) -> Tensor:
    """Texts as numbers of word pieces of MiniLM's public vocabulary of 30,522, (n, length), 0 being padding."""
    from dpilot.transfer import backbones

    tokenizer = backbones.load("minilm").tokenizer  # type: ignore[union-attr]
    rows = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
    return ids


def _published(path: Path, part: str, column: str, classes: tuple[str, ...]) -> Part:
    frame = frame_of(path)
    rows = frame[frame["split"] == part]
    return _part(rows[column], rows["label"], classes)


def _part(texts: pd.Series, codes: pd.Series, classes: tuple[str, ...]) -> Part:
    return Part(texts.tolist(), torch.tensor(codes.to_numpy(copy=True), dtype=torch.long), classes)
