"""MNIST, Fashion-MNIST and CIFAR-10, and uneven forms of them."""

from __future__ import annotations

import lzma

import numpy as np
import torch
from torch import Tensor

from benchmarks.datasets.part import Part, file

_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def grey(name: str, part: str) -> Part:
    """28 x 28 grey images in ten classes: 60,000 to train, 10,000 to test."""
    pixels, labels = (_array(name, f"{letter}_{part}.npy.xz") for letter in "xy")
    classes = _CLOTHES if name == "fashion_mnist" else tuple(str(digit) for digit in range(10))
    return Part(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels).long(), classes)


def skewed_mnist(part: str, kept: int = 600) -> Part:
    """MNIST with only the first ``kept`` training images of the digit 8; the test part is MNIST's.

    Reference: Zhao et al. 2026, after Bagdasaryan et al. 2019.
    """
    whole = grey("mnist", part)
    return whole if part == "test" else _take(whole, skewed(whole.labels, 8, kept))


def skewed(labels: Tensor, digit: int, kept: int) -> Tensor:
    """The places of all records but those of one class beyond its first ``kept``."""
    rare = labels == digit
    return torch.nonzero(~rare | (rare.cumsum(0) <= kept)).flatten()


def cifar_10(part: str) -> Part:
    """32 x 32 colour images in ten classes: 50,000 to train, 10,000 to test."""
    sheets = [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]
    pixels = torch.cat([_sheet(name) for name in sheets])
    with np.load(file("cifar10", "labels.npz")) as stored:
        labels, names = torch.from_numpy(stored[f"y_{part}"]).long(), tuple(str(n) for n in stored["names"])
    return Part(pixels, labels, names)


def long_tailed_cifar_10(part: str, ratio: float = 100.0) -> Part:
    """CIFAR-10 with 5,000 images of class 0 down to 5,000 / ratio of class 9 to train; the test part is CIFAR-10's.

    Reference: Cao et al. 2019 (exponential profile).
    """
    whole = cifar_10(part)
    return whole if part == "test" else _take(whole, long_tail(whole.labels, ratio))


def long_tail(labels: Tensor, ratio: float) -> Tensor:
    """The places of the first n ratio^(-c / (C - 1)) records of each class c of C, n being the largest class."""
    counts = torch.bincount(labels)
    most, last = int(counts.max()), len(counts) - 1
    kept = [int(most * ratio ** (-label / last)) for label in range(len(counts))]
    places = [torch.nonzero(labels == label).flatten()[:count] for label, count in enumerate(kept)]
    return torch.cat(places).sort().values


def _take(part: Part, places: Tensor) -> Part:
    return Part(part.inputs[places], part.labels[places], part.classes)


def _array(*parts: str) -> np.ndarray:
    with lzma.open(file(*parts)) as stream:
        return np.load(stream)


def _sheet(name: str) -> Tensor:
    """10,000 images from one picture of 100 x 100 of them."""
    from PIL import Image

    with Image.open(file("cifar10", f"{name}.webp")) as picture:
        pixels = np.asarray(picture)
    tiles = pixels.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
    return torch.from_numpy(np.ascontiguousarray(tiles))
